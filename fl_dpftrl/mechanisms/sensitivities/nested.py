"""The exact worst pattern if C counts rounds in nested blocks.

The rows of a tree's C are ones on blocks of rounds, any two of which are nested or disjoint. So
‖C u‖² of a pattern is the sum over the blocks of its squared count in them. A block depends on
the rounds before it only by how long a device must still wait, and it affects the rounds after
it in the same way.

Let a device enter a block with a wait of w rounds and take part m times in it. Its rounds are then
the earliest that an assignment of rounds to smaller blocks allows. The wait on leaving is max(c, w
+ m·b − length), for every w up to some x, since only maxima and sums occur. So an assignment is
described by three whole numbers (square, c, x), and two blocks side by side join by

    c = max(c₂, c₁ + m₂·b − length₂),  x = min(x₁, x₂ − m₁·b + length₁),

where c₁ ≤ x₂. Few such triples are undominated, and few of those reach the best known value.
The bound on the rest of the run ignores waits between blocks, so it is a sum over only counts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.mechanisms.sensitivities import kinds, patterns

_MOST_SPLITS = 1 << 30  # most splits of counts, for bounds without waits
_MOST_JOINS = 1 << 24  # most joins of triples
_IMPOSSIBLE = -(1 << 60)


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
  """Successive rounds; equal blocks may share one object."""

  length: int
  halves: 'tuple[Block, Block] | None' = None  # left and right part; None for a single round
  nodes: int = 1  # rows of C that are ones on exactly these rounds


class _Triples(NamedTuple):
  """Assignments of one block and count, as three arrays of one shape."""

  square: np.ndarray
  least: np.ndarray  # c
  latest: np.ndarray  # x


def beside(first: Block, second: Block, nodes: int = 0) -> Block:
  """Joins two blocks side by side, with rows of C over both."""
  return Block(first.length + second.length, (first, second), nodes)


def repeated(block: Block, count: int) -> Block:
  """Repeats a block count times."""
  parts, power = [], block
  while True:
    if count & 1:
      parts.append(power)
    count >>= 1
    if not count:
      return functools.reduce(beside, parts)
    power = beside(power, power)


def trees(height: int) -> list[Block]:
  """Returns complete binary trees up to a height, a node over every block."""
  result = [Block(1)]
  for _ in range(height):
    result.append(beside(result[-1], result[-1], 1))
  return result


def forest(num_rounds: int) -> Block:
  """Returns complete binary trees side by side, the largest first."""
  complete = reversed(trees(num_rounds.bit_length() - 1))
  return functools.reduce(beside, [tree for tree in complete if num_rounds & tree.length])


def first_rounds(block: Block, length: int) -> Block:
  """Keeps a block's nodes, but allows participation in early rounds only."""
  if length == block.length or block.halves is None:
    return block
  first, second = block.halves
  if length > first.length:
    return beside(first, first_rounds(second, length - first.length), block.nodes)
  part = first_rounds(first, length)
  return dataclasses.replace(part, nodes=part.nodes + block.nodes)


def block_sensitivity(block: Block, schema: schemas.Schema) -> kinds.Sensitivity:
  """Returns the sensitivity of a C whose rows are a block's nodes; a MinSep."""
  return kinds.Sensitivity.from_square(*worst_square(block, schema))


def repeated_sensitivity(
  blocks: Callable[[int], Block], block_rounds: int, schema: schemas.Schema
) -> kinds.Sensitivity:
  """Returns the sensitivity of copies of such a C, one after the other.

  Args:
    blocks: maps a number of rounds to the nodes over that many rounds of a copy.
    block_rounds: rounds of each copy; the last may be cut short.
  """
  count, rest = divmod(schema.num_rounds, block_rounds)
  block = repeated(blocks(block_rounds), count)
  if rest:
    block = beside(block, blocks(rest))
  return block_sensitivity(block, schema)


