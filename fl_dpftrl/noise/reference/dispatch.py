"""The function that returns the reference stream of any family."""

import functools

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise import base


@functools.singledispatch
def reference_stream(strategy: strategies.Strategy, z: np.ndarray) -> base.NoiseStream:
  """Streams the rows of N·Z for a given Z.

  A family without a stream of its own forms N anew for each row.

  Args:
    strategy: of any family.
    z: Z, shape [strategy.num_noise_rows(num_rounds), d], float64.

  Returns:
    A stream of rows of shape [d]. It raises ValueError where a row needs more
    of Z than there is, or the strategy has no more rounds.

  Raises:
    ValueError: if strategy is none.
  """
  if not isinstance(strategy, strategies.Strategy):
    raise ValueError(f'strategy has no noise stream: {strategy!r}')

  def next_fn(t):
    strategies.check_num_rounds(strategy, t + 1)
    weights = strategy.noising_matrix(t + 1)[t]
    row_of(z, weights.size - 1)
    return weights @ z[: weights.size], t + 1

  return base.NoiseStream(lambda: 0, next_fn)


def row_of(z: np.ndarray, row: int) -> np.ndarray:
  if row >= len(z):
    raise ValueError(f'z has {len(z)} rows, row {row} is needed')
  return np.asarray(z[row], dtype=np.float64)
