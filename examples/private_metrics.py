"""Metrics of clients within the guarantee: a curve with its interval, which ends the run.

    python examples/private_metrics.py runs/private_metrics

100,000 made-up devices train a logistic model, 500 in a round. Each sends the accuracy of the model
on its own data beside its update. The released accuracy ends the run; the exact one, which nobody
would have, is drawn beside it.
"""

import pathlib
import sys

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.support import style

DEVICES, COHORT, EXAMPLES, INPUTS, ROUNDS, WINDOW = 100_000, 500, 8, 20, 2000, 10
TRUE = np.random.default_rng(0).normal(size=INPUTS)


def data(device):
  """Examples of a device, whose labels a logistic model gives, with a share of noise."""
  rng = np.random.default_rng([1, device])
  x = rng.normal(size=(EXAMPLES, INPUTS))
  return x, (x @ TRUE + rng.logistic(size=EXAMPLES) > 0).astype(np.float64)


def trained(weights, device):
  """The update of a device, and the accuracy of the model that it got."""
  x, y = data(device)
  accuracy = np.mean((x @ weights > 0) == y)
  gradient = x.T @ (1 / (1 + np.exp(-x @ weights)) - y) / EXAMPLES
  return (-gradient).astype(np.float32), accuracy


def run(folder, rounds=ROUNDS, stop_at=None):
  """Trains until the released accuracy reaches `stop_at`.

  Returns:
    For each window its last round, the released accuracy, and the exact one.
  """
  weights, exact, windows = np.zeros(INPUTS, np.float32), [], []
  schema = dpftrl.MinSep(num_rounds=rounds, min_sep=DEVICES // COHORT)
  with dpftrl.PrivateAggregator(
    'blt-b100',
    template=weights,
    clip_norm=1.0,
    report_goal=COHORT,
    folder=folder,
    participation=schema,
    max_epsilon=2.0,
    delta=1e-6,
    metrics={'accuracy': 1.0},
  ) as aggregator:
    while aggregator.next_round < aggregator.max_rounds:
      cohort = (aggregator.next_round * COHORT + np.arange(COHORT)) % DEVICES
      with aggregator.round(cohort) as round_:
        sent = [trained(weights, device) for device in cohort.tolist()]
        for update, accuracy in sent:
          round_.add(update, metrics={'accuracy': accuracy})
      weights = weights + 0.02 * round_.mean
      exact.append(np.mean([accuracy for _, accuracy in sent]))
      if len(exact) % WINDOW == 0:
        released = aggregator.metrics(last=WINDOW)['accuracy']
        windows.append((aggregator.next_round, released, np.mean(exact[-WINDOW:])))
        if stop_at is not None and released.value >= stop_at:
          break
    print(aggregator.statement().quoted)
  return windows


def main(folder, **arguments):
  ends, released, exact = zip(*run(folder, **arguments))
  value, margin = (np.array([getattr(r, name) for r in released]) for name in ('value', 'stddev'))
  margin = 1.96 * margin
  inside = np.mean(np.abs(value - exact) <= margin)
  print(f'95 % intervals have the exact accuracy in {100 * inside:.1f} % of {len(ends)} windows')
  figure = style.Figure(figsize=(6.4, 3.6), facecolor='white', layout='constrained')
  style.dress(axes := figure.subplots())
  axes.fill_between(ends, value - margin, value + margin, color='#cc3311', alpha=0.25, linewidth=0)
  axes.plot(ends, value, color='#cc3311', label=f'released with noise, {WINDOW} rounds, ± 95 %')
  axes.plot(ends, exact, color=style.INK, linewidth=1, label='exact, not released')
  axes.set(xlabel='round', ylabel="accuracy on devices' own data")
  axes.legend(frameon=False)
  pathlib.Path(folder, 'accuracy.svg').write_bytes(style.image(figure, 'svg'))


if __name__ == '__main__':
  main(sys.argv[1])
