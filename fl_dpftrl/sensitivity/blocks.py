"""Sensitivity of independent blocks: copies of one mechanism in a row.

X is block diagonal, so ‖C u‖² is a sum over blocks. The blocks of one device are coupled in two
ways. Its participations are limited in total, and the first one in a block is at least min_sep
after the last one in an earlier block.
"""

import math
from collections.abc import Callable

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.participation import schemas
from fl_dpftrl.sensitivity import base, gram, patterns

_GENERAL_ROUNDS = 4096  # most rounds for the bound for any X
_MOST_STEPS = 1 << 28  # most steps of an exact dynamic programme
_MOST_SPLITS = 4096  # most participations to split over the blocks


def sizes(num_rounds: int, block_rounds: int) -> list[int]:
  """Returns the rounds of each block; the last block may be cut short."""
  whole, rest = divmod(num_rounds, block_rounds)
  return [block_rounds] * whole + [rest] * bool(rest)


def gram_matrix(strategy: base.Mechanism, block_rounds: int, num_rounds: int) -> np.ndarray:
  """Returns X of the blocks side by side, shape [num_rounds, num_rounds].

  Raises:
    ValueError: if num_rounds is too many for a dense matrix.
  """
  workloads.check_dense(num_rounds)
  total = np.zeros((num_rounds, num_rounds))
  start = 0
  for size, block in _grams(strategy, block_rounds, num_rounds):
    total[start : start + size, start : start + size] = block
    start += size
  return total


def repeated(
  strategy: base.Mechanism, block_rounds: int, schema: schemas.MinSep
) -> base.Sensitivity:
  """Returns the sensitivity under min-sep of a strategy repeated in blocks.

  The sensitivity is exact if a block has room for at most two participations, or if columns of
  one block that are min_sep or more apart are orthogonal. Otherwise it is a bound.

  Args:
    strategy: the strategy that is repeated.
    block_rounds: rounds of a block; the last may be cut short.
    schema: min-sep schema with more rounds than a block.
  """
  num_rounds, min_sep = schema.num_rounds, schema.min_sep
  within = min(schema.participations, -(-block_rounds // min_sep))
  if block_rounds <= workloads.MAX_DENSE_ROUNDS:
    blocks = _grams(strategy, block_rounds, num_rounds)
    diagonal = np.concatenate([np.diagonal(block) for _, block in blocks])
    if not any(np.tril(block, -min_sep).any() for block in dict(blocks).values()):
      square = patterns.worst_sum(diagonal, schema)
      return base.Sensitivity(math.sqrt(square), base.EXACT)
    steps = num_rounds * block_rounds * schema.participations
    if within <= 2 and steps <= _MOST_STEPS:
      square = _worst_pairs(blocks, schema)
      return base.Sensitivity(math.sqrt(square), base.EXACT)
  bound = _best_split(strategy, block_rounds, schema)
  if num_rounds <= _GENERAL_ROUNDS and bound.kind != base.EXACT:
    general = gram.gram_sensitivity(gram_matrix(strategy, block_rounds, num_rounds), schema)
    bound = min(bound, general, key=lambda sensitivity: sensitivity.value)
  return bound


def worst_closest(
  block_rounds: int, schema: schemas.MinSep, squares: Callable[[int], np.ndarray]
) -> base.Sensitivity | None:
  """Returns the sensitivity if the earliest, closest rounds are worst.

  In each block, such rounds also leave the most room for later blocks. So only the number of
  participations in each block has to be chosen.

  Args:
    block_rounds: rounds of a block.
    schema: min-sep schema.
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
    after: dict[tuple[int, int], float] = {}
    for (taken, wait), square in states.items():
      for count in range(schema.participations - taken + 1):
        if count and wait + (count - 1) * schema.min_sep >= size:
          break
        total = square
        if count:
          total += squares(count)[size - wait - 1]
        state = taken + count, max(0, wait + count * schema.min_sep - size)
        after[state] = max(after.get(state, 0.0), total)
    states = after
  return base.Sensitivity(math.sqrt(max(states.values())), base.EXACT)


def _grams(
  strategy: base.Mechanism, block_rounds: int, num_rounds: int
) -> list[tuple[int, np.ndarray]]:
  """Returns size and X of each block; blocks of one size share an array."""
  found = sizes(num_rounds, block_rounds)
  known = {size: strategy.gram_matrix(size) for size in set(found)}
  return [(size, known[size]) for size in found]


def _worst_pairs(blocks: list[tuple[int, np.ndarray]], schema: schemas.MinSep) -> float:
  """Worst ‖C u‖² if each block has room for at most two participations.

  best[i, m] is the worst with m participations from round i on. A pattern from i on leaves i
  out, or has i alone in its block, or i and one later round of its block. Two rounds of a block
  count at least as much as a pair as they do singly. So it does no harm that a round counted
  alone leaves room for a second.
  """
  num_rounds, min_sep = schema.num_rounds, schema.min_sep
  most = schema.participations
  best = np.zeros((num_rounds + min_sep + 1, most + 1))
  end = num_rounds
  for size, block in reversed(blocks):
    start = end - size
    diagonal = np.diagonal(block)
    for i in reversed(range(size)):
      found = best[start + i + 1].copy()
      alone = diagonal[i] + best[start + i + min_sep, :-1]
      found[1:] = np.maximum(found[1:], alone)
      if i + min_sep < size and most > 1:
        later = np.arange(i + min_sep, size)
        pairs = diagonal[i] + diagonal[later] + 2.0 * np.abs(block[i, later])
        after = np.minimum(start + later + min_sep, num_rounds)
        both = pairs[:, None] + best[after, : most - 1]
        found[2:] = np.maximum(found[2:], both.max(axis=0))
      best[start + i] = found
    end = start
  return float(best[0].max())


def _best_split(
  strategy: base.Mechanism, block_rounds: int, schema: schemas.MinSep
) -> base.Sensitivity:
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
      within = schemas.MinSep(num_rounds=size, min_sep=schema.min_sep, max_participations=count)
      found = strategy.sensitivity(within)
      if found.kind == base.LOWER_BOUND:  # A lower bound is of no use here.
        found = gram.gram_sensitivity(strategy.gram_matrix(size), within)
      exact = exact and found.kind == base.EXACT
      values.append(found.value**2)
    return np.maximum.accumulate([0.0, *values])

  splits = schema.participations <= _MOST_SPLITS
  rest = blocks[-1] if blocks[-1] < block_rounds else 0
  count = len(blocks) - bool(rest)
  power, total = squares(block_rounds), squares(rest) if rest else np.zeros(1)
  if not splits:  # Every block gets as many as fit into it.
    square = count * power[-1] + total[-1]
    return base.Sensitivity(math.sqrt(square), base.UPPER_BOUND)
  while count:
    if count & 1:
      total = _most_of_both(total, power, schema.participations)
    count >>= 1
    if count:
      power = _most_of_both(power, power, schema.participations)
  return base.Sensitivity(math.sqrt(total[-1]), base.EXACT if exact else base.UPPER_BOUND)


def _most_of_both(left: np.ndarray, right: np.ndarray, most: int) -> np.ndarray:
  """[m]: the largest left[i] + right[j] with i + j = m."""
  size = min(left.size + right.size - 1, most + 1)
  result = np.zeros(size)
  for i, value in enumerate(left[:size]):
    part = right[: size - i]
    result[i : i + part.size] = np.maximum(result[i : i + part.size], value + part)
  return result
