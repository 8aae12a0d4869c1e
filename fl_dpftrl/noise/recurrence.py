"""Noise rows in integers, in place and chunk by chunk, from the steps of a linear noise.

A row is R = A + F: A is the carried part, of normals that are read again and of buffers, computed
in float64 and rounded; F is the fresh part. Buffers follow R. See `mechanisms.lattice`.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms import lattice, linear_noise, undoing
from fl_dpftrl.support.kernels import row_loops as loops

_Finish = Callable[..., int]

# (least vectors of a stack, rows that one pass over the older of them serves). Small stacks have
# fewer, since a pass needs as many more buffers.
_ROWS_AT_ONCE = ((16, 8), (8, 4), (2, 2), (0, 1))
# Products of at most 8 × 64 × 512 numbers: OpenBLAS gives them to one thread, so
# that its number of threads changes no sum.
_VECTORS, _COLUMNS = 64, 512
_LARGEST = 2.0**52  # Integers that float64 holds, with room.
_BYTES = 8
_MOST_STEPS, _NORMS_AT_ONCE = 256, 64  # steps that are kept, norms that are computed together


class IntegerStep(NamedTuple):
  """How one row is made.

  Attributes:
    scale: standard deviation of the integers that the row's own normals are.
    again: (round, scale, weight) of normals of earlier rounds, whose sum is the first part of A.
    oldest: that of the normal that buffers gain by `Add.draw_gains`; None if they gain none.
    finish: (total, begins, fresh, oldest, buffers, at, out) → trail, for coordinates from `at` on:
      adds the buffers' part to the total, rounds it, and adds it to the fresh integers, which
      become the row, in out too; then brings the buffers, shape [num_buffers, size], to the next
      row. Begins where nothing is read again. Trail is the sum of the row, modulo 2⁶⁴.
    written: buffers that it changes.
  """

  scale: float
  again: Sequence[tuple[int, float, float]]
  oldest: tuple[int, float, float] | None
  finish: _Finish
  written: Sequence[int]


class Recurrence:
  """The first rows of a strategy's noise, each a step that changes buffers in place.

  Reading many buffers takes most of the time. So where a noise only pushes rows onto its stack,
  one matrix product computes the older buffers' share of the next G rows. Each share is stored in
  the buffer that its row will fill. That row then adds the shares of the rows since.

  Attributes:
    num_buffers: vectors carried from row to row, float64, zeros at first.
    norms: ‖row t of N‖ by t.
  """

  def __init__(self, strategy: strategies.Strategy, num_rounds: int, bits: int = lattice.BITS):
    strategies.check_num_rounds(strategy, num_rounds)
    noise = strategy.noise(num_rounds)
    undoing.check_undoes(strategy, noise, num_rounds)
    self._noise, self._num_rounds, self._bits = noise, num_rounds, bits
    self.num_buffers, self._at_once = layout(noise, num_rounds)
    norms = itertools.islice(linear_noise.row_norms(noise), num_rounds)
    self.norms = _Sequence(norms, at_once=_NORMS_AT_ONCE)
    self._rows = _Sequence(lattice.rows(strategy, num_rounds))
    self._stacks = _Sequence(_stacks(noise))
    self._steps: dict[tuple[int, ...], IntegerStep] = {}  # Those that rows have in common.

  def step(self, t: int) -> IntegerStep:
    """Returns how row t is made; rows are made in order."""
    if lattice.FARTHEST_NORMAL * 2.0**self._bits * self.norms[t] > _LARGEST:
      raise ValueError(f'row {t} has a norm of {self.norms[t]:g}, too large for its integers')
    top, size = self._stacks[t]
    served = min(self._num_rounds - t, self._at_once or 1)  # Rows that the step may serve.
    firsts = self._noise.first(t), self._noise.first(t + served - 1)
    alike = *firsts, served, top % max(self.num_buffers, 1), size
    step = self._steps.get(alike)
    if step is None:
      step = self._step(t)
      if not step.again and step.oldest is None and len(self._steps) < _MOST_STEPS:
        self._steps[alike] = step
    return step

  def _step(self, t: int) -> IntegerStep:
    row = self._rows[t]
    spread = lambda group: self._rows[group].spread
    scale = lambda group: abs(spread(group)) * 2.0**self._bits
    normal = lambda group, weight: (group, scale(group), weight / spread(group))
    again = [normal(group, row.factor * each) for group, each in row.reads]
    oldest = None if row.oldest is None else normal(*row.oldest)
    return IntegerStep(scale(t), again, oldest, *self._finish(t, row))

  def _finish(self, t: int, row: lattice.LatticeRow) -> tuple[_Finish, Sequence[int]]:
    step, below = row.step, -row.factor * np.asarray(row.step.below, np.float64)
    match step.update:
      case None:
        return _plain, ()
      case linear_noise.Add() as sums:
        return _adding(below, np.array(sums, np.float64), step), range(self.num_buffers)
      case linear_noise.Push(merged):
        top, size = self._stacks[t]
        if self._at_once:
          return self._pushing_together(t, top, float(step.scale))
        stack = [(top - 1 - i) % self.num_buffers for i in range(min(size, below.size))]
        slot = (top - merged) % self.num_buffers
        replaced = [(top - 1 - i) % self.num_buffers for i in range(merged)]
        return _pushing(below, float(step.scale), stack, slot, replaced), [slot]

  def _pushing_together(self, t: int, top: int, scale: float) -> tuple[_Finish, Sequence[int]]:
    """Row `top` of a stack; the first of each few reads the rows before them for all."""
    place = top % self._at_once
    begun = t - place  # The round that read them.
    slot = lambda row: (top - t + row) % self.num_buffers
    if place:
      newest = [slot(row) for row in range(begun, t)]
      weights = self._coefficients(t)[:place][::-1]
      return _pushing_on(weights, newest, slot(t), scale), [slot(t)]
    last = t + 1
    while last < min(t + self._at_once, self._num_rounds) and self._stacks[last][0]:
      last += 1
    older = min(top, self._noise.num_buffers)
    weights = np.zeros((last - t, self.num_buffers))
    for ahead, slot_weights in enumerate(weights):
      coefficients = self._coefficients(t + ahead)[ahead : ahead + older]
      for back, coefficient in enumerate(coefficients, 1):
        slot_weights[slot(t - back)] = coefficient
    slots = range(slot(t), slot(t) + last - t)
    return _pushing_first(weights, slots, scale), slots

  def _coefficients(self, t: int) -> np.ndarray:
    """Weights in row t of the rows before it on the stack, from the newest on."""
    row = self._rows[t]
    weights = -row.factor * np.asarray(row.step.below, np.float64)
    return np.pad(weights, (0, self._noise.num_buffers - weights.size))


class _Sequence:
  """The values of an iterator, computed a few at a time up to the largest index that is used."""

  def __init__(self, values: Iterator[Any], at_once: int = 1):
    self._values, self._at_once, self._computed = values, at_once, list[Any]()

  def __getitem__(self, index: int) -> Any:
    if index >= len(self._computed):
      self._computed.extend(
        itertools.islice(self._values, index + self._at_once - len(self._computed))
      )
    return self._computed[index]


def _stacks(noise: linear_noise.LinearNoise) -> Iterator[tuple[int, int]]:
  """Yields, before each round, where the stack's next buffer goes and how many it has."""
  top = count = 0
  for step in map(noise.at, itertools.count()):
    if step.restart:
      top = count = 0
    yield top, count
    if isinstance(step.update, linear_noise.Push):
      top += 1 - step.update.merged
      count = min(count + 1 - step.update.merged, noise.num_buffers)


