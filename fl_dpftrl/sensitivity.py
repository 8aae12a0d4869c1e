"""Worst-case ‖C u‖ over the rounds and updates that a schema allows.

A device's updates are vectors of norm at most 1, one for each round it takes
part in, so sens² is the largest Σ X[i, j] ⟨uᵢ, uⱼ⟩ over an allowed pattern of
rounds, where X = CᵀC. Where X ≥ 0 on the pattern that is Σ X[i, j]; in general
it is at most Σ |X[i, j]|, and vectors of zeros and ones, or of signs, are not
enough to reach it.
"""

import functools
import math
from typing import NamedTuple, Sequence

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.strategies import banded
from fl_dpftrl.strategies import base
from fl_dpftrl.strategies import blt
from fl_dpftrl.strategies import identity
from fl_dpftrl.strategies import tree
from fl_dpftrl.strategies import tree_patterns

EXACT = 'exact'
UPPER_BOUND = 'upper_bound'
LOWER_BOUND = 'lower_bound'

_MOST_TREE_PARTICIPATIONS = 256  # beyond, the exact value takes too long
_CHUNK_ENTRIES = 1 << 22  # float64 values of working memory: 32 MiB


class Sensitivity(NamedTuple):
  """A sensitivity per unit of clip norm, and what is proven of it.

  Attributes:
    value: the worst ‖C u‖, or a bound on it.
    kind: 'exact', 'upper_bound' or 'lower_bound'. A guarantee takes only the
      first two.
  """

  value: float
  kind: str


@functools.singledispatch
def sensitivity(
    strategy: base.Strategy, schema: participation.MinSep
) -> Sensitivity:
  """The sensitivity of a strategy under a participation schema.

  Exact for identity and BLT, for banded strategies with num_bands at most
  min_sep, for trees up to 256 participations, for any C up to two, and for
  `FixedSeparation` where X has no negative entry between two allowed rounds;
  otherwise an upper bound.

  Raises:
    ValueError: where the schema has more rounds than the strategy can run.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
  section 4 and algorithm VecSens; see `gram_sensitivity`.
  """
  return gram_sensitivity(gram_matrix(strategy, schema.num_rounds), schema)


@sensitivity.register
def _(
    strategy: identity.Identity, schema: participation.MinSep
) -> Sensitivity:
  base.check_num_rounds(strategy, schema.num_rounds)
  return Sensitivity(math.sqrt(schema.participations), EXACT)


@sensitivity.register
def _(strategy: blt.BLT, schema: participation.MinSep) -> Sensitivity:
  # Coefficients of a BLT are non-negative and non-increasing, so the first
  # rounds, as close as the schema allows, are the worst pattern of both schemas
  # (McMahan, Xu, Zhang 2024, theorem on min-sep sensitivity of Toeplitz C).
  column = repeated(
      strategy.coefficients(schema.num_rounds),
      schema.min_sep,
      schema.participations,
  )
  return Sensitivity(float(np.linalg.norm(column)), EXACT)


