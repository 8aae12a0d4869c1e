"""The interface of noise streams, and the check that noise undoes its strategy."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import linear_noise

# Rounds for which noise rows are compared with C: without buffers, and with.
_CHECKED_ROUNDS, _CHECKED_BUFFERED_ROUNDS = 1024, 128
_MOST_CHECKED_ROUNDS = 4096  # most rounds for which they are applied to a vector
_ROUNDING, _UNDERFLOW = 1e-6, 1e-200


class NoiseStream(NamedTuple):
  """Rows of N·Z, one at a time, as pure functions: the same state gives the same row again.

  Attributes:
    init: () → state, before row 0.
    next: state → (row t of N·Z, state before row t + 1).
    skip: state → state before row t + 1, for a row that nobody gets.
  """

  init: Callable[[], Any]
  next: Callable[[Any], tuple[Any, Any]]
  skip: Callable[[Any], Any]


def check_undoes(
  strategy: strategies.Strategy, noise: linear_noise.LinearNoise, num_rounds: int | None
) -> None:
  """Raises ValueError unless the noise rows undo C, to rounding.

  A run then releases A (x + N Z) = A N (C x + Z), which hides x as well as C's
  sensitivity says. With any other noise rows, C's figures would not apply.

  The first rows are compared one by one, and with C of shorter runs: a run may end early. All rows
  of a run of up to 4096 rounds, and 1024 of a run without an end, are applied to C v for a random
  v, which they must give back: if N C were not the identity, that would happen with probability 0.
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
  if made is not None and same and not _undoes_beginnings(strategy, made):
    raise ValueError(
      f'strategy_matrix of {strategy.family} depends on the number of rounds: for a run that ends'
      ' early, it is not the matrix that the noise undoes; make the planned rounds a parameter,'
      ' and return the beginning of the matrix that is for all of them'
    )
  if made is None or not same:
    raise ValueError(
      f'noise of {strategy.family} does not undo its strategy_matrix, so it would'
      ' not be what its sensitivity is computed for'
    )
  norms = list(itertools.islice(linear_noise.row_norms(noise), checked))
  if not np.allclose(norms, np.linalg.norm(made, axis=1), _ROUNDING, 0.0):
    raise ValueError(f'noise of {strategy.family} has rows of other norms than its steps say')


def _undoes_beginnings(strategy: strategies.Strategy, made: np.ndarray) -> bool:
  """Returns whether the first rows of N undo C of shorter runs, too."""
  longest = len(made)
  for n in sorted({1, 2, 3, 5, longest // 3, longest // 2, longest - 1} & set(range(1, longest))):
    width, matrix = strategy.num_noise_rows(n), strategy.strategy_matrix(n)
    if matrix.shape != (width, n) or made[:n, width:].any():
      return False
    error = np.abs(made[:n, :width] @ matrix - np.eye(n))
    if (error > _ROUNDING * (np.abs(made[:n, :width]) @ np.abs(matrix)) + _UNDERFLOW).any():
      return False
  return True


def _noise_rows(
  strategy: strategies.Strategy, noise: linear_noise.LinearNoise, num_rounds: int, width: int
) -> np.ndarray | None:
  """Returns the first rows of N as its steps make them; None beyond the width."""
  made, buffers = np.zeros((num_rounds, width)), linear_noise.start(noise, width)
  for t in range(num_rounds):
    step = noise.at(t)
    first = strategy.num_noise_rows(t) - step.earlier
    if first < 0 or first + len(step.draws) > width:
      return None
    drawn, oldest = np.zeros((2, width))
    drawn[first : first + len(step.draws)], oldest[first] = step.draws, 1.0
    row, buffers = linear_noise.advance(noise, step, drawn, oldest, buffers)
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
  made, buffers = (matrix @ values)[:, None], linear_noise.start(noise, 1)
  largest = float(np.abs(made).max())
  for t, (value, norm) in enumerate(zip(values, linear_noise.row_norms(noise))):
    step = noise.at(t)
    first = strategy.num_noise_rows(t) - step.earlier
    used = made[first : first + len(step.draws)] if first >= 0 else made[:0]
    if len(used) < len(step.draws):
      return False
    row, buffers = linear_noise.advance(
      noise, step, np.asarray(step.draws) @ used, used[0], buffers
    )
    if not abs(step.scale * row[0] - value) <= _ROUNDING * (1.0 + norm * largest):
      return False
  return True
