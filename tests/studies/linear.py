"""A model small enough to train in no time, with the noise of a cell and no TensorFlow."""

import os
import signal
import time

import numpy as np

import fl_dpftrl as dpftrl

NUM_ROUNDS, GOAL = 8, 40
SCHEMA = dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=4)
TRUTH = np.array([1.0, -2.0, 0.5])
FATAL_RATE = 2.0


def train(cell):
  """Trains a linear classifier by noised mean gradients; its accuracy is that of its signs."""
  if cell.server_learning_rate > 5.0:
    raise RuntimeError('the rate is too large')
  draws = np.random.default_rng(cell.seed)
  # The test needs correlated noise, not a secret seed.
  rows = np.random.default_rng([7, cell.seed]).normal(size=(cell.num_rounds, 3))
  mixing = cell.strategy.noising_matrix(cell.num_rounds)
  noise = mixing @ rows * cell.noise_multiplier * cell.conditions.clip_norm
  weights = np.zeros(3)
  for row in noise:
    x = draws.normal(size=(GOAL, 3))
    update = x * np.sign(x @ TRUTH)[:, None]
    update /= np.maximum(1.0, np.linalg.norm(update, axis=1, keepdims=True))
    weights += cell.server_learning_rate * (update.sum(0) + row) / cell.conditions.report_goal
  x = np.random.default_rng(0).normal(size=(500, 3))
  right = np.sign(x @ weights) == np.sign(x @ TRUTH)
  print(f'trained in process {os.getpid()}')
  return {
    'validation': {'accuracy': right[:250].mean()},
    'test': {'accuracy': right[250:].mean()},
    'mechanism': cell.strategy.family,
    'noise_multiplier': cell.noise_multiplier,
    'num_rounds': cell.num_rounds,
  }


def endless(cell):
  """Says its process in a file, and never ends."""
  cell.folder.mkdir()
  (cell.folder / 'process').write_text(str(os.getpid()))
  while True:
    time.sleep(0.05)


def fatal(cell):
  """Trains a cell, or ends its process with its rate."""
  if cell.server_learning_rate == FATAL_RATE:
    os.kill(os.getpid(), signal.SIGKILL)
  return train(cell)
