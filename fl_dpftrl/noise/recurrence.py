"""Noise rows in place, chunk by chunk, from the steps of a linear noise."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.linalg import lapack

from fl_dpftrl.families import bands, linear_noise
from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise import reference

_Value = TypeVar('_Value')
# (row of Z, part): writes a chunk of that row into part.
Draw = Callable[[int, np.ndarray], None]
# (draw, buffers, part, scratch) → part or a buffer, which then holds a chunk of a noise row but
# for the step's scale. It brings the buffers' chunk, [num_buffers, chunk], to the next row.
# Part and scratch have one shape; what they hold before is ignored.
Apply = Callable[[Draw, np.ndarray, np.ndarray, np.ndarray], np.ndarray]

# (least vectors of a stack, rows made in one pass over it). Small stacks have fewer
# rows a pass, since a pass needs as many more buffers as it makes rows.
_ROWS_AT_ONCE = ((16, 8), (8, 4), (2, 2), (0, 1))
# Products of at most 8 × 64 × 512 numbers: OpenBLAS gives them to one thread, so
# that its number of threads changes no sum.
_VECTORS, _COLUMNS = 64, 512


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


class Recurrence:
  """The first rows of a noise, each a step that changes buffers in place.

  Reading many buffers takes most of the time. So where a noise only pushes rows
  onto its stack, several are made in one pass over it, as one matrix product,
  when the first of them is requested.

  Args:
    strategy: C and N.
    noise: the noise of the strategy.
    num_rounds: rows that there will be at most.

  Attributes:
    num_buffers: vectors carried from row to row, zeros at first.
    norms: ‖row t of N‖ by t.
    rows_at_once: that one pass over the buffers makes, at every such row.

  Raises:
    ValueError: if the strategy has fewer rows, or its noise does not undo C.
  """

  def __init__(
    self, strategy: strategies.Strategy, noise: linear_noise.LinearNoise, num_rounds: int
  ):
    strategies.check_num_rounds(strategy, num_rounds)
    reference.check_undoes(strategy, noise, num_rounds)
    self._strategy, self._noise, self._num_rounds = strategy, noise, num_rounds
    self.num_buffers, self.rows_at_once = layout(noise, num_rounds)
    self.norms = _Sequence(linear_noise.row_norms(noise))
    self._stacks = _Sequence(_stacks(noise))

  def step(self, t: int) -> Step:
    """Returns how row t is made; rows are made in order."""
    if self.rows_at_once:
      return self._together(t)
    step = self._noise.at(t)
    first = self._strategy.num_noise_rows(t) - step.earlier
    match step.update:
      case None:
        return Step(_sum(step, first), scale=float(step.scale / step.own))
      case linear_noise.Add() as sums:
        return Step(_add(step, sums, first), range(self.num_buffers), float(step.scale))
      case linear_noise.Push(merged):
        top, size = self._stacks[t]
        stack = [(top - 1 - i) % self.num_buffers for i in range(size)]
        made = (top - merged) % self.num_buffers
        return Step(_push(step, merged, first, stack, made), [made], float(step.scale))

  def _together(self, t: int) -> Step:
    """Returns how row t and those after it are made, into a ring of buffers."""
    since, scale = self._stacks[t].top, float(self._noise.at(t).scale)
    if since % self.rows_at_once:
      kept = since % self.num_buffers
      return Step(lambda draw, buffers, part, scratch: buffers[kept], scale=scale)
    last = t + 1
    while last < min(t + self.rows_at_once, self._num_rounds) and self._stacks[last].top:
      last += 1
    made = [(since + i) % self.num_buffers for i in range(last - t)]
    coefficients = np.zeros((len(made), self._noise.num_buffers + 1))
    for row, step in zip(coefficients, map(self._noise.at, range(t, last))):
      row[0], row[1 : len(step.below) + 1] = step.own, step.below
    weights = _weights(coefficients, since, self.num_buffers)
    first = self._strategy.num_noise_rows(t)

    def apply(draw, buffers, part, scratch):
      for row, buffer in enumerate(made, first):
        draw(row, buffers[buffer])
      _multiply(weights, buffers, slice(made[0], made[-1] + 1))
      return buffers[made[0]]

    return Step(apply, made, scale)


class _Stack(NamedTuple):
  """The stack before a round: where its next buffer goes, and how many it has."""

  top: int
  size: int


class _Sequence(Generic[_Value]):
  """The values of an iterator, computed up to the largest index that is used."""

  def __init__(self, values: Iterator[_Value]):
    self._values, self._known = values, list[_Value]()

  def __getitem__(self, index: int) -> _Value:
    self._known.extend(itertools.islice(self._values, max(0, index + 1 - len(self._known))))
    return self._known[index]


def _stacks(noise: linear_noise.LinearNoise) -> Iterator[_Stack]:
  """Yields the stack before each round; empty where nothing is pushed."""
  top = count = 0
  for step in map(noise.at, itertools.count()):
    if step.restart:
      top = count = 0
    yield _Stack(top, count)
    if isinstance(step.update, linear_noise.Push):
      top += 1 - step.update.merged
      count = min(count + 1 - step.update.merged, noise.num_buffers)


def layout(noise: linear_noise.LinearNoise, num_rounds: int) -> tuple[int, int]:
  """Returns the number of buffers, and of rows made in one pass; 0 for neither.

  Rows are made in one pass where each takes its own row of Z and is pushed onto the stack.
  """
  kept = noise.num_buffers
  if noise.period is not None:
    num_rounds = min(num_rounds, noise.settles + noise.period)
  for step in map(noise.at, range(num_rounds)):
    pushes = isinstance(step.update, linear_noise.Push) and not step.update.merged
    if not pushes or tuple(step.draws) != (1.0,):
      return kept, 0
  at_once = next(rows for least, rows in _ROWS_AT_ONCE if kept >= least)
  return at_once * (1 + -(-kept // at_once)), at_once


def _sum(step: linear_noise.Step, first: int) -> Apply:
  """Writes the weighted sum of rows of Z, from `first` on, into part."""
  (row, weight), *others = (
    (row, float(weight)) for row, weight in enumerate(step.draws, first) if weight
  )

  def apply(draw, buffers, part, scratch):
    del buffers
    draw(row, part)
    if weight != 1.0:
      np.multiply(part, weight, out=part)
    for other, other_weight in others:
      draw(other, scratch)
      np.multiply(scratch, other_weight, out=scratch)
      np.add(part, scratch, out=part)
    return part

  return apply


def _reduce(
  step: linear_noise.Step, read: Iterable[np.ndarray], part: np.ndarray, scratch: np.ndarray
) -> None:
  """Makes a row of the sum of rows of Z in part, but for the step's scale."""
  for weight, buffer in zip(step.below, read):
    np.multiply(buffer, float(weight), out=scratch)
    np.subtract(part, scratch, out=part)
  if step.own != 1.0:
    np.multiply(part, float(1.0 / step.own), out=part)


