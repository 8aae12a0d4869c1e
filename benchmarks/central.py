"""Central training: `PrivateAggregator` beside jax-privacy.

Batches of 256 expected examples by cyclic Poisson sampling, per-example gradients clipped, 16
bands, momentum. "text" has 2,848 parameters and is the model of examples/central.py, "images" has
25,450. `PrivateAggregator` trains by the function of examples/central.py: it records the batches of
50 steps at a time, and marks their rows of noise as used, each durably. The peer is
`BandMFExecutionPlanConfig` with sampling, clipped gradient and noise of its plan, compiled as one
step. It records nothing. Every 50 steps, both store the model durably. Both have one thread and the
same JAX. Means of 50 steps, medians of five such blocks, then of processes; least and largest of
these in brackets.
"""

import functools
import statistics
from typing import Any

from benchmarks import runner
from benchmarks.runner import Side, call

PEER = '.venv-bench'
SIDES = {'aggregator': '`PrivateAggregator`', 'peer': 'jax-privacy'}
SETTINGS = {'epsilon': 4.0, 'delta': 1e-5, 'seeds': 5}
MODELS, BANDS, UTILITY_ROUNDS = ('text', 'images'), (1, 16), 400
TIMES = (
  'model={model}|side={side}|ms a step={spread}|ms computed={cpu_ms:.2f}|'
  'of the peer={of_peer:.1f}|of it, computed={of_computed:.1f}'
)
ACCURACIES = (
  'bands={bands}|side={side}|test accuracy (%)={mean:.2f} ± {deviation:.2f}|seeds={seeds}|'
  'noise multiplier / sensitivity={effective_noise_multiplier:.4f}'
)


def times(model: str, runs: dict[str, runner.Runs]) -> list[dict[str, Any]]:
  """Returns a row for each side; ValueError if one failed."""
  median = lambda side, key: statistics.median(result[key] for result in runs[side].results)
  rows = []
  for side, name in SIDES.items():
    if runs[side].failures:
      raise ValueError(f'{model}, {side}: {runs[side].failures[-1]}')
    ms, cpu_ms = (median(side, key) for key in ('ms', 'cpu_ms'))
    figures = dict(ms=ms, cpu_ms=cpu_ms, results=runs[side].results)
    figures['spread'] = runner.spread([r['ms'] for r in runs[side].results], '{:.2f}'.format)
    figures |= dict(
      of_peer=ms / median('peer', 'ms'), of_computed=cpu_ms / median('peer', 'cpu_ms')
    )
    rows.append(dict(model=model, side=name, **figures))
  return rows


def apart(ours: dict[str, Any], peer: dict[str, Any]) -> str:
  """Returns a sentence on the difference of the sides, with its 95 % interval (Welch's t)."""
  from scipy import stats

  test = stats.ttest_ind(ours['accuracies'], peer['accuracies'], equal_var=False)
  low, high = (100 * limit for limit in test.confidence_interval(0.95))
  return (
    f'With {ours["bands"]} band{"s" * (ours["bands"] > 1)} ours less the peer’s is'
    f' {ours["mean"] - peer["mean"]:+.2f} points (95 %: {low:+.2f} to {high:+.2f}).'
  )


def main(options: runner.Options) -> None:
  """Times both models, then trains "text" at equal ε, 400 rounds or --rounds."""
  packages = ('jax-privacy', 'jax', 'optax', 'numpy', 'dp-accounting')
  about = runner.versions(*packages, python=options.peer)
  command = functools.partial(call, 'central', python=options.peer)
  side = lambda *words: Side(command(*words), timeout=1800.0)
  timed, utility = [], []
  for model in MODELS:
    sides = {name: side('measure', name, model) for name in SIDES}
    timed += times(model, runner.turns(model, sides, options.repeats))
  rounds = options.rounds or UTILITY_ROUNDS
  for bands in BANDS:
    for name, label in SIDES.items():
      row = runner.once(side('utility', name, bands, rounds, *SETTINGS.values()))
      values = [100 * accuracy for accuracy in row['accuracies']]
      row |= dict(mean=statistics.fmean(values), deviation=statistics.stdev(values))
      utility.append(dict(bands=bands, side=label, seeds=len(values), **row))
  text = (
    f'"text" for {rounds} rounds at ε = {SETTINGS["epsilon"]:g} and δ = {SETTINGS["delta"]:g}, each'
    ' side with its own strategy of so many bands, its own accountant and secret noise.'
  )
  text = ' '.join([text, *map(apart, utility[::2], utility[1::2])])
  blocks = [runner.table(TIMES, timed), '## Accuracy at equal ε', text]
  blocks.append(runner.table(ACCURACIES, utility))
  runner.write(options, __doc__, 'central', blocks, {'time': timed, 'utility': utility}, about)
