"""A run without an end: train, stop, and train on, at one ε that is known before the first round.

python examples/endless.py FOLDER
"""

import pathlib
import sys

import numpy as np

import fl_dpftrl as dpftrl

DELTA, NOISE_MULTIPLIER = 1e-6, 8.0
STRATEGY = dpftrl.load_strategy('blt-b40-endless')
BUDGET = dpftrl.LossBudget(max_participations=5, min_sep=40)
WEIGHTS = np.array([1.0, -2.0, 0.5])


def gradient(model: np.ndarray, device: int) -> np.ndarray:
  """Returns the gradient of one device's squared error, of a few examples of its own."""
  generator = np.random.default_rng(device)
  features = generator.normal(size=(8, 3))
  targets = features @ WEIGHTS + 0.1 * generator.normal(size=8)
  return features.T @ (features @ model - targets) / 8


def train(folder: pathlib.Path, num_rounds: int) -> np.ndarray:
  """Trains on for so many rounds, with the devices whose loss budgets allow it."""
  path = folder / 'model.npy'
  with dpftrl.PrivateAggregator(
    STRATEGY,
    template=np.zeros(3),
    noise_multiplier=NOISE_MULTIPLIER,
    clip_norm=1.0,
    report_goal=50,
    folder=folder,
    participation=BUDGET,
    delta=DELTA,
  ) as aggregator:
    if not path.exists():
      aggregator.require_new()
      np.save(path, np.zeros(3))
    model = np.load(path)
    for _ in range(num_rounds):
      t = aggregator.next_round
      candidates = np.random.default_rng(t).permutation(2000 + 20 * t)  # New devices come.
      with aggregator.round(aggregator.admissible(candidates, at_most=50)) as round_:
        for device in round_.device_ids:
          round_.add(gradient(model, device))
      model = model - 0.2 / np.sqrt(1.0 + t / 50.0) * round_.mean  # A rate that needs no end.
      np.save(path, model)
    print(f'{aggregator.next_round} rounds: {aggregator.statement().quoted}')
  return model


if __name__ == '__main__':
  run = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/endless')
  before = dpftrl.account(
    STRATEGY, BUDGET, noise_multiplier=NOISE_MULTIPLIER, delta=DELTA, num_coordinates=3
  )
  print(f'before the first round: {before}, for any number of rounds')
  train(run, 60)
  error = np.abs(train(run, 60) - WEIGHTS).max()
  print(f'largest error of a weight: {error:.2f}')
