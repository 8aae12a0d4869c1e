"""Central training beside jax-privacy's, in one run: time of a step, and accuracy at equal ε.

python -m benchmarks.central.run --repeats=3 --peer_python=.venv-bench/bin/python

All sides run in the peer's environment, with one version of JAX, in turn.
"""

import argparse
import json
import pathlib
import statistics
import sys

from benchmarks import pages, process, sides
from benchmarks.central import names

RESULTS = pathlib.Path(__file__).parents[1] / 'results'
SIDE = 'benchmarks.central.side'
TIMEOUT = 900.0
PACKAGES = ('jax_privacy', 'jax', 'optax', 'numpy', 'dp_accounting')


def run(python: str, *words: str) -> dict:
  """Returns what one process of a side found.

  Raises:
    ValueError: saying why it found nothing.
  """
  done = process.run([python, '-m', SIDE, *words], timeout=TIMEOUT)
  if done.failure:
    raise ValueError(f'{" ".join(words)}: {done.failure}')
  return json.loads(done.output.splitlines()[-1])


def measure(python: str, repeats: int) -> dict:
  """Returns what all sides found: {'time': by case and side, 'utility': by bands and side}."""
  found: dict = {'time': {}, 'utility': {}}
  for case in names.CASES:
    for repeat in range(repeats):
      for side in names.SIDES:
        one = run(python, 'time', side, case)
        found['time'].setdefault(case, {}).setdefault(side, []).append(one)
        print(f'{case} {repeat + 1} {side}: {one["ms"]:.2f} ms', file=sys.stderr)
  for bands in names.BANDS:
    for side in names.SIDES:
      one = run(python, 'utility', side, str(bands))
      found['utility'].setdefault(str(bands), {})[side] = one
      print(f'{bands} bands, {side}: {one["accuracies"]}', file=sys.stderr)
  return found


def _median(runs: list[dict], key: str) -> float:
  return statistics.median(one[key] for one in runs)


def _times(found: dict) -> str:
  rows = []
  for case, by_side in found.items():
    peer = by_side['peer']
    for side, runs in by_side.items():
      ratios = [f'{_median(runs, key) / _median(peer, key):.1f}' for key in ('ms', 'cpu_ms')]
      values = sorted(one['ms'] for one in runs)
      rows.append(
        (
          case,
          names.SIDES[side],
          f'{_median(runs, "ms"):.2f} ({values[0]:.2f}–{values[-1]:.2f})',
          f'{_median(runs, "cpu_ms"):.2f}',
          *ratios,
        )
      )
  head = ('model', 'side', 'ms a step', 'ms computed', 'of the peer', 'of it, computed')
  return sides.table(head, rows)


def _parts(found: dict) -> str:
  rows = []
  for case, by_side in found.items():
    for side, runs in by_side.items():
      for part in runs[0]['parts']:
        value = statistics.median(one['parts'][part] for one in runs)
        rows.append((case, names.SIDES[side], part, f'{value:.2f}'))
  return sides.table(('model', 'side', 'part', 'ms'), rows)


def _accuracies(found: dict) -> str:
  rows = []
  for bands, by_side in found.items():
    for side, one in by_side.items():
      values = [100 * accuracy for accuracy in one['accuracies']]
      rows.append(
        (
          bands,
          names.SIDES[side],
          f'{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}',
          str(len(values)),
          f'{one["effective_noise_multiplier"]:.4f}',
        )
      )
  head = ('bands', 'side', 'test accuracy (%)', 'seeds', 'noise multiplier / sensitivity')
  return sides.table(head, rows)


def _apart(found: dict) -> str:
  """Returns sentences on the difference of the sides, with its 95 % interval (Welch's t)."""
  from scipy import stats

  said = []
  for bands, by_side in found.items():
    own, peer = (by_side[side]['accuracies'] for side in names.SIDES)
    interval = stats.ttest_ind(own, peer, equal_var=False).confidence_interval(0.95)
    difference = statistics.fmean(own) - statistics.fmean(peer)
    said.append(
      f'With {bands} band{"s"[: bands != "1"]} ours less the peer’s is {100 * difference:+.2f}'
      f' points (95 %: {100 * interval.low:+.2f} to {100 * interval.high:+.2f}).'
    )
  return ' '.join(said)


def page(about: dict, found: dict) -> str:
  """Returns the results as Markdown."""
  settings = names.SETTINGS
  return '\n'.join(
    [
      '# Central training: `PrivateAggregator` beside jax-privacy',
      '',
      f'Batches of {settings["batch"]} expected examples by cyclic Poisson sampling, per-example'
      ' gradients clipped, banded noise, momentum. "text" has 2,848 parameters and is the model of'
      ' examples/central.py, "images" has 25,450. `PrivateAggregator` records the batches of'
      f' {names.SAVE_EVERY} steps at a time, and marks their rows of noise as used, each durably.'
      ' The peer is `BandMFExecutionPlanConfig` with sampling, clipped gradient and noise of its'
      f' plan, compiled as one step. It records nothing. Every {names.SAVE_EVERY} steps, both'
      ' store the model durably. Both have one thread and the same JAX. Means of'
      f' {names.SAVE_EVERY} steps, medians of five such blocks, then of processes; least and'
      ' largest of these in brackets.',
      '',
      f'{about["date"]}, {about["processor"]}, {about["cores"]} cores.'
      f' {pages.said(about["versions"])}.',
      '',
      _times(found['time']),
      '',
      '## Parts of a step',
      '',
      _parts(found['time']),
      '',
      '## Accuracy at equal ε',
      '',
      f'"text" for {settings["utility_rounds"]} rounds at ε = {settings["epsilon"]:g} and δ ='
      f' {settings["delta"]:g}, each side with its own strategy of so many bands, its own'
      ' accountant and secret noise.'
      f' {_apart(found["utility"])}',
      '',
      _accuracies(found['utility']),
      '',
      'Again: `python -m benchmarks central`',
      '',
    ]
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=3, help='processes of each side')
  parser.add_argument('--peer_python', required=True, help='interpreter with jax-privacy')
  args = parser.parse_args()
  about = pages.machine(None)
  about['versions'] = pages.versions(args.peer_python, *PACKAGES)
  try:
    found = measure(args.peer_python, args.repeats)
  except ValueError as problem:
    sys.exit(f'central: {problem}')
  text = page(about, found)
  pages.write(RESULTS, 'central', text, {**about, **found})
  print(text)


if __name__ == '__main__':
  main()
