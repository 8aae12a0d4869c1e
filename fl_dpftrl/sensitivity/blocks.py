"""Sensitivity of stamped strategies.

X is block diagonal, so ‖C u‖² is a sum over blocks. What ties the blocks of one
device together is its number of participations, and that the first ones in a
block are min_sep after the last ones in an earlier one.
"""

import functools
import math
from typing import Callable

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import blt
from fl_dpftrl.families import stamped
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch
from fl_dpftrl.sensitivity import gram
from fl_dpftrl.sensitivity import patterns

_GENERAL_ROUNDS = 4096  # up to so many, the bound for any X is computed as well
_MOST_STEPS = 1 << 28  # of an exact programme; beyond, it is not run
_MOST_SPLITS = 4096  # participations whose splits over the blocks are tried


@dispatch.sensitivity.register
def _(
    strategy: stamped.Stamped, schema: participation.MinSep
) -> base.Sensitivity:
  if schema.num_rounds <= strategy.block_rounds:
    return dispatch.sensitivity(strategy.strategy, schema)
  if isinstance(schema, participation.FixedSeparation):
    if schema.num_rounds <= workloads.MAX_DENSE_ROUNDS:
      return gram.gram_sensitivity(
          gram.gram_matrix(strategy, schema.num_rounds), schema
      )
    # Patterns of fixed separation are patterns of min-sep.
    bound = repeated(strategy.strategy, strategy, _min_sep(schema))
    return base.Sensitivity(bound.value, base.UPPER_BOUND)
  return repeated(strategy.strategy, strategy, schema)


@gram.gram_matrix.register
def _(strategy: stamped.Stamped, num_rounds: int) -> np.ndarray:
  workloads.check_dense(num_rounds)
  total = np.zeros((num_rounds, num_rounds))
  start = 0
  for size, block in _grams(strategy, num_rounds):
    total[start : start + size, start : start + size] = block
    start += size
  return total


