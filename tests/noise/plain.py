"""Noise rows in plain NumPy, against which the executors are tested."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms import lattice, linear_noise


class Stream(NamedTuple):
  """What `noise.stream.NoiseStream` is, without TensorFlow."""

  init: Callable[[], Any]
  next: Callable[[Any], tuple[Any, Any]]
  skip: Callable[[Any], Any]


def stream(
  strategy: strategies.Strategy,
  num_rounds: int,
  size: int,
  fresh: Callable[[int, float], np.ndarray],
  *,
  bits: int = lattice.BITS,
) -> Stream:
  """Streams rows of N·Z as integers, in units of 2^−bits of the standard deviation of Z.

  Each row is its carried part, computed in float64 and rounded, and its fresh part:
  fresh(round, scale) is round(scale · ξ) for the normals ξ of the round.
  """
  strategies.check_strategy(strategy)
  noise, rows = strategy.noise(num_rounds), list(lattice.rows(strategy, num_rounds))

  def next_fn(state):
    t, buffers, normals = state
    if t >= num_rounds:
      raise ValueError(f'row {t} is beyond the {num_rounds} that there are')
    row = rows[t]
    if row.step.restart:
      buffers = linear_noise.start(noise, size)
    below = np.asarray(row.step.below)[: len(buffers)]
    carried = -(below @ buffers[: below.size]) if below.size else np.zeros(size)
    for group, weight in row.reads:
      carried = carried + weight * normals[group]
    made = fresh(t, abs(row.spread) * 2.0**bits)
    normals = (*normals, made / row.spread)
    result = np.rint(row.factor * carried).astype(np.int64) + made
    oldest = np.zeros(size)
    if row.oldest is not None:
      oldest = row.oldest[1] * normals[row.oldest[0]]
    y = result / row.step.scale
    return result, (t + 1, linear_noise.entered(noise, row.step, y, oldest, buffers), normals)

  return Stream(
    lambda: (0, linear_noise.start(noise, size), ()), next_fn, lambda state: next_fn(state)[1]
  )
