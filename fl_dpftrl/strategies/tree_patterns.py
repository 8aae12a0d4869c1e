"""The worst pattern of rounds for a binary tree: exact, by a dynamic programme.

A tree's strategy matrix is 0 or 1, so ‖C u‖² of a pattern is the sum over the
complete nodes of the squared count of its rounds below them. What a block of
rounds has to know of the blocks before it is how long it must still wait for the
next participation; what it gives to the next is the same, and a sum so far.
"""

import numpy as np

# For each number of rounds taken, for each sum reached: the least wait after the
# block, given the wait before it. A wait of min_sep stands for "impossible".
_Block = list[dict[int, np.ndarray]]


def worst_square(
    num_rounds: int, min_sep: int, max_participations: int
) -> int:
  """Largest ‖C u‖² of a tree over all min-sep patterns; a whole number.

  The first rounds, as close as allowed, are the worst pattern often, not always:
  of 16 rounds, 5 that are 3 apart, rounds 1, 4, 7, 12, 15 give 57 and rounds
  0, 3, 6, 9, 12 give 55.

  Args:
    num_rounds: n; only nodes whose rounds are all below n count.
    min_sep: b.
    max_participations: k; time grows with its square.
  """
  most = min(max_participations, -(-num_rounds // min_sep))
  waits = np.arange(min_sep + 1)
  idle = np.where(waits < min_sep, np.maximum(waits - 1, 0), min_sep)
  taken = np.where(waits == 0, min_sep - 1, min_sep)
  tree: _Block = [{0: idle}, {1: taken}]
  # The rounds are complete trees side by side, the largest first.
  forest: _Block | None = None
  for height in range(num_rounds.bit_length()):
    if height:
      tree = _join(tree, tree, most, one_node=True)
    if num_rounds >> height & 1:
      forest = tree if forest is None else _join(
          tree, forest, most, one_node=False
      )
  return max(
      total
      for sums in forest
      for total, after in sums.items()
      if after[0] < min_sep
  )


def _join(left: _Block, right: _Block, most: int, *, one_node: bool) -> _Block:
  """Two blocks side by side; below one node, whose own count is then added."""
  joined: _Block = [{} for _ in range(min(most, len(left) + len(right) - 2) + 1)]
  for m, sums_left in enumerate(left):
    for k, sums_right in enumerate(right[: len(joined) - m]):
      own = (m + k) ** 2 if one_node else 0
      sums = joined[m + k]
      for total_left, after_left in sums_left.items():
        for total_right, after_right in sums_right.items():
          total, after = total_left + total_right + own, after_right[after_left]
          if total in sums:
            after = np.minimum(sums[total], after)
          sums[total] = after
  return [_best(sums) for sums in joined]


def _best(sums: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
  """Without the sums that a larger one reaches with no longer a wait."""
  kept: dict[int, np.ndarray] = {}
  least = np.inf
  for total in sorted(sums, reverse=True):
    after = sums[total]
    possible = after < after[-1]  # a wait of min_sep before lets nothing in
    if (possible & (after < least)).any():
      kept[total] = after
      least = np.minimum(least, after)
  return kept
