"""The definition of a recurrence in NumPy, and the function that returns it."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fl_dpftrl.families import base as strategies

# (row of Z, part): writes a chunk of that row into part.
Draw = Callable[[int, np.ndarray], None]
# (draw, buffers, part, scratch) → part or a buffer, which then holds a chunk of a
# row of N·Z but for the step's scale. It brings the buffers' chunk,
# [num_buffers, chunk], to the next row. Part and scratch are of one shape, and
# what they hold before is of no meaning.
Apply = Callable[[Draw, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Step(NamedTuple):
  """How one row is made, chunk by chunk and in place.

  Attributes:
    apply: what is done to each chunk.
    written: the buffers that it changes.
    scale: what the chunks still have to be multiplied by.
  """

  apply: Apply
  written: Sequence[int] = ()
  scale: float = 1.0


class Recurrence(NamedTuple):
  """How the rows of N·Z follow from those of Z.

  Attributes:
    num_buffers: vectors carried from row to row, zeros at first.
    norms: ‖row t of N‖ of each row, shape [num_rounds].
    step: t → how row t is made; rows are made in order.
    rows_at_once: that one pass over the buffers makes, at every such row.
  """

  num_buffers: int
  norms: np.ndarray
  step: Callable[[int], Step]
  rows_at_once: int = 1


@functools.singledispatch
def recurrence(strategy: strategies.Strategy, num_rounds: int) -> Recurrence:
  """The recurrence of a strategy's first num_rounds rows.

  A family without one of its own is `recomputed`.

  Raises:
    ValueError: if the strategy has fewer rows.
  """
  return recomputed(strategy, num_rounds)


def is_buffered(strategy: strategies.Strategy) -> bool:
  """Returns whether the family has a recurrence of its own."""
  default = recurrence.dispatch(object)
  return recurrence.dispatch(type(strategy)) is not default


def recomputed(strategy: strategies.Strategy, num_rounds: int) -> Recurrence:
  """Rows as sums over rows of Z, each drawn again: no buffers.

  For any family. Row t draws as many rows of Z as row t of N has entries.

  Raises:
    ValueError: if the strategy has fewer rows, or N does not undo C.
  """
  strategies.check_num_rounds(strategy, num_rounds)
  noising = strategy.noising_matrix(num_rounds)
  strategies.check_undoes(strategy, noising)

  def step(t):
    (needed,) = np.nonzero(noising[t])

    def apply(draw, buffers, part, scratch):
      del buffers
      part[:] = 0.0
      for row in needed:
        draw(int(row), scratch)
        np.multiply(scratch, float(noising[t, row]), out=scratch)
        np.add(part, scratch, out=part)
      return part

    return Step(apply)

  return Recurrence(0, np.linalg.norm(noising, axis=1), step)