def layout(noise: linear_noise.LinearNoise, num_rounds: int) -> tuple[int, int]:
  """Returns the number of buffers, and of rows that one pass serves: 0 unless all are pushed."""
  num_buffers = noise.num_buffers
  if noise.period is not None:
    num_rounds = min(num_rounds, noise.settles + noise.period)
  for step in map(noise.at, range(num_rounds)):
    pushes = isinstance(step.update, linear_noise.Push) and not step.update.merged
    if not pushes or len(step.draws) > 1:
      return num_buffers, 0
  at_once = next(rows for least, rows in _ROWS_AT_ONCE if num_buffers >= least)
  return at_once * (1 + -(-num_buffers // at_once)), at_once


def buffer_bytes(strategy: strategies.Strategy, num_rounds: int, num_parameters: int) -> int:
  """Returns the size of the buffers for num_rounds noise rows, in float64."""
  strategies.check_num_rounds(strategy, num_rounds)
  return layout(strategy.noise(num_rounds), num_rounds)[0] * _BYTES * num_parameters


def _plain(total, begins, fresh, oldest, buffers, at, out):
  """Makes a row that no buffer holds."""
  if not begins:
    np.add(fresh, np.rint(total, out=total), out=fresh)
  out[:] = fresh
  return 0


def _adding(below: np.ndarray, gains: np.ndarray, step: linear_noise.Step) -> _Finish:
  """Adds a row, and the normal that was drawn first, to running sums."""
  stack = np.arange(below.size)
  scale, restarts = float(step.scale), bool(step.restart)
  return lambda total, begins, fresh, oldest, buffers, at, out: loops.add(
    total, begins, fresh, oldest, buffers, at, below, stack, gains, scale, restarts, out
  )


def _pushing(
  weights: np.ndarray, scale: float, stack: Sequence[int], top: int, merged: Sequence[int]
) -> _Finish:
  """Pushes a row onto the stack, together with the newest buffers that it replaces."""
  stack, merged = np.array(stack, np.int64), np.array(merged, np.int64)
  weights = np.ascontiguousarray(weights)
  return lambda total, begins, fresh, oldest, buffers, at, out: loops.push(
    total, begins, fresh, buffers, at, weights, stack, top, merged, scale, out
  )


def _pushing_first(weights: np.ndarray, rows: range, scale: float) -> _Finish:
  """Pushes the first of G rows, and stores the older buffers' share of each of the others."""
  push = _pushing_on(np.zeros(0), (), rows[0], scale)
  groups = [slice(at, at + _VECTORS) for at in range(0, weights.shape[1], _VECTORS)]
  pairs = [(np.ascontiguousarray(weights[:, group]), group) for group in groups]
  pairs = [(part, group) for part, group in pairs if part.any()]
  where = slice(rows.start, rows.stop)

  def finish(total, begins, fresh, oldest, buffers, at, out):
    for start in range(at, at + fresh.size, _COLUMNS):
      columns = buffers[:, start : min(start + _COLUMNS, at + fresh.size)]
      sums = [part @ columns[group] for part, group in pairs]
      columns[where] = sum(sums[1:], sums[0]) if sums else 0.0
    return push(total, begins, fresh, oldest, buffers, at, out)

  return finish


def _pushing_on(weights: np.ndarray, newest: Sequence[int], top: int, scale: float) -> _Finish:
  """Pushes a row onto the older buffers' share of it, which its buffer holds."""
  push = _pushing(weights, scale, newest, top, ())
  return lambda total, begins, fresh, oldest, buffers, at, out: push(
    buffers[top, at : at + fresh.size], False, fresh, oldest, buffers, at, out
  )
