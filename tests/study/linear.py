"""Runs of a study that take no time, and studies of them."""

import os
import signal
import time

import numpy as np

import fl_dpftrl as dpftrl

SCHEMA = dpftrl.MinSep(num_rounds=8, min_sep=4)
TRUTH = np.array([1.0, -2.0, 0.5])


def proved(cell, value, **others):
  """What a run returns that has this value on all data, and proves the ε of its noise."""
  values = {part: {cell.design.metric.name: value} for part in ('validation', 'test')}
  epsilon = cell.noise and cell.noise.epsilon
  return {**values, 'epsilon': epsilon, 'delta': cell.design.delta, **others}


def train(cell):
  """Trains a linear classifier by noised means; all of it follows from the cell."""
  if cell.server_learning_rate > 5.0:
    raise RuntimeError('the rate is too large')
  draws = np.random.default_rng(cell.seed)
  # The test needs correlated noise, not a secret seed.
  rows = np.random.default_rng([7, cell.seed]).normal(size=(cell.num_rounds, 3))
  weights = np.zeros(3)
  for row in cell.strategy.noising_matrix(cell.num_rounds) @ rows * cell.noise_multiplier:
    x = draws.normal(size=(40, 3))
    update = (x * np.sign(x @ TRUTH)[:, None]).sum(axis=0)
    weights += cell.server_learning_rate * (update + row) / cell.design.report_goal
  x = np.random.default_rng(0).normal(size=(500, 3))
  right = np.sign(x @ weights) == np.sign(x @ TRUTH)
  print(f'trained in process {os.getpid()}')
  return {
    **proved(cell, 0.0),
    'validation': {'accuracy': right[:250].mean()},
    'test': {'accuracy': right[250:].mean()},
    'seconds': 1.0,
  }


def endless(cell):
  """Says its process in a file, and never ends."""
  cell.folder.mkdir()
  (cell.folder / 'process').write_text(str(os.getpid()))
  while True:
    time.sleep(0.05)


def fatal(cell):
  """Trains a cell, or ends its process without a word, or as if all were well."""
  if cell.server_learning_rate == 2.0:
    os.kill(os.getpid(), signal.SIGKILL)
  if cell.server_learning_rate == 3.0:
    raise SystemExit(0)
  return train(cell)


def mistaken(cell):
  """Forgets the metric."""
  return {'epsilon': 1.0}


def study(folder, run=train, **changes):
  """Compares two mechanisms in this process, at two rates with two seeds."""
  arguments = dict(
    mechanisms=['identity', 'blt:1'],
    epsilons=[4.0],
    server_learning_rates=[0.1, 0.4],
    seeds=[0, 1],
    participation=SCHEMA,
    clip_norm=1.0,
    report_goal=40,
    title='Linear',
    jobs=0,
    say=lambda line: None,
  )
  return dpftrl.study(run, folder=folder, **{**arguments, **changes})
