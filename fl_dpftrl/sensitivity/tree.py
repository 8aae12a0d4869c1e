"""Sensitivity of tree strategies: X counts the nodes that hold both rounds."""

import functools
import math
from typing import Iterator

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import stamped
from fl_dpftrl.families import tree_full
from fl_dpftrl.families import tree_online
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch
from fl_dpftrl.sensitivity import entries
from fl_dpftrl.sensitivity import gram
from fl_dpftrl.sensitivity import nested
from fl_dpftrl.sensitivity import stamped as stamped_sensitivity

_GENERAL_ROUNDS = 4096  # up to so many, the bound for any X is computed as well


@dispatch.sensitivity.register
def _(
    strategy: tree_online.TreeOnline, schema: participation.MinSep
) -> base.Sensitivity:
  strategies.check_num_rounds(strategy, schema.num_rounds)
  if isinstance(schema, participation.FixedSeparation):
    square = _worst_of_fixed_separation(strategy, schema)
    return base.Sensitivity(math.sqrt(square), base.EXACT)
  return _of_block(_block(strategy, schema.num_rounds), schema)


@dispatch.sensitivity.register
def _(
    strategy: tree_full.TreeFull, schema: participation.MinSep
) -> base.Sensitivity:
  planned = strategy.planned_rounds(schema.num_rounds)
  if schema.num_rounds == planned:
    return dispatch.sensitivity(tree_online.TreeOnline(), schema)
  # A run that ends early has had part of the rows of C: no more than all.
  min_sep = participation.MinSep(
      num_rounds=schema.num_rounds,
      min_sep=schema.min_sep,
      max_participations=schema.max_participations,
  )
  whole = _of_block(_block(strategy, schema.num_rounds), min_sep)
  bound = base.Sensitivity(whole.value, base.UPPER_BOUND)
  if schema.num_rounds > _GENERAL_ROUNDS:
    return bound
  matrix = gram.gram_matrix(strategy, schema.num_rounds)
  return base.better(bound, gram.gram_sensitivity(matrix, schema))


@stamped_sensitivity.repeated.register
def _(
    strategy: tree_online.TreeOnline,
    whole: stamped.Stamped,
    schema: participation.MinSep,
) -> base.Sensitivity:
  return _of_blocks(strategy, whole, schema)


@stamped_sensitivity.repeated.register
def _(
    strategy: tree_full.TreeFull,
    whole: stamped.Stamped,
    schema: participation.MinSep,
) -> base.Sensitivity:
  found = _of_blocks(strategy, whole, schema)
  if all(
      strategy.planned_rounds(size) == size
      for size in set(whole.blocks(schema.num_rounds))
  ):
    return found
  return base.Sensitivity(found.value, base.UPPER_BOUND)


def _of_blocks(
    strategy: tree_online.TreeOnline | tree_full.TreeFull,
    whole: stamped.Stamped,
    schema: participation.MinSep,
) -> base.Sensitivity:
  count, rest = divmod(schema.num_rounds, whole.block_rounds)
  block = nested.repeated(_block(strategy, whole.block_rounds), count)
  if rest:
    block = nested.beside(block, _block(strategy, rest))
  return _of_block(block, schema)


def _of_block(
    block: nested.Block, schema: participation.MinSep
) -> base.Sensitivity:
  square, exact = nested.worst_square(block, schema)
  return base.Sensitivity(
      math.sqrt(square), base.EXACT if exact else base.UPPER_BOUND
  )


@functools.singledispatch
def _block(
    strategy: tree_online.TreeOnline | tree_full.TreeFull, num_rounds: int
) -> nested.Block:
  """The rounds with the nodes over them: complete trees side by side."""
  raise TypeError(f'not a tree: {strategy!r}')


@_block.register
def _(strategy: tree_online.TreeOnline, num_rounds: int) -> nested.Block:
  strategies.check_num_rounds(strategy, num_rounds)
  if num_rounds == strategy.completed_after:
    tops = nested.trees((num_rounds - 1).bit_length())
    return nested.first_rounds(tops[-1], num_rounds)
  return nested.forest(num_rounds)


