"""Subjects of an audit: protocol, executors of noise in NumPy, and patterns that show a device."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise import normals, reference, units
from fl_dpftrl.noise import rows as rows_lib
from fl_dpftrl.participation import schemas

Cohorts = Callable[[int], Sequence[np.ndarray]]
"""Round → update of each device, each a float32 vector of all coordinates."""

_SWEEPS = 20
_MOST_STARTS = 256


class Subject(Protocol):
  """A mechanism that an audit runs from the outside.

  Attributes:
    description: what runs, in words.
    sizes: number of coordinates of each tensor of an update.
    clips: whether it bounds updates itself. Otherwise the audit adds updates
      that keep to the clip norm, and does not test clipping.
  """

  description: str
  sizes: tuple[int, ...]
  clips: bool

  def run(self, cohorts: Cohorts, num_rounds: int) -> np.ndarray:
    """Returns the releases of one fresh run, as sums with noise.

    Args:
      cohorts: updates of each round.
      num_rounds: rounds of the run.

    Returns:
      Shape [num_rounds, sum(sizes)].
    """
    ...


class Rows:
  """Noise rows of an executor in NumPy, with sums of updates, in whole numbers.

  Args:
    name: 'reference' or 'engine'.
    strategy: C and N.
    noise_multiplier: std(Z) / clip_norm.
    clip_norm: bound on an update, by which it is also clipped.
    sizes: number of coordinates of each tensor.
    seed: seed of the first run; None for fresh randomness. Each run has another.
  """

  clips = False

  def __init__(
    self,
    name: str,
    strategy: strategies.Strategy,
    *,
    noise_multiplier: float,
    clip_norm: float,
    sizes: Sequence[int],
    seed: int | None,
  ):
    self.description = f'noise rows of {strategy.family}, {name} executor'
    self.sizes = tuple(sizes)
    self._make = _reference_rows if name == 'reference' else _engine_rows
    self._strategy, self._seed = strategy, seed
    self._unit, self._clip_norm = units.Unit.of(noise_multiplier), clip_norm
    self._runs = 0

  def run(self, cohorts: Cohorts, num_rounds: int) -> np.ndarray:
    self._runs += 1
    seed = None if self._seed is None else run_seed(self._seed, self._runs)
    secret = normals.system_seed() if seed is None else normals.fixed_seed(seed)
    rows = self._make(self._strategy, num_rounds, sum(self.sizes), secret)
    for row, updates in zip(rows, map(cohorts, range(num_rounds))):
      for update in updates:
        row += self._unit.integers(update, self._clip_norm) << self._unit.shift
    return self._unit.size * self._clip_norm * rows


def run_seed(seed: int, number: int) -> int:
  """Returns a seed of 62 bits for one run of an audit."""
  words = np.random.SeedSequence((abs(seed), int(seed < 0), number)).generate_state(2, np.uint64)
  return int(words[0] >> np.uint64(2))


def _reference_rows(
  strategy: strategies.Strategy, num_rounds: int, size: int, seed: bytes
) -> np.ndarray:
  source = normals.Normals(seed)

  def fresh(t: int, scale: float) -> np.ndarray:
    drawn = np.empty(size, np.int64)
    source.fill(t, 0, scale, drawn)
    return drawn

  stream = reference.reference_stream(strategy, num_rounds, size, fresh)
  state, rows = stream.init(), np.empty((num_rounds, size), np.int64)
  for t in range(num_rounds):
    rows[t], state = stream.next(state)
  return rows


def _engine_rows(
  strategy: strategies.Strategy, num_rounds: int, size: int, seed: bytes
) -> np.ndarray:
  made = rows_lib.RowMaker(strategy, size=size, num_rounds=num_rounds, seed=seed, num_threads=1)
  rows = np.empty((num_rounds, size), np.int64)
  for row in rows:
    made.make(row)
  made.close()
  return rows


def tensor_sizes(num_coordinates: int) -> tuple[int, int, int]:
  """Splits coordinates into a half and two quarters, which are three tensors."""
  quarter = max(1, math.ceil(num_coordinates / 4))
  return 2 * quarter, quarter, quarter


def worst_pattern(information: np.ndarray, schema: schemas.MinSep) -> np.ndarray:
  """Returns signs p with a large pᵀ X p among the patterns that a schema allows.

  It tries regular patterns and improves them round by round. The result is a
  pattern that the schema allows, not always the worst one: an audit needs a
  good one only.

  Args:
    information: X, the inverse of the covariance of the noise, shape
      [num_rounds, num_rounds].
    schema: schema whose num_rounds is that of X.

  Returns:
    Shape [num_rounds]: 1 or −1 in the rounds of the device, otherwise 0.
  """
  size, step, most = schema.num_rounds, schema.min_sep, schema.participations
  fixed = isinstance(schema, schemas.FixedSeparation)
  weights = np.abs(information)
  last_start = size - (most - 1) * step if fixed else size
  starts = np.unique(np.linspace(0, last_start - 1, min(last_start, _MOST_STARTS)).astype(int))
  patterns = [np.arange(start, size, step)[:most] for start in starts]
  if not fixed:
    patterns.append(np.arange(size)[:: max(step, size // most)][:most])
  patterns.sort(key=lambda rounds: -weights[np.ix_(rounds, rounds)].sum())
  best, best_value = np.zeros(size), -1.0
  for rounds in patterns[:8]:
    for signs in (np.ones(rounds.size), np.sign(information[rounds[0], rounds])):
      pattern = np.zeros(size)
      pattern[rounds] = np.where(signs == 0.0, 1.0, signs)
      pattern = _improved(information, pattern, schema, move=not fixed)
      value = float(pattern @ information @ pattern)
      if value > best_value:
        best, best_value = pattern, value
  return best


def _improved(
  information: np.ndarray, pattern: np.ndarray, schema: schemas.MinSep, *, move: bool
) -> np.ndarray:
  """Chooses each round and sign anew, given the others, until nothing changes."""
  size, step = schema.num_rounds, schema.min_sep
  diagonal = np.diagonal(information)
  for _ in range(_SWEEPS):
    before = pattern.copy()
    for t in np.flatnonzero(pattern):
      pattern[t] = 0.0
      cross = information @ pattern
      allowed = np.zeros(size, bool)
      if move:
        allowed[:] = True
        for other in np.flatnonzero(pattern):
          allowed[max(0, other - step + 1) : other + step] = False
      else:
        allowed[t] = True
      gains = np.where(allowed, diagonal + 2.0 * np.abs(cross), -np.inf)
      chosen = int(np.argmax(gains))
      if gains[chosen] <= gains[t] * (1.0 + 1e-12):
        chosen = int(t)
      pattern[chosen] = -1.0 if cross[chosen] < 0.0 else 1.0
    if (pattern == before).all():
      break
  return pattern
