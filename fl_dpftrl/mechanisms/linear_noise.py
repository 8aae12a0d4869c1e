"""The noise of a mechanism as a linear step, for executors that know no family.

The mechanisms add row t of N·Z to the sum of round t. A family says once, in NumPy terms, how
that row follows from rows of Z and from a few buffers:

    diagonal · y = Σ draws[i] · z[first + i] − Σ below[j] · buffers[j]

The noise row is scale · y. Then y enters the buffers, by a `Push` or an `Add`. Rows of Z are
functions of a seed and their number, so a step may draw those of earlier rounds again instead
of keeping them.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

_MOST_STEPS = 512  # of which rows drawn are counted


class Push(NamedTuple):
  """Buffers are a stack: y, with the `merged` newest that it replaces, becomes the newest."""

  merged: int = 0


class Add(NamedTuple):
  """Buffers are running sums, zeros at first.

  Buffer j loses losses[j] of itself, then gains row_gains[j] · y and draw_gains[j] times the
  first row of Z that the step draws.

  Attributes:
    losses, row_gains, draw_gains: shape [num_buffers]. A loss is 1 − θ of a decay θ, which
      keeps its precision in float32 where θ near 1 does not.
  """

  losses: np.ndarray
  row_gains: np.ndarray
  draw_gains: np.ndarray

  @classmethod
  def decaying(cls, decay: Sequence[float]) -> 'Add':
    """Creates sums of y that are each multiplied by a decay in every round."""
    losses = 1.0 - np.asarray(decay)
    return cls(losses, np.ones(losses.size), np.zeros(losses.size))


class Step(NamedTuple):
  """How one row of noise follows from rows of Z and from the buffers.

  Attributes:
    draws: weights of successive rows of Z, at least one.
    earlier: number of rows among them, the first ones, that rounds before this one used already.
    diagonal: factor of y, not 0.
    below: weights of the buffers, of a stack from the newest on; buffers that are not there yet
      count as zeros.
    update: how y enters the buffers, alike in all steps; None without buffers.
    scale: noise row over y.
    norm: ‖row t of N‖. It may be None where N is Toeplitz but for the scales and every step draws
      only its own row of Z: it then follows from the response of the steps to a single 1.
    restart: whether the buffers are cleared before the step.
  """

  draws: Sequence[float] | np.ndarray = (1.0,)
  earlier: int = 0
  diagonal: float = 1.0
  below: Sequence[float] | np.ndarray = ()
  update: Push | Add | None = None
  scale: float = 1.0
  norm: float | None = None
  restart: bool = False


class LinearNoise(NamedTuple):
  """The noise of a strategy, round by round.

  A graph holds a table of steps. So a strategy without a last round says when steps recur, and
  executors use `at`, which repeats them accordingly.

  Attributes:
    num_buffers: most vectors that are kept between rounds.
    step: t → how the row of round t is made.
    period: rounds after which steps recur; None if each round has its own.
    settles: first round from which on they recur.
    dyadic: steps recur instead whenever the binary form of t ends in as many ones, as the
      carries of a binary tree do.
    alike: rounds before it, of a strategy with a last one, have the step of round 0.
  """

  num_buffers: int
  step: Callable[[int], Step]
  period: int | None = None
  settles: int = 0
  dyadic: bool = False
  alike: int = 0

  def at(self, round_index: int) -> Step:
    """Returns the step of a round, given by the first round with that step."""
    return self.step(self.first(round_index))

  def first(self, round_index: int) -> int:
    """Returns the first round that has the step of a round."""
    if round_index < self.alike:
      return 0
    if self.dyadic:
      return (~round_index & (round_index + 1)) - 1
    if self.period is None or round_index < self.settles:
      return round_index
    return self.settles + (round_index - self.settles) % self.period


def start(noise: LinearNoise, size: int) -> np.ndarray:
  """Returns the buffers before row 0, newest first, shape [buffers, size]."""
  running = isinstance(noise.at(0).update, Add)
  return np.zeros((noise.num_buffers if running else 0, size))


def advance(
  noise: LinearNoise, step: Step, drawn: np.ndarray, oldest: np.ndarray, buffers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Makes one noise row, but for the step's scale; returns y and the buffers after the round.

  Args:
    drawn: sum of the weighted rows of Z, shape [size].
    oldest: the first of these rows, not weighted.
    buffers: buffers before the round, newest first.
  """
  if step.restart:
    buffers = start(noise, drawn.size)
  there = len(buffers)
  row = (drawn - np.asarray(step.below)[:there] @ buffers[: len(step.below)]) / step.diagonal
  return row, entered(noise, step, row, oldest, buffers)