def _push(
  step: linear_noise.Step, merged: int, first: int, stack: Sequence[int], made: int
) -> Apply:
  """Makes a row and pushes it onto the stack.

  Args:
    step: step of the round.
    merged: number of buffers that it replaces.
    first: first row of Z that it draws.
    stack: numbers of the buffers on the stack, from the newest on.
    made: number of the buffer that becomes the newest: the last that is merged.
  """
  total = _sum(step, first)
  others = stack[: max(merged - 1, 0)]

  def apply(draw, buffers, part, scratch):
    total(draw, buffers, part, scratch)
    _reduce(step, (buffers[i] for i in stack), part, scratch)
    if merged:
      for other in others:
        np.add(buffers[made], buffers[other], out=buffers[made])
      np.add(buffers[made], part, out=buffers[made])
    else:
      buffers[made] = part
    return part

  return apply


def _add(step: linear_noise.Step, sums: linear_noise.Add, first: int) -> Apply:
  """Makes a row and adds it, or the first row of Z, to running sums."""
  gains = [tuple(map(float, each)) for each in zip(*sums)]
  total = _sum(step, first)
  keeps_oldest = any(draw_gain for _, _, draw_gain in gains)

  def apply(draw, buffers, part, scratch):
    if step.restart:
      buffers[:] = 0.0
    total(draw, buffers, part, scratch)
    _reduce(step, buffers, part, scratch)
    oldest = np.empty_like(part) if keeps_oldest else part
    if keeps_oldest:
      draw(first, oldest)
    for (loss, row_gain, draw_gain), buffer in zip(gains, buffers):
      np.multiply(buffer, -loss, out=scratch)
      if row_gain:
        np.add(scratch, part if row_gain == 1.0 else row_gain * part, out=scratch)
      if draw_gain:
        np.add(scratch, draw_gain * oldest, out=scratch)
      np.add(buffer, scratch, out=buffer)
    return part

  return apply


def _weights(coefficients: np.ndarray, t: int, num_buffers: int) -> np.ndarray:
  """Weights on the buffers that give rows t, t + 1, … of y.

  The buffers hold the rows of y before t, and rows t, t + 1, … of z.

  Args:
    coefficients: the rows of L from t, by bands.
  """
  num_rows, num_bands = coefficients.shape
  window = min(t, num_bands - 1)
  matrix = bands.dense_rows(coefficients)[:, num_bands - 1 - window :]
  inverse, _ = lapack.dtrtri(matrix[:, window:], lower=1)
  weights = np.zeros((num_rows, num_buffers))
  rows = np.arange(t - window, t + num_rows) % num_buffers
  weights[:, rows[window:]] = inverse
  weights[:, rows[:window]] = -(inverse @ matrix[:, :window])
  return weights


def _multiply(weights: np.ndarray, buffers: np.ndarray, made: slice) -> None:
  """Writes weights times the buffers into the buffers of the new rows."""
  weights = weights.astype(buffers.dtype)
  groups = [
    (np.ascontiguousarray(weights[:, at : at + _VECTORS]), slice(at, at + _VECTORS))
    for at in range(0, len(buffers), _VECTORS)
  ]
  for at in range(0, buffers.shape[1], _COLUMNS):
    columns = buffers[:, at : at + _COLUMNS]
    total, *others = (own @ columns[group] for own, group in groups)
    for other in others:
      total += other
    columns[made] = total
