"""Sensitivity of independent blocks: copies of one mechanism in a row.

X is block diagonal, so ‖C u‖² is a sum over blocks. The blocks of one device are coupled in two
ways. Its participations are limited in total, and the first one in a block is at least min_sep
after the last one in an earlier block.
"""

from collections.abc import Callable

import numpy as np
import scipy

from fl_dpftrl.mechanisms import schemas, workloads
from fl_dpftrl.mechanisms.sensitivities import gram_search, kinds, patterns

_GENERAL_ROUNDS = 4096  # most rounds for the bound for any X
_MOST_STEPS = 1 << 28  # most steps of an exact dynamic programme
_MOST_SPLITS = 4096  # most participations to split over the blocks


def sizes(num_rounds: int, block_rounds: int) -> list[int]:
  """Returns the rounds of each block; the last block may be cut short."""
  whole, rest = divmod(num_rounds, block_rounds)
  return [block_rounds] * whole + [rest] * bool(rest)


def gram_matrix(strategy: kinds.HasSensitivity, block_rounds: int, num_rounds: int) -> np.ndarray:
  """Returns X of the blocks side by side, shape [num_rounds, num_rounds]."""
  workloads.check_dense(num_rounds)
  return scipy.linalg.block_diag(*_grams(strategy, block_rounds, num_rounds))


def repeated(
  strategy: kinds.HasSensitivity, block_rounds: int, schema: schemas.Schema
) -> kinds.Sensitivity:
  """Returns the sensitivity under min-sep of a strategy repeated in blocks.

  The sensitivity is exact if a block has room for at most two participations, or if columns of
  one block that are min_sep or more apart are orthogonal. Otherwise it is a bound.

  Arguments are those of `mechanisms.base.Strategy.repeated_sensitivity`.
  """
  num_rounds, min_sep = schema.num_rounds, schema.min_sep
  within = min(schema.participations, -(-block_rounds // min_sep))
  if block_rounds <= workloads.MAX_DENSE_ROUNDS:
    blocks = _grams(strategy, block_rounds, num_rounds)
    if not any(np.tril(block, -min_sep).any() for block in {len(b): b for b in blocks}.values()):
      diagonal = np.concatenate([np.diagonal(block) for block in blocks])
      return kinds.Sensitivity.from_square(patterns.worst_sum(diagonal, schema))
    steps = num_rounds * block_rounds * schema.participations
    if within <= 2 and steps <= _MOST_STEPS:
      return kinds.Sensitivity.from_square(_worst_pairs(blocks, schema))
  bound = _best_split(strategy, block_rounds, schema)
  if num_rounds <= _GENERAL_ROUNDS and bound.kind != kinds.EXACT:
    general = gram_search.gram_sensitivity(gram_matrix(strategy, block_rounds, num_rounds), schema)
    bound = min(bound, general, key=lambda sensitivity: sensitivity.value)
  return bound


def worst_closest(
  block_rounds: int, schema: schemas.Schema, squares: Callable[[int], np.ndarray]
) -> kinds.Sensitivity | None:
  """Returns the sensitivity if the earliest, closest rounds are worst.

  In each block, such rounds also leave the most room for later blocks. So only the number of
  participations in each block has to be chosen.

  Args:
    squares: function count → [m], the worst square of a block whose first participation has m
      rounds after it.

  Returns:
    The exact value; None if it would take too long.
  """
  blocks = sizes(schema.num_rounds, block_rounds)
  if len(blocks) * schema.participations**3 > _MOST_STEPS:
    return None
  # Worst square so far, by participations so far and by rounds to wait from the start of a
  # block.
  states = {(0, 0): 0.0}
  for size in blocks:
    next_states: dict[tuple[int, int], float] = {}
    for (so_far, wait), square in states.items():
      for count in range(schema.participations - so_far + 1):
        if count and wait + (count - 1) * schema.min_sep >= size:
          break
        total = square + (squares(count)[size - wait - 1] if count else 0.0)
        state = so_far + count, max(0, wait + count * schema.min_sep - size)
        next_states[state] = max(next_states.get(state, 0.0), total)
    states = next_states
  return kinds.Sensitivity.from_square(max(states.values()))


def _grams(strategy: kinds.HasSensitivity, block_rounds: int, num_rounds: int) -> list[np.ndarray]:
  """Returns X of each block; blocks of one size share an array."""
  every = sizes(num_rounds, block_rounds)
  grams = {size: strategy.gram_matrix(size) for size in set(every)}
  return [grams[size] for size in every]


def _worst_pairs(blocks: list[np.ndarray], schema: schemas.Schema) -> float:
  """Worst ‖C u‖² if each block has room for at most two participations.

  best[i, m] is the worst with m participations from round i on. A pattern from i on leaves i
  out, or has only i in its block, or i and one later round of its block. Two rounds of a block
  count at least as much as a pair as they do singly. So it does no harm that a round counted
  singly leaves room for a second.
  """
  num_rounds, min_sep = schema.num_rounds, schema.min_sep
  most = schema.participations
  best = np.zeros((num_rounds + min_sep + 1, most + 1))
  end = num_rounds
  for block in reversed(blocks):
    size = len(block)
    start = end - size
    diagonal = np.diagonal(block)
    for i in reversed(range(size)):
      worst = best[start + i]
      worst[:] = best[start + i + 1]
      single = diagonal[i] + best[start + i + min_sep, :-1]
      worst[1:] = np.maximum(worst[1:], single)
      if i + min_sep < size and most > 1:
        later = np.arange(i + min_sep, size)
        pairs = diagonal[i] + diagonal[later] + 2.0 * np.abs(block[i, later])
        next_rounds = np.minimum(start + later + min_sep, num_rounds)
        both = pairs[:, None] + best[next_rounds, : most - 1]
        worst[2:] = np.maximum(worst[2:], both.max(axis=0))
    end = start
  return float(best[0].max())


def _best_split(
  strategy: kinds.HasSensitivity, block_rounds: int, schema: schemas.Schema
) -> kinds.Sensitivity:
  """Returns a bound that ignores min-sep between blocks, not within them."""
  blocks = sizes(schema.num_rounds, block_rounds)
  exact = schema.participations == 1

  def squares(size: int) -> np.ndarray:
    """[m]: the worst square with up to m participations in a block."""
    nonlocal exact
    most = min(schema.participations, -(-size // schema.min_sep))
    counts = range(1, most + 1) if splits else [most]
    values = []
    for count in counts:
      within = schemas.Schema(num_rounds=size, min_sep=schema.min_sep, max_participations=count)
      inner = strategy.sensitivity(within)
      if inner.kind == kinds.LOWER_BOUND:  # A lower bound is of no use here.
        inner = gram_search.gram_sensitivity(strategy.gram_matrix(size), within)
      exact = exact and inner.kind == kinds.EXACT
      values.append(inner.value**2)
    return np.maximum.accumulate([0.0, *values])

  def both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    size = min(first.size + second.size - 1, schema.participations + 1)
    return patterns.most_of_both(first, second, size)

  splits = schema.participations <= _MOST_SPLITS
  rest = blocks[-1] if blocks[-1] < block_rounds else 0
  count = len(blocks) - bool(rest)
  power, total = squares(block_rounds), squares(rest) if rest else np.zeros(1)
  if not splits:  # Every block gets as many as fit into it.
    return kinds.Sensitivity.from_square(count * power[-1] + total[-1], exact=False)
  while count:
    if count & 1:
      total = both(total, power)
    count >>= 1
    if count:
      power = both(power, power)
  return kinds.Sensitivity.from_square(total[-1], exact)