def entered(
  noise: LinearNoise, step: Step, row: np.ndarray, oldest: np.ndarray, buffers: np.ndarray
) -> np.ndarray:
  """Returns the buffers after a step, given its y and the first row of Z that it draws."""
  match step.update:
    case Push(merged):
      newest = row + buffers[:merged].sum(axis=0) if merged else row
      return np.concatenate([newest[None], buffers[merged:]])[: noise.num_buffers]
    case Add(losses, row_gains, draw_gains):
      buffers = (1 - losses)[:, None] * buffers + np.outer(row_gains, row)
      return buffers + np.outer(draw_gains, oldest)
    case None:
      return buffers


def row_norms(noise: LinearNoise) -> Iterator[float]:
  """Yields ‖row t of N‖ of each round."""
  response, square = start(noise, 1), 0.0
  for t in itertools.count():
    step = noise.at(t)
    if step.norm is not None:
      yield float(step.norm)
      continue
    begins = t == 0 or step.restart
    impulse = np.full(1, float(begins))
    entry, response = advance(noise, step, impulse, impulse, response)
    square = float(entry[0] ** 2) + (0.0 if begins else square)
    yield float(step.scale * np.sqrt(square))


def combined_row(noise: LinearNoise, weights: np.ndarray) -> np.ndarray:
  """Returns the weights of the rows of Z in Σ weights[t] · (row t of N·Z).

  The steps are followed back from the last to the first: the derivative of the sum by each buffer
  after a step gives that by y, by the buffers before it, and by the rows of Z that it draws.
  """
  steps = [noise.at(t) for t in range(len(weights))]
  num_new = [len(step.draws) - step.earlier for step in steps]
  firsts = np.cumsum([0, *num_new[:-1]]) - [step.earlier for step in steps]
  result = np.zeros(max(sum(num_new), 1))
  d_buffers = np.zeros(noise.num_buffers)
  for step, first, weight in zip(reversed(steps), reversed(firsts), weights[::-1], strict=True):
    d_row, d_earlier = step.scale * weight, np.zeros(noise.num_buffers)
    match step.update:
      case Push(merged):
        d_row += d_buffers[:1].sum()
        d_earlier[:merged] = d_buffers[:1].sum()
        shifted = d_buffers[1 : 1 + max(noise.num_buffers - merged, 0)]
        d_earlier[merged : merged + shifted.size] = shifted
      case Add(losses, row_gains, draw_gains):
        d_row += row_gains @ d_buffers
        result[first] += draw_gains @ d_buffers
        d_earlier[:] = (1 - losses) * d_buffers
    d_row /= step.diagonal
    below = np.asarray(step.below)[: noise.num_buffers]
    d_earlier[: below.size] -= below * d_row
    result[first : first + len(step.draws)] += d_row * np.asarray(step.draws)
    d_buffers = np.zeros(noise.num_buffers) if step.restart else d_earlier
  return result


def rows_drawn(noise: LinearNoise, num_rounds: int) -> tuple[float, int]:
  """Returns how many rows of Z are drawn for a noise row: the mean over rounds, and the most.

  A noise without a linear step of its own draws all earlier rows again. Of longer runs, rounds
  evenly apart are counted.
  """
  rounds = np.unique(np.linspace(0, num_rounds - 1, min(num_rounds, _MOST_STEPS)).round())
  counts = [max(len(noise.at(int(t)).draws), 1) for t in rounds]
  return float(np.mean(counts)), max(counts)
