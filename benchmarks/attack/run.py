"""Attacks the lowest bits of releases, for every family, and writes the table.

python -m benchmarks.attack.run --rounds=1000

A device sends an update of nearly the clip norm, or takes no part, among nineteen that send zeros.
The attacker counts coordinates next to 0 that are off the grid that a float32 sum with the update
would have, and says which it was. One half of the rounds tells him how; the other half judges him.
See docs/decisions/arithmetic.md.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterator

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
from scipy import stats

from benchmarks import pages, sides
from fl_dpftrl.families import base, registry
from fl_dpftrl.noise import normals, rows, units
from tests import every_family

SIZE, RUN = 1 << 17, 50  # coordinates; rounds of one run
NOISE_MULTIPLIER = 7.379
CONFIDENCE = 0.999
_NEAR, _GRID = 2.0**-11, 2.0**-34
UNIT = units.Unit.of(NOISE_MULTIPLIER)
UPDATE = np.full(SIZE, 0.999 / math.sqrt(SIZE))


def by_engine(
  strategy: base.Strategy, num_rounds: int, update: np.ndarray, seed: bytes
) -> Iterator[np.ndarray]:
  """Releases with rows of an engine, as the aggregator makes them in process."""
  maker = rows.RowMaker(strategy, size=SIZE, num_rounds=num_rounds, seed=seed)
  total, row = UNIT.integers(update) << UNIT.shift, np.empty(SIZE, np.int64)
  for _ in range(num_rounds):
    maker.make(row)
    yield (UNIT.size * (total + row)).astype(np.float32)
  maker.close()


def in_state(
  strategy: base.Strategy, num_rounds: int, update: np.ndarray, seed: bytes
) -> Iterator[np.ndarray]:
  """Releases with rows of TensorFlow, as the aggregator makes them in TFF's state."""
  state, next_row = _stream(strategy)
  total = UNIT.integers(update) << UNIT.shift
  state = state._replace(seed=np.frombuffer(seed, '<i8', 2))
  for _ in range(num_rounds):
    (row,), state = next_row(state)
    yield (UNIT.size * (total + row.numpy())).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _stream(strategy: base.Strategy):
  import tensorflow as tf

  from fl_dpftrl.noise import stream

  made = stream.make_stream(strategy, [tf.TensorSpec([SIZE], tf.int64)])
  return made.init(), tf.function(made.next, reduce_retracing=True)


def in_floats(
  strategy: base.Strategy, num_rounds: int, update: np.ndarray, seed: bytes
) -> Iterator[np.ndarray]:
  """Releases as float32 sums of float32 numbers: rows of an engine, rounded."""
  generator = np.random.default_rng(list(seed))
  for released in by_engine(strategy, num_rounds, np.zeros(SIZE), seed):
    noise = generator.normal(scale=released.std(), size=SIZE)
    yield update.astype(np.float32) + noise.astype(np.float32)


EXECUTORS: dict[str, Callable[..., Iterator[np.ndarray]]] = {'engine': by_engine, 'state': in_state}


def counts(
  executor,
  strategy: base.Strategy,
  rounds: int,
  update: np.ndarray,
  new_seed: Callable[[], bytes] = normals.system_seed,
) -> np.ndarray:
  """Returns the attacker's count in each of so many rounds, of runs of 50."""
  result = []
  while len(result) < rounds:
    for released in executor(strategy, RUN, update, new_seed()):
      near = released[np.abs(released) < _NEAR].astype(np.float64) / _GRID
      result.append(int((near != np.rint(near)).sum()))
  return np.array(result[:rounds])


def advantage(present: np.ndarray, absent: np.ndarray) -> dict[str, float]:
  """Returns how much better than chance the attacker is, with limits of its confidence interval.

  He says that the device took part where the count is on one side of a threshold, which is best for
  the first half of the rounds.
  """
  half = len(present) // 2
  best, says = -1.0, lambda counts: counts < 0
  for threshold in np.unique(np.concatenate([present[:half], absent[:half]])):
    for sign in (1, -1):
      rule = lambda counts, t=threshold, s=sign: s * counts <= s * t
      gain = rule(present[:half]).mean() - rule(absent[:half]).mean()
      if gain > best:
        best, says = gain, rule
  hits = [int(says(each[half:]).sum()) for each in (present, absent)]
  trials = len(present) - half
  limits = [
    stats.binomtest(hit, trials).proportion_ci(1.0 - (1.0 - CONFIDENCE) / 2) for hit in hits
  ]
  return {
    'advantage': (hits[0] - hits[1]) / trials,
    'low': limits[0].low - limits[1].high,
    'high': limits[0].high - limits[1].low,
  }


def measure(
  executor,
  strategy: base.Strategy,
  rounds: int,
  new_seed: Callable[[], bytes] = normals.system_seed,
) -> dict[str, float]:
  """Attacks one executor of one strategy; each run has a seed of its own."""
  present, absent = (
    counts(executor, strategy, rounds, update, new_seed) for update in (UPDATE, np.zeros(SIZE))
  )
  return {
    'with': float(present.mean()),
    'without': float(absent.mean()),
    **advantage(present, absent),
  }


def cells(one: dict) -> list[str]:
  return [
    one['strategy'],
    one['executor'],
    f'{one["with"]:.2f}',
    f'{one["without"]:.2f}',
    f'{one["advantage"]:+.3f}',
    f'{one["low"]:+.3f} to {one["high"]:+.3f}',
  ]


def document(about: dict, found: list[dict], rounds: int) -> str:
  """Returns the page of a measurement."""
  return '\n'.join(
    [
      '# What the lowest bits of a release tell of one device',
      '',
      f'{rounds:,} rounds with and as many without the device, of {SIZE:,} coordinates, noise'
      f' multiplier {NOISE_MULTIPLIER}. {about["date"]}, {pages.said(about["versions"])}. The'
      ' attacker counts coordinates next to 0 that are off the grid of a float32 sum with the'
      f' update. The interval of his advantage over chance is for a confidence of {CONFIDENCE:.1%};'
      ' where it holds 0, he knows nothing.',
      '',
      sides.table(
        ('strategy', 'noise', 'count with', 'without', 'advantage', 'interval'),
        [cells(one) for one in found],
      ),
      '',
    ]
  )


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(prog='python -m benchmarks.attack.run')
  parser.add_argument('--rounds', type=int, default=1000, help='rounds with and without the device')
  parser.add_argument('--only', default='', help='families, with commas; all by default')
  parser.add_argument('--output', default='benchmarks/results')
  args = parser.parse_args(arguments)
  names = args.only.split(',') if args.only else sorted(registry.FAMILIES)
  attacked = [('identity', 'float32 sums', in_floats)]
  attacked += [(name, kind, made) for kind, made in EXECUTORS.items() for name in names]
  found = []
  for name, kind, executor in attacked:
    strategy = every_family.example(name, RUN)
    one = {'strategy': name, 'executor': kind, **measure(executor, strategy, args.rounds)}
    found.append(one)
    print(*cells(one), file=sys.stderr)
  about = {**pages.machine(None), 'versions': pages.versions(sys.executable, 'numpy', 'tensorflow')}
  folder = pathlib.Path(args.output)
  folder.mkdir(parents=True, exist_ok=True)
  pages.write(folder, 'attack', document(about, found, args.rounds), {**about, 'results': found})
  told = [one for one in found[1:] if not one['low'] <= 0.0 <= one['high']]
  print(json.dumps(told, indent=2) if told else 'no release tells more than chance')
  return 1 if told or found[0]['low'] < 0.9 else 0


if __name__ == '__main__':
  sys.exit(main())