def worst_square(block: Block, schema: schemas.Schema) -> tuple[int, bool]:
  """Returns the largest ‖C u‖² over min-sep patterns, and whether it is exact.

  The first rounds, as close as allowed, are often the worst pattern, but not always. Example: a
  tree of 16 rounds, with 5 participations 3 apart. Rounds 1, 4, 7, 12, 15 give 57, and rounds
  0, 3, 6, 9, 12 give 55.

  Args:
    block: block of all rounds of the schema.

  Returns:
    A whole number that is at least the largest square, and whether it is the largest. It may
    not be for tens of thousands of participations.
  """
  if block.length != schema.num_rounds:
    raise ValueError(f'block must have {schema.num_rounds} rounds, got {block.length}')
  search = _Search(block, schema.min_sep, schema.participations)
  reached = search.first_rounds()
  bound = search.greedy_bound()
  if reached == bound:
    return bound, True
  if search.num_splits() > _MOST_SPLITS:
    return bound, False
  search.relax()
  bound = min(bound, int(search.inside[block].max()))
  if reached == bound:
    return bound, True
  result = search.worst(reached)
  return (bound, False) if result is None else (result, True)


class _Search:
  """The search for the worst pattern of one block."""

  def __init__(self, block: Block, min_sep: int, most: int):
    self.root, self.min_sep, self.most = block, min_sep, most
    self.order: list[Block] = []  # halves before their block
    self._visit(block)

  def _visit(self, block: Block):
    if block not in self.order:
      for half in block.halves or ():
        self._visit(half)
      self.order.append(block)

  def _fits(self, block: Block) -> int:
    return min(self.most, -(-block.length // self.min_sep))

  def first_rounds(self) -> int:
    """Returns the square of rounds 0, b, 2b, …, which is a lower bound."""

    @functools.cache
    def square(block: Block, wait: int, count: int) -> int:
      if not count:
        return 0
      total = block.nodes * count**2
      if block.halves:
        first, second = block.halves
        in_first = min(count, max(0, -((wait - first.length) // self.min_sep)))
        rest_wait = wait + in_first * self.min_sep - first.length
        total += square(first, wait, in_first)
        total += square(second, max(0, rest_wait), count - in_first)
      return total

    return square(self.root, 0, self.most)

  def greedy_bound(self) -> int:
    """Returns an upper bound that fills each kind of block on its own."""
    occurrences = dict.fromkeys(self.order, 0)
    occurrences[self.root] = 1
    total = 0
    for block in reversed(self.order):
      for half in block.halves or ():
        occurrences[half] += occurrences[block]
      fits = self._fits(block)
      full = min(self.most // fits, occurrences[block])
      rest = self.most - full * fits if full < occurrences[block] else 0
      total += block.nodes * (full * fits**2 + rest**2)
    return total

  def num_splits(self) -> int:
    return sum(
      (self._fits(block.halves[0]) + 1) * (self._fits(block.halves[1]) + 1)
      for block in self.order
      if block.halves
    )

  def relax(self):
    """Computes bounds by counts: inside a block with m participations, and outside for the rest."""
    self.inside: dict[Block, np.ndarray] = {}
    for block in self.order:
      counts = np.arange(self._fits(block) + 1)
      squares = block.nodes * counts**2
      if block.halves:
        first, second = (self.inside[half] for half in block.halves)
        squares = squares + patterns.most_of_both(first, second, counts.size)
      self.inside[block] = squares
    self.outside = {block: np.full(self._fits(block) + 1, _IMPOSSIBLE) for block in self.order}
    self.outside[self.root][:] = 0
    for block in reversed(self.order):
      if block.halves:
        first, second = block.halves
        rest = self.outside[block] + block.nodes * np.arange(self._fits(block) + 1) ** 2
        for half, other in {first: second, second: first}.items():
          outside = self.outside[half]
          np.maximum(outside, _most_beside(rest, self.inside[other], outside.size), out=outside)

  def worst(self, reached: int) -> int | None:
    """Returns the exact value, at least `reached`; None if it takes long."""
    joins, longest = 0, self.min_sep - 1
    states: dict[Block, dict[int, _Triples]] = {}
    for block in self.order:
      if not block.halves:
        leaf = {0: (0, 0, longest), 1: (block.nodes, longest, 0)}
        states[block] = {m: _Triples(*np.array(values)[:, None]) for m, values in leaf.items()}
        continue
      first, second = block.halves
      states[block] = {}
      for count in range(self._fits(block) + 1):
        needed = reached - self.outside[block][count]
        if self.inside[block][count] < needed:
          continue
        result = []
        for m, first_triples in states[first].items():
          second_triples = states[second].get(count - m)
          if second_triples is None:
            continue
          joins += first_triples.square.size * second_triples.square.size
          if joins > _MOST_JOINS:
            return None
          result.append(self._join(block, first_triples, second_triples, m, count - m, needed))
        if any(triples.square.size for triples in result):
          triples = _Triples(*(np.concatenate(part) for part in zip(*result)))
          reach = count * self.min_sep - block.length
          states[block][count] = _undominated(triples, reach)
    # The assignment of the first rounds is never left out.
    return max(int(t.square.max()) for t in states[self.root].values())

  def _join(
    self, block: Block, first: _Triples, second: _Triples, m_1: int, m_2: int, needed: int
  ) -> _Triples:
    """Returns the triples that are not below `needed` of both halves side by side."""
    b, (first_half, second_half) = self.min_sep, cast(tuple[Block, Block], block.halves)
    square = first.square[:, None] + second.square
    square += block.nodes * (m_1 + m_2) ** 2
    least = np.maximum(second.least, first.least[:, None] + m_2 * b - second_half.length)
    # Waits from 0 on give the rest of the maximum.
    least = np.maximum(least, max(0, (m_1 + m_2) * b - block.length))
    latest = np.minimum(first.latest[:, None], second.latest - m_1 * b + first_half.length)
    latest = np.minimum(latest, b - 1)
    valid = (first.least[:, None] <= second.latest) & (latest >= 0)
    valid &= square >= needed
    return _Triples(square[valid], least[valid], latest[valid])


def _most_beside(whole: np.ndarray, other: np.ndarray, size: int) -> np.ndarray:
  """[m]: the largest whole[m + j] + other[j], shape [size]."""
  total = np.full(size, _IMPOSSIBLE)
  if size < other.size:
    for m in range(min(size, whole.size)):
      part = whole[m : m + other.size]
      total[m] = np.max(part + other[: part.size])
  else:
    for j, value in enumerate(other[: whole.size]):
      part = whole[j : j + size]
      np.maximum(total[: part.size], part + value, out=total[: part.size])
  return total


def _undominated(triples: _Triples, reach: int) -> _Triples:
  """Drops triples of one block and count m that others dominate; reach is m·b − length."""
  order = np.lexsort((triples.least, -triples.latest, -triples.square))
  square, least, latest = (part[order] for part in triples)
  starts = np.flatnonzero(np.diff(square, prepend=square[0] + 1))
  # The (c, x) reached so far: a staircase in which both columns fall.
  stairs = np.empty((0, 2), np.int64)
  undominated: list[np.ndarray] = []
  for start, end in zip(starts, [*starts[1:], square.size]):
    group = np.stack([least[start:end], latest[start:end]], axis=1)
    stairs, new = _raised(stairs, group, reach)
    undominated.append(np.insert(stairs[new], 0, square[start], axis=1))
  return _Triples(*np.concatenate(undominated).T)


def _raised(stairs: np.ndarray, group: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
  """Adds (c, x) pairs to a staircase, and tells which of its steps are new."""
  steps = np.concatenate([stairs, group])
  new = np.arange(len(steps)) >= len(stairs)
  order = np.lexsort((new, steps[:, 0], -steps[:, 1]))
  steps, new = steps[order], new[order]
  best = np.minimum.accumulate(steps[:, 0])
  lower = np.concatenate([[True], steps[1:, 0] < best[:-1]])
  steps, new = steps[lower], new[lower]
  # If the higher step, beyond the lower one's last wait, is at most w + m·b − length, both
  # together are one step.
  joined = steps[:-1, 0] <= steps[1:, 1] + 1 + reach
  head = np.concatenate([[True], ~joined])
  tail = np.concatenate([~joined, [True]])
  run = np.cumsum(head) - 1
  return (np.stack([steps[tail, 0], steps[head, 1]], axis=1), np.bincount(run, new) > 0)
