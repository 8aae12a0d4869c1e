"""Federated averaging only in NumPy, with BLT noise, a budget, and a log that proves ε.

    python examples/any_loop.py runs/any-loop

Interrupt it and start it again: it goes on with the next round. Each of 600 devices holds 32
examples of a linear model. 30 of them train a round, each at most every 10 rounds.
"""

import pathlib
import sys

import numpy as np

import fl_dpftrl as dpftrl

DEVICES, SIZE, ROUNDS = 600, 20, 60
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=10)
TRUE = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


def update_of(device: int, weights: np.ndarray) -> np.ndarray:
  """Returns what one device sends: five steps of gradient descent on its own examples."""
  rng = np.random.default_rng(device)
  x = rng.normal(size=(32, SIZE)).astype(np.float32)
  y = x @ TRUE + 0.1 * rng.normal(size=32).astype(np.float32)
  own = weights
  for _ in range(5):
    own = own - 0.05 * x.T @ (x @ own - y) / len(y)
  return own - weights


def main(folder: pathlib.Path) -> None:
  weights = np.zeros(SIZE, np.float32)
  with dpftrl.PrivateAggregator(
    'blt-b100',
    template=weights,
    noise_multiplier=2.0,
    clip_norm=0.5,
    report_goal=30,
    folder=folder,
    participation=SCHEMA,
    max_epsilon=20.0,
    delta=1e-6,
  ) as aggregator:
    model = folder / 'model.npy'
    if not model.exists():
      aggregator.require_new()  # A run that has rounds has lost its model.
      np.save(model, weights)
    weights = np.load(model)
    while aggregator.next_round < aggregator.max_rounds:
      candidates = np.random.default_rng(aggregator.next_round).permutation(DEVICES)
      cohort = aggregator.admissible(candidates, at_most=30)
      with aggregator.round(cohort) as round_:
        for device in cohort:
          round_.add(update_of(int(device), weights))
      weights = weights + 2.0 * round_.mean
      np.save(folder / 'new.npy', weights)
      (folder / 'new.npy').replace(model)  # Whole or not at all.
      print(
        f'round {round_.index + 1}: distance to the true model'
        f' {np.linalg.norm(weights - TRUE):.3f}, {aggregator.privacy_loss()}'
      )
    aggregator.report(folder / 'privacy.html')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/any-loop'))
