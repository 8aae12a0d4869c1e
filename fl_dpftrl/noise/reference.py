"""Noise rows in plain NumPy, against which the other executors are tested."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import linear_noise

# Rounds for which noise rows are compared with C: without buffers, and with.
_CHECKED_ROUNDS, _CHECKED_BUFFERED_ROUNDS = 1024, 128
_MOST_CHECKED_ROUNDS = 4096  # most rounds for which they are applied to a vector
_ROUNDING, _UNDERFLOW = 1e-6, 1e-200


class NoiseStream(NamedTuple):
  """Rows of N·Z, one at a time, as two pure functions.

  The state is all that a stream remembers: the same state always gives the same
  row and the same next state, so a saved state resumes a stream exactly.

  Attributes:
    init: () → state, before row 0.
    next: state → (row t of N·Z, state before row t + 1).
    skip: state → state before row t + 1, for a row that nobody gets.
  """

  init: Callable[[], Any]
  next: Callable[[Any], tuple[Any, Any]]
  skip: Callable[[Any], Any]


def reference_stream(strategy: strategies.Strategy, z: np.ndarray) -> NoiseStream:
  """Streams the rows of N·Z for a given Z.

  Args:
    strategy: strategy of any family.
    z: Z, shape [strategy.num_noise_rows(num_rounds), d], float64.

  Returns:
    A stream of rows of shape [d]. It raises ValueError where a row needs more
    of Z than there is, or the strategy has no more rounds.

  Raises:
    ValueError: if strategy is not a Strategy, or has no last round but needs one.
  """
  check_is_strategy(strategy)
  noise = strategy.noise(strategy.max_rounds)

  def next_fn(state):
    t, buffers = state
    strategies.check_num_rounds(strategy, t + 1)
    step = noise.at(t)
    first = strategy.num_noise_rows(t) - step.earlier
    last = first + len(step.draws)
    if last > len(z):
      raise ValueError(f'z has {len(z)} rows, row {len(z)} is needed')
    drawn = np.asarray(step.draws) @ z[first:last]
    row, buffers = advance(noise, step, drawn, z[first], buffers)
    return step.scale * row, (t + 1, buffers)

  return NoiseStream(
    lambda: (0, start(noise, z.shape[1])), next_fn, lambda state: next_fn(state)[1]
  )


def check_is_strategy(strategy: Any) -> None:
  """Raises ValueError unless the object is a strategy."""
  if not isinstance(strategy, strategies.Strategy):
    raise ValueError(f'strategy has no noise stream: {strategy!r}')


def start(noise: linear_noise.LinearNoise, size: int) -> np.ndarray:
  """Returns the buffers before row 0, newest first, shape [buffers, size]."""
  running = isinstance(noise.at(0).update, linear_noise.Add)
  return np.zeros((noise.num_buffers if running else 0, size))


def advance(
  noise: linear_noise.LinearNoise,
  step: linear_noise.Step,
  drawn: np.ndarray,
  oldest: np.ndarray,
  buffers: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Makes one noise row, but for the step's scale.

  Args:
    noise: the noise that the step is part of.
    step: step of the round.
    drawn: sum of the weighted rows of Z, shape [size].
    oldest: the first of these rows, not weighted.
    buffers: buffers before the round, newest first.

  Returns:
    y and the buffers after the round.
  """
  if step.restart:
    buffers = start(noise, drawn.size)
  there = len(buffers)
  row = (drawn - np.asarray(step.below)[:there] @ buffers[: len(step.below)]) / step.own
  match step.update:
    case linear_noise.Push(merged):
      newest = row + buffers[:merged].sum(axis=0)
      buffers = np.vstack([newest, buffers[merged:]])[: noise.num_buffers]
    case linear_noise.Add(losses, row_gains, draw_gains):
      buffers = (1.0 - losses)[:, None] * buffers + np.outer(row_gains, row)
      buffers = buffers + np.outer(draw_gains, oldest)
  return row, buffers


def row_norms(noise: linear_noise.LinearNoise) -> Iterator[float]:
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


def check_undoes(
  strategy: strategies.Strategy, noise: linear_noise.LinearNoise, num_rounds: int | None
) -> None:
  """Raises ValueError unless the noise rows undo C, to rounding.

  A run then releases A (x + N Z) = A N (C x + Z), which hides x as well as C's
  sensitivity says. With any other noise rows, C's figures would not apply.

  The first rows are compared one by one. All rows of a run of up to 4096 rounds, and
  1024 of a run without an end, are applied to C v for a random v, which they must
  give back: if N C were not the identity, that would happen with probability 0.

  Args:
    strategy: C.
    noise: the noise to check.
    num_rounds: rounds of the run; None for a run without an end.
  """
  long = min(num_rounds or _CHECKED_ROUNDS, _MOST_CHECKED_ROUNDS)
  checked = _CHECKED_BUFFERED_ROUNDS if noise.num_buffers else _CHECKED_ROUNDS
  checked = min(num_rounds or checked, checked)
  rows, matrix = strategy.num_noise_rows(checked), strategy.strategy_matrix(checked)
  made = _noise_rows(strategy, noise, checked, rows)
  same = False
  if made is not None and matrix.shape == (rows, checked) and _give_back(strategy, noise, long):
    error = np.abs(made @ matrix - np.eye(checked))
    same = (error <= _ROUNDING * (np.abs(made) @ np.abs(matrix)) + _UNDERFLOW).all()
  if made is None or not same:
    raise ValueError(
      f'noise of {strategy.family} does not undo its strategy_matrix, so it would'
      ' not be what its sensitivity is computed for'
    )
  norms = list(itertools.islice(row_norms(noise), checked))
  if not np.allclose(norms, np.linalg.norm(made, axis=1), _ROUNDING, 0.0):
    raise ValueError(f'noise of {strategy.family} has rows of other norms than its steps say')


def _noise_rows(
  strategy: strategies.Strategy, noise: linear_noise.LinearNoise, num_rounds: int, width: int
) -> np.ndarray | None:
  """Returns the first rows of N as its steps make them; None beyond the width."""
  made, buffers = np.zeros((num_rounds, width)), start(noise, width)
  for t in range(num_rounds):
    step = noise.at(t)
    first = strategy.num_noise_rows(t) - step.earlier
    if first < 0 or first + len(step.draws) > width:
      return None
    drawn, oldest = np.zeros((2, width))
    drawn[first : first + len(step.draws)], oldest[first] = step.draws, 1.0
    row, buffers = advance(noise, step, drawn, oldest, buffers)
    made[t] = step.scale * row
  return made


def _give_back(
  strategy: strategies.Strategy, noise: linear_noise.LinearNoise, num_rounds: int
) -> bool:
  """Returns whether the noise rows give v back from C v, for a random v of length n."""
  values = np.random.default_rng(0).normal(size=num_rounds)
  matrix = strategy.strategy_matrix(num_rounds)
  if matrix.shape != (strategy.num_noise_rows(num_rounds), num_rounds):
    return False
  made, buffers = (matrix @ values)[:, None], start(noise, 1)
  largest = float(np.abs(made).max())
  for t, (value, norm) in enumerate(zip(values, row_norms(noise))):
    step = noise.at(t)
    first = strategy.num_noise_rows(t) - step.earlier
    used = made[first : first + len(step.draws)] if first >= 0 else made[:0]
    if len(used) < len(step.draws):
      return False
    row, buffers = advance(noise, step, np.asarray(step.draws) @ used, used[0], buffers)
    if not abs(step.scale * row[0] - value) <= _ROUNDING * (1.0 + norm * largest):
      return False
  return True
