"""The streams in plain NumPy: what the TensorFlow streams are measured by."""

import functools

import numpy as np

from fl_dpftrl.noise import base
from fl_dpftrl.strategies import banded
from fl_dpftrl.strategies import base as strategies
from fl_dpftrl.strategies import blt
from fl_dpftrl.strategies import identity
from fl_dpftrl.strategies import tree


@functools.singledispatch
def reference_stream(
    strategy: strategies.Strategy, z: np.ndarray
) -> base.NoiseStream:
  """Streams the rows of N·Z for a given Z, without ever forming N.

  Args:
    strategy: of a family that has a stream.
    z: Z, shape [strategy.num_noise_rows(num_rounds), d], float64.

  Returns:
    A stream of rows of shape [d]. It raises ValueError where a row needs more
    of Z than there is, or the strategy has no more rounds.

  Raises:
    ValueError: where the family has no stream.
  """
  del z
  raise ValueError(f'strategy has no noise stream: {strategy!r}')


def _row(z: np.ndarray, row: int) -> np.ndarray:
  if row >= len(z):
    raise ValueError(f'z has {len(z)} rows, row {row} is needed')
  return np.asarray(z[row], dtype=np.float64)


@reference_stream.register
def _(strategy: identity.Identity, z: np.ndarray) -> base.NoiseStream:
  del strategy
  return base.NoiseStream(lambda: 0, lambda t: (_row(z, t), t + 1))


@reference_stream.register
def _(strategy: banded.Banded, z: np.ndarray) -> base.NoiseStream:
  """C y = z by forward substitution, over the last num_bands − 1 rows of y."""
  history_shape = (strategy.num_bands - 1, z.shape[1])

  def next_fn(state):
    t, history = state  # history[j - 1] is row t - j.
    strategies.check_num_rounds(strategy, t + 1)
    diagonal, *below = strategy.coefficients[t]
    row = (_row(z, t) - np.asarray(below) @ history) / diagonal
    return row, (t + 1, np.vstack([row, history])[: strategy.num_bands - 1])

  return base.NoiseStream(lambda: (0, np.zeros(history_shape)), next_fn)


@reference_stream.register
def _(strategy: blt.BLT, z: np.ndarray) -> base.NoiseStream:
  """McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), algorithm 1."""
  decay = np.asarray(strategy.buffer_decay)[:, None]
  scale = np.asarray(strategy.output_scale)

  def next_fn(state):
    t, buffers = state
    row = _row(z, t) - scale @ buffers
    return row, (t + 1, decay * buffers + row)

  buffers_shape = (strategy.num_buffers, z.shape[1])
  return base.NoiseStream(lambda: (0, np.zeros(buffers_shape)), next_fn)


@reference_stream.register
def _(strategy: tree.TreeOnline, z: np.ndarray) -> base.NoiseStream:
  """Honaker 2015: a node's estimate, once finished, replaces its children's."""
  del strategy

  def next_fn(state):
    t, pending = state  # Estimates of the nodes that tile the rounds before t.
    first = tree.first_node(t)
    estimate, replaced = _row(z, first), np.zeros(z.shape[1])
    for height in range(1, tree.nodes_completed(t)):
      *pending, sibling = pending
      replaced = replaced + sibling
      own = tree.own_weight(height)
      estimate = own * _row(z, first + height) + (1.0 - own) * (
          sibling + estimate
      )
    return estimate - replaced, (t + 1, (*pending, estimate))

  return base.NoiseStream(lambda: (0, ()), next_fn)