def repeated(values: np.ndarray, step: int, count: int) -> np.ndarray:
  """For each i, Σ over a < count of values[i − a·step], 0 before the first.

  For the first column of a Toeplitz C, the sum of the columns of the pattern
  0, step, …, (count − 1)·step.
  """
  blocks = -(-values.size // step)
  padded = np.zeros((blocks, step))
  padded.reshape(-1)[: values.size] = values
  total = np.cumsum(padded, axis=0)
  if count < blocks:
    total[count:] -= total[:-count].copy()
  return total.reshape(-1)[: values.size]


@sensitivity.register
def _(strategy: banded.Banded, schema: participation.MinSep) -> Sensitivity:
  if strategy.num_bands > schema.min_sep:
    return gram_sensitivity(gram_matrix(strategy, schema.num_rounds), schema)
  squares = column_squares(strategy, schema.num_rounds)
  return Sensitivity(math.sqrt(_worst_sum(squares, schema)), EXACT)


@sensitivity.register
def _(strategy: tree.TreeOnline, schema: participation.MinSep) -> Sensitivity:
  if (
      isinstance(schema, participation.FixedSeparation)
      or schema.participations > _MOST_TREE_PARTICIPATIONS
  ):
    return gram_sensitivity(gram_matrix(strategy, schema.num_rounds), schema)
  square = tree_patterns.worst_square(
      schema.num_rounds, schema.min_sep, schema.participations
  )
  return Sensitivity(math.sqrt(square), EXACT)


def column_squares(strategy: banded.Banded, num_rounds: int) -> np.ndarray:
  """Squared column norms of a banded C, shape [num_rounds]."""
  base.check_num_rounds(strategy, num_rounds)
  squares = np.zeros(num_rounds)
  for j in range(min(strategy.num_bands, num_rounds)):
    squares[: num_rounds - j] += strategy.coefficients[j:num_rounds, j] ** 2
  return squares


@functools.singledispatch
def gram_matrix(strategy: base.Strategy, num_rounds: int) -> np.ndarray:
  """X = CᵀC, shape [num_rounds, num_rounds].

  Raises:
    ValueError: where num_rounds is more than the strategy can run, or too many
      for a dense matrix.
  """
  workloads.check_dense(num_rounds)
  matrix = strategy.strategy_matrix(num_rounds)
  return matrix.T @ matrix


@gram_matrix.register
def _(strategy: tree.TreeOnline, num_rounds: int) -> np.ndarray:
  # Two rounds meet in every complete node that holds both.
  base.check_num_rounds(strategy, num_rounds)
  workloads.check_dense(num_rounds)
  gram = np.zeros((num_rounds, num_rounds))
  for height in range(num_rounds.bit_length()):
    size = 2**height
    for start in range(0, num_rounds - size + 1, size):
      gram[start : start + size, start : start + size] += 1.0
  return gram


def gram_sensitivity(
    gram: np.ndarray, schema: participation.MinSep
) -> Sensitivity:
  """The sensitivity of a C with gram matrix X = CᵀC.

  Under min-sep, a pattern π holds round i and rounds at least min_sep away, so
  Σ over i, j in π of |X[i, j]| is at most Σ over i in π of vᵢ, with vᵢ the most
  that |X[i, i]| plus allowed entries of row i add up to. The square root is
  taken once, of the outer maximum: rooting the inner ones too would understate
  the sensitivity.

  Args:
    gram: shape [num_rounds, num_rounds], symmetric.
    schema: a MinSep or a FixedSeparation.

  Raises:
    ValueError: where gram has another shape or values that are not finite.

  Source: Choquette-Choo et al. 2023, theorem 2 and algorithms 3 and 4; leaving
  out the entries of a row that are closer than min_sep makes the bound tighter,
  and exact where no other entry is left.
  """
  gram = np.asarray(gram, dtype=np.float64)
  if gram.shape != (schema.num_rounds, schema.num_rounds):
    raise ValueError(
        f'gram must be square with {schema.num_rounds} rows, got shape'
        f' {gram.shape}'
    )
  if not np.isfinite(gram).all():
    raise ValueError('gram must be finite')
  if isinstance(schema, participation.FixedSeparation):
    return _fixed_separation(gram, schema)
  if schema.participations == 2:
    return Sensitivity(math.sqrt(_worst_pair(gram, schema.min_sep)), EXACT)
  squares, exact = _row_maxima(gram, schema)
  value = math.sqrt(_worst_sum(squares, schema))
  return Sensitivity(value, EXACT if exact else UPPER_BOUND)


def _worst_pair(gram: np.ndarray, min_sep: int) -> float:
  """Largest X[i, i] + X[j, j] + 2 |X[i, j]| over j - i >= min_sep."""
  diagonal = np.diagonal(gram)
  worst = float(diagonal.max())
  for i in range(gram.shape[0] - min_sep):
    pairs = diagonal[i + min_sep :] + 2.0 * np.abs(gram[i, i + min_sep :])
    worst = max(worst, float(diagonal[i] + pairs.max()))
  return worst


def _row_maxima(
    gram: np.ndarray, schema: participation.MinSep
) -> tuple[np.ndarray, bool]:
  """vᵢ of `gram_sensitivity`, and whether every row has only its diagonal."""
  num_rounds, min_sep = schema.num_rounds, schema.min_sep
  diagonal = np.diagonal(gram).copy()
  others = schema.participations - 1
  if not others:
    return diagonal, True
  best, exact = np.empty(num_rounds), True
  rounds = np.arange(num_rounds)
  # A pattern with row i has room for one round fewer: where as many as fit are
  # allowed, that stays so, and `max_min_sep_sum` need not count them.
  if schema.participations == -(-num_rounds // min_sep):
    others = None
  chunk = max(1, _CHUNK_ENTRIES // (num_rounds + min_sep * (others or 1)))
  for start in range(0, num_rounds, chunk):
    rows = rounds[start : start + chunk]
    allowed = np.abs(rows[:, None] - rounds) >= min_sep
    entries = np.where(allowed, np.abs(gram[rows]), 0.0)
    if entries.any():
      exact = False
      best[rows] = max_min_sep_sum(entries, min_sep, others)
    else:
      best[rows] = 0.0
  return diagonal + best, exact


def _worst_sum(values: np.ndarray, schema: participation.MinSep) -> float:
  """Largest sum of values, at least 0, over one allowed pattern."""
  if isinstance(schema, participation.FixedSeparation):
    return float(repeated(values, schema.min_sep, schema.participations).max())
  return float(
      max_min_sep_sum(values[None], schema.min_sep, schema.participations)[0]
  )


def max_min_sep_sum(
    values: np.ndarray, min_sep: int, max_participations: int | None = None
) -> np.ndarray:
  """For each row, the largest sum over at most k entries at least b apart.

  F[i, m] = max(vᵢ + F[i + b, m − 1], F[i + 1, m]), 0 beyond the rounds, for all
  rows at once. Where k is None, as many as fit, the index m falls away.

  Args:
    values: shape [rows, num_rounds], at least 0.
    min_sep: b.
    max_participations: k; None for as many as fit.

  Returns:
    Shape [rows].

  Source: Choquette-Choo et al. 2023, algorithm VecSens, without its root.
  """
  num_rows, num_rounds = values.shape
  counted = (
      max_participations is not None
      and max_participations < -(-num_rounds // min_sep)
  )
  depth = max_participations if counted else 1
  # recent[i % b] is F[i, 1:], and before it is written F[i + b, 1:].
  recent = np.zeros((min_sep, depth, num_rows))
  after, nothing = np.zeros((depth, num_rows)), np.zeros((1, num_rows))
  columns = np.ascontiguousarray(values.T)
  for i in reversed(range(num_rounds)):
    earlier = recent[i % min_sep]
    if counted:
      earlier = np.concatenate([nothing, earlier[:-1]])
    after = np.maximum(columns[i] + earlier, after)
    recent[i % min_sep] = after
  return after[-1]


def _fixed_separation(
    gram: np.ndarray, schema: participation.FixedSeparation
) -> Sensitivity:
  """Every pattern is a run of rounds min_sep apart: a sum for each last one."""
  num_rounds, step, count = (
      schema.num_rounds, schema.min_sep, schema.participations,
  )
  total = repeated(np.diagonal(gram), step, count)
  exact = True
  for lag in range(1, count):
    entries = np.diagonal(gram, lag * step)
    exact = exact and (count == 2 or bool((entries >= 0.0).all()))
    total[lag * step :] += 2.0 * repeated(np.abs(entries), step, count - lag)
  return Sensitivity(
      math.sqrt(float(total.max())), EXACT if exact else UPPER_BOUND
  )


def pattern_sensitivity(
    strategy: base.Strategy,
    num_rounds: int,
    patterns: Sequence[Sequence[int]],
) -> tuple[np.ndarray, str]:
  """The sensitivity of each given pattern of rounds of one device.

  Args:
    strategy: C.
    num_rounds: n, rounds that consumed noise.
    patterns: for each, distinct rounds from 0 to num_rounds - 1.

  Returns:
    Values of shape [len(patterns)]; and 'exact' where X has no negative entry
    between two rounds of a pattern of three or more, otherwise 'upper_bound',
    for all of them.

  Raises:
    ValueError: for a round outside the rounds, or twice in a pattern, or more
      rounds than the strategy can run.
  """
  gram = gram_matrix(strategy, num_rounds)
  values, exact = np.zeros(len(patterns)), True
  by_length: dict[int, list[int]] = {}
  for index, pattern in enumerate(patterns):
    by_length.setdefault(len(pattern), []).append(index)
  for length, indices in by_length.items():
    if not length:
      continue
    chunk = max(1, _CHUNK_ENTRIES // length**2)
    for start in range(0, len(indices), chunk):
      part = indices[start : start + chunk]
      rounds = _checked_rounds([patterns[i] for i in part], num_rounds)
      entries = gram[rounds[:, :, None], rounds[:, None, :]]
      exact = exact and (length <= 2 or bool((entries >= 0.0).all()))
      values[part] = np.sqrt(np.abs(entries).sum(axis=(1, 2)))
  return values, EXACT if exact else UPPER_BOUND


def _checked_rounds(
    patterns: Sequence[Sequence[int]], num_rounds: int
) -> np.ndarray:
  rounds = np.sort(np.asarray(patterns), axis=1)
  if not np.issubdtype(rounds.dtype, np.integer):
    raise ValueError(f'patterns must hold whole rounds, got {rounds.dtype}')
  if rounds[:, 0].min() < 0 or rounds[:, -1].max() >= num_rounds:
    raise ValueError(
        f'patterns must lie in rounds 0 to {num_rounds - 1}, got rounds'
        f' {rounds[:, 0].min()} to {rounds[:, -1].max()}'
    )
  twice = (np.diff(rounds, axis=1) == 0).any(axis=1)
  if twice.any():
    raise ValueError(
        'a pattern must not hold a round twice, got'
        f' {rounds[twice][0].tolist()}'
    )
  return rounds