@functools.singledispatch
def repeated(
    strategy: strategies.Strategy,
    whole: stamped.Stamped,
    schema: participation.MinSep,
) -> base.Sensitivity:
  """The sensitivity under min-sep of a strategy that is stamped.

  Exact where a block has room for one participation or two, or two in one block
  have nothing in common; otherwise a bound. Families that know better register
  their own.

  Args:
    strategy: what is repeated, by whose family this is dispatched.
    whole: the stamped strategy.
    schema: with more rounds than a block.
  """
  num_rounds, min_sep = schema.num_rounds, schema.min_sep
  within = min(schema.participations, -(-whole.block_rounds // min_sep))
  if whole.block_rounds <= workloads.MAX_DENSE_ROUNDS:
    blocks = _grams(whole, num_rounds)
    diagonal = np.concatenate([np.diagonal(block) for _, block in blocks])
    if not any(
        np.tril(block, -min_sep).any() for block in dict(blocks).values()
    ):
      square = patterns.worst_sum(diagonal, schema)
      return base.Sensitivity(math.sqrt(square), base.EXACT)
    steps = num_rounds * whole.block_rounds * schema.participations
    if within <= 2 and steps <= _MOST_STEPS:
      square = _worst_pairs(blocks, schema)
      return base.Sensitivity(math.sqrt(square), base.EXACT)
  bound = _best_split(strategy, whole, schema)
  if num_rounds <= _GENERAL_ROUNDS and bound.kind != base.EXACT:
    general = gram.gram_sensitivity(gram.gram_matrix(whole, num_rounds), schema)
    bound = min(bound, general, key=lambda sensitivity: sensitivity.value)
  return bound


@repeated.register
def _(
    strategy: blt.BLT, whole: stamped.Stamped, schema: participation.MinSep
) -> base.Sensitivity:
  """In any block, the earliest and closest rounds are the worst.

  They also leave the most room for the blocks after it, so that only how many
  participations each block gets is left to choose.
  """
  blocks = whole.blocks(schema.num_rounds)
  most = schema.participations
  if len(blocks) * most**3 > _MOST_STEPS:
    return repeated.dispatch(object)(strategy, whole, schema)

  @functools.cache
  def squares(count: int) -> np.ndarray:
    """[m]: ‖Σ of `count` columns‖² where m + 1 rows follow the first."""
    column = patterns.repeated(
        strategy.coefficients(whole.block_rounds), schema.min_sep, count
    )
    return np.cumsum(np.square(column))

  square = _worst_closest(blocks, schema, squares)
  return base.Sensitivity(math.sqrt(square), base.EXACT)


def _min_sep(schema: participation.MinSep) -> participation.MinSep:
  return participation.MinSep(
      num_rounds=schema.num_rounds,
      min_sep=schema.min_sep,
      max_participations=schema.max_participations,
  )


def _grams(
    strategy: stamped.Stamped, num_rounds: int
) -> list[tuple[int, np.ndarray]]:
  """Size and X of each block; those of one size are one array."""
  sizes = strategy.blocks(num_rounds)
  known = {
      size: gram.gram_matrix(strategy.strategy, size) for size in set(sizes)
  }
  return [(size, known[size]) for size in sizes]


def _worst_pairs(
    blocks: list[tuple[int, np.ndarray]], schema: participation.MinSep
) -> float:
  """The worst ‖C u‖² where a block has room for at most two participations.

  best[i, m] is the worst with m participations from round i on. A pattern from
  i on leaves i out, or has i alone in its block, or i and one later round of
  its block. Two rounds are never worse apart than together, so it does no harm
  that "alone" leaves room for a second.
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


def _worst_closest(
    blocks: list[int],
    schema: participation.MinSep,
    squares: Callable[[int], np.ndarray],
) -> float:
  """The worst ‖C u‖² over how many participations each block gets.

  Args:
    blocks: rounds of each.
    schema: min-sep.
    squares: count → [m], the worst of a block whose first participation has m
      rounds after it.
  """
  # (participations so far, rounds to wait from a block's start): worst so far.
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
  return max(states.values())


def _best_split(
    strategy: strategies.Strategy,
    whole: stamped.Stamped,
    schema: participation.MinSep,
) -> base.Sensitivity:
  """A bound: min-sep is left out between blocks, and kept within them."""
  sizes = whole.blocks(schema.num_rounds)
  exact = schema.participations == 1

  def squares(size: int) -> np.ndarray:
    """[m]: the worst square with up to m participations in a block."""
    nonlocal exact
    most = min(schema.participations, -(-size // schema.min_sep))
    counts = range(1, most + 1) if splits else [most]
    values = []
    for count in counts:
      found = dispatch.sensitivity(
          strategy,
          participation.MinSep(
              num_rounds=size,
              min_sep=schema.min_sep,
              max_participations=count,
          ),
      )
      exact = exact and found.kind == base.EXACT
      values.append(found.value**2)
    return np.maximum.accumulate([0.0, *values])

  splits = schema.participations <= _MOST_SPLITS
  rest = sizes[-1] if sizes[-1] < whole.block_rounds else 0
  count = len(sizes) - bool(rest)
  power, last = squares(whole.block_rounds), squares(rest) if rest else None
  if not splits:  # every block gets as many as fit into it
    square = count * power[-1] + (last[-1] if rest else 0.0)
    return base.Sensitivity(math.sqrt(square), base.UPPER_BOUND)
  total = last if rest else np.zeros(1)
  while count:
    if count & 1:
      total = _most_of_both(total, power, schema.participations)
    count >>= 1
    if count:
      power = _most_of_both(power, power, schema.participations)
  return base.Sensitivity(
      math.sqrt(total[-1]), base.EXACT if exact else base.UPPER_BOUND
  )


def _most_of_both(
    left: np.ndarray, right: np.ndarray, most: int
) -> np.ndarray:
  """[m]: the largest left[i] + right[j] with i + j = m."""
  size = min(left.size + right.size - 1, most + 1)
  result = np.zeros(size)
  for i, value in enumerate(left[:size]):
    part = right[: size - i]
    result[i : i + part.size] = np.maximum(
        result[i : i + part.size], value + part
    )
  return result