@_block.register
def _(strategy: tree_full.TreeFull, num_rounds: int) -> nested.Block:
  planned = strategy.planned_rounds(num_rounds)
  return nested.first_rounds(nested.forest(planned), num_rounds)


@gram.gram_matrix.register
def _(strategy: tree_online.TreeOnline, num_rounds: int) -> np.ndarray:
  strategies.check_num_rounds(strategy, num_rounds)
  workloads.check_dense(num_rounds)
  total = np.zeros((num_rounds, num_rounds))
  for ids in _node_ids(strategy, num_rounds, np.arange(num_rounds)):
    starts = np.flatnonzero(np.diff(ids, prepend=-2))
    for start, end in zip(starts, [*starts[1:], num_rounds]):
      if ids[start] >= 0:
        total[start:end, start:end] += 1.0
  return total


@gram.gram_matrix.register
def _(strategy: tree_full.TreeFull, num_rounds: int) -> np.ndarray:
  if strategy.planned_rounds(num_rounds) == num_rounds:
    return gram.gram_matrix(tree_online.TreeOnline(), num_rounds)
  return gram.gram_matrix.dispatch(object)(strategy, num_rounds)


@entries.gram_entries.register
def _(strategy: tree_online.TreeOnline, num_rounds: int) -> entries.Entries:
  strategies.check_num_rounds(strategy, num_rounds)

  def of_rounds(rows, columns):
    both = zip(
        _node_ids(strategy, num_rounds, rows),
        _node_ids(strategy, num_rounds, columns),
    )
    return sum((i == j) & (i >= 0) for i, j in both).astype(np.float64)

  return of_rounds


@entries.gram_entries.register
def _(strategy: tree_full.TreeFull, num_rounds: int) -> entries.Entries:
  if strategy.planned_rounds(num_rounds) == num_rounds:
    return entries.gram_entries(tree_online.TreeOnline(), num_rounds)
  return entries.gram_entries.dispatch(object)(strategy, num_rounds)


def _node_ids(
    strategy: tree_online.TreeOnline, num_rounds: int, rounds: np.ndarray
) -> Iterator[np.ndarray]:
  """For each height, the node over each round; −1 where C has no such row."""
  completed = num_rounds == strategy.completed_after
  last = num_rounds - 1 if completed else num_rounds
  for height in range(last.bit_length() + completed):
    ids = rounds >> height
    yield ids if completed else np.where(
        (ids + 1) << height <= num_rounds, ids, -1
    )


def _worst_of_fixed_separation(
    strategy: tree_online.TreeOnline, schema: participation.FixedSeparation
) -> int:
  """Largest ‖C u‖² over runs of rounds min_sep apart, in O(n log n)."""
  num_rounds, count = schema.num_rounds, schema.participations
  rounds = np.arange(num_rounds)
  remainders = rounds % schema.min_sep
  order = np.argsort(remainders, kind='stable')
  remainders = remainders[order]
  # Patterns from `rounds` to `last` in this order, as long as they can be.
  last = np.searchsorted(remainders, remainders, side='right') - 1
  last = np.minimum(last, rounds + count - 1)
  totals = np.zeros(num_rounds, np.int64)
  for ids in _node_ids(strategy, num_rounds, order):
    new = np.diff(remainders, prepend=-1) != 0
    new |= np.diff(ids, prepend=-2) != 0
    run, starts = np.cumsum(new) - 1, np.flatnonzero(new)
    ends = np.append(starts[1:], num_rounds)
    counted = ids >= 0
    squares = np.cumsum((ends - starts) ** 2 * counted[starts])
    within = (last - rounds + 1) ** 2 * counted
    across = (ends[run] - rounds) ** 2 * counted
    across += (last - starts[run[last]] + 1) ** 2 * counted[last]
    across += squares[run[last] - 1] - squares[run]
    totals += np.where(run == run[last], within, across)
  return int(totals.max())
