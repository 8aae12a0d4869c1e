"""The attack on the lowest bits of releases; see benchmarks/attack.py."""

import functools
import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms import base
from fl_dpftrl.noise import integer_rows, normals
from tests import every_family

SIZE, RUN = 1 << 17, 50  # coordinates; rounds of one run
NOISE_MULTIPLIER = 7.379
CONFIDENCE = 0.999
_NEAR, _GRID = 2.0**-11, 2.0**-34
UNIT = lattice_units.Unit.of(NOISE_MULTIPLIER)
Releases = Iterator[np.ndarray]
UPDATE = np.full(SIZE, 0.999 / math.sqrt(SIZE))


def by_engine(strategy: base.Strategy, update: np.ndarray, seed: bytes) -> Releases:
  """Releases with rows of an engine, as the aggregator makes them in process."""
  maker = integer_rows.RowMaker(strategy, size=SIZE, num_rounds=RUN, seed=seed)
  total, row = UNIT.integers(update) << UNIT.shift, np.empty(SIZE, np.int64)
  for _ in range(RUN):
    maker.make(row)
    yield (UNIT.size * (total + row)).astype(np.float32)
  maker.close()


def in_state(strategy: base.Strategy, update: np.ndarray, seed: bytes) -> Releases:
  """Releases with rows of TensorFlow, as the aggregator makes them in TFF's state."""
  state, next_row = _stream(strategy)
  total = UNIT.integers(update) << UNIT.shift
  state = state._replace(seed=np.frombuffer(seed, '<i8', 2))
  for _ in range(RUN):
    (row,), state = next_row(state)
    yield (UNIT.size * (total + row.numpy())).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _stream(strategy: base.Strategy):
  import tensorflow as tf

  from fl_dpftrl.noise import stream

  made = stream.make_stream(strategy, [tf.TensorSpec([SIZE], tf.int64)])
  return made.init(), tf.function(made.next, reduce_retracing=True)


def in_floats(strategy: base.Strategy, update: np.ndarray, seed: bytes) -> Releases:
  """Releases as float32 sums of float32 numbers: rows of an engine, rounded."""
  generator = np.random.default_rng(list(seed))
  for released in by_engine(strategy, np.zeros(SIZE), seed):
    noise = generator.normal(scale=released.std(), size=SIZE)
    yield update.astype(np.float32) + noise.astype(np.float32)


EXECUTORS = {'engine': by_engine, 'state': in_state, 'float32 sums': in_floats}


def counts(executor, strategy, rounds: int, update: np.ndarray, new_seed) -> np.ndarray:
  """Returns the attacker's count in each of so many rounds, of runs of 50."""
  result: list[int] = []
  while len(result) < rounds:
    for released in executor(strategy, update, new_seed()):
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
  executor, strategy: base.Strategy, rounds: int, new_seed=normals.system_seed
) -> dict[str, float]:
  """Attacks one executor of one strategy; each run has a seed of its own."""
  both = (UPDATE, np.zeros(SIZE))
  present, absent = (counts(executor, strategy, rounds, update, new_seed) for update in both)
  means = {'with': float(present.mean()), 'without': float(absent.mean())}
  return {**means, **advantage(present, absent)}


def attack(executor: str, name: str, rounds: int) -> dict[str, float]:
  """Attacks one executor of the example strategy of a family."""
  return measure(EXECUTORS[executor], every_family.example(name, RUN), rounds)
