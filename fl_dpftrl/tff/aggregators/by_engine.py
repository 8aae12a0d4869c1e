"""Noise rows that an engine makes in this process, for rounds that run in it.

A row is a function of the seed and its number, and TFF's state holds both. The
engine's buffers are no state: they save making the rows before it again.
"""

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms.files import documents
from fl_dpftrl.noise import ahead, graph, integer_rows, normals
from fl_dpftrl.noise import stream as streams
from fl_dpftrl.tff.aggregators import placement
from tff_inprocess import graphs

_SNAPSHOT_ROWS = 64


def make_stream(
  strategy: strategies.Strategy,
  template: Any,
  *,
  noise_seed: int | None = None,
  is_silent: bool = False,
  folder: str | os.PathLike[str] | None = None,
  machines: int | None = None,
) -> streams.NoiseStream:
  """Returns the engine's int64 rows as a stream of this process; it fails past the last round."""
  specs = tf.nest.flatten(template)
  sizes = [spec.shape.num_elements() for spec in specs]
  rows = _Rows(strategy, sizes, is_silent, folder, machines)

  def init():
    (seed,) = graphs.python_call(_Seed(noise_seed), [], [tf.int64])
    return streams.StreamState(
      seed=tf.ensure_shape(seed, [normals.SEED_BYTES // 8]),
      row=tf.constant(0, tf.int64),
      row_stddev=tf.constant(0.0, tf.float64),
      buffers=graph.Buffers(),
      trail=tf.constant(0, tf.int64),
    )

  def next_fn(state):
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    types = [*[tf.int64] * len(sizes), tf.float64, tf.int64]
    *parts, norm, trail = graphs.python_call(rows, [state.seed, state.row, state.trail], types)
    row = [
      tf.reshape(tf.ensure_shape(part, [size]), spec.shape)
      for part, size, spec in zip(parts, sizes, specs)
    ]
    advanced = state._replace(
      row=state.row + 1, row_stddev=tf.ensure_shape(norm, []), trail=tf.ensure_shape(trail, [])
    )
    return tf.nest.pack_sequence_as(template, row), advanced

  def skip(state):  # The row is not made.
    return state._replace(
      row=state.row + 1, row_stddev=tf.constant(0.0, tf.float64), trail=tf.constant(0, tf.int64)
    )

  return streams.NoiseStream(init, next_fn, skip)


def seed_identity(noise_seed: int | None) -> int:
  """Returns bits that tell the engine's use of a seed from that in TFF's state."""
  return documents.short_digest(b'fl_dpftrl engine %d, %a' % (integer_rows.VERSION, noise_seed))


def identity(node: tf.compat.v1.NodeDef) -> str | None:
  """Returns what an engine's operation computes, the same in all graphs; None for any other."""
  callback = graphs.callback_of(node)
  return callback.identity if isinstance(callback, (_Seed, _Rows)) else None


class _Seed:
  """A seed as a `graphs.Callback` that runs with each `initialize()`."""

  def __init__(self, noise_seed: int | None):
    self._noise_seed = noise_seed
    self.identity = f'seed {noise_seed}'

  def __call__(self) -> np.ndarray:
    fixed_seed = self._noise_seed
    seed = normals.system_seed() if fixed_seed is None else normals.fixed_seed(fixed_seed)
    return np.frombuffer(seed, '<i8').astype(np.int64)

  def resources(self) -> None:
    return None


class _Rows:
  """Rows of a strategy as a `graphs.Callback`; memory lives as long as compiled computations."""

  def __init__(
    self,
    strategy: strategies.Strategy,
    sizes: Sequence[int],
    is_silent: bool,
    folder: str | os.PathLike[str] | None,
    machines: int | None,
  ):
    self._size, self._ends, self._is_silent = sum(sizes), np.cumsum(sizes)[:-1], is_silent
    self._strategy, self._folder, self._machines = strategy, folder, machines
    self.identity = f'rows {documents.strategy_digest(strategy)} {list(sizes)} {is_silent}'
    self._num_rounds = placement.num_rounds(strategy)
    self._lock = threading.Lock()
    self._rows: Callable[[], ahead.Rows | None] = lambda: None

  def __call__(self, seed: np.ndarray, row: np.ndarray, trail: np.ndarray) -> tuple[Any, ...]:
    """Returns the parts of a row, int64, then its standard deviation, and the trail with it."""
    if row >= self._num_rounds:
      raise ValueError(f'a strategy for {self._num_rounds} rounds has no noise for another round')
    if self._is_silent:
      return *self._parts(np.zeros(self._size, np.int64)), 0.0, trail
    values, position = self.resources().row(seed.astype('<i8').tobytes(), int(row))
    if int(trail) and int(trail) % 2**64 != position.before:
      raise ValueError(
        'this machine makes other rows of noise than the one that made the rows before: go on'
        ' there, or begin another run'
      )
    return (
      *self._parts(values),
      position.norm,
      np.int64(position.after - (position.after >> 63 << 64)),
    )

  def _parts(self, row: np.ndarray) -> list[np.ndarray]:
    return np.split(row, self._ends)

  def resources(self) -> ahead.Rows:
    with self._lock:
      rows = self._rows()
      if rows is None:
        rows = ahead.Rows(self._source, self._size, self._num_rounds)
        self._rows = weakref.ref(rows)
      return rows

  def _source(self, seed: bytes) -> ahead.Source:
    recipe: dict[str, Any] = {
      'strategy': self._strategy,
      'size': self._size,
      'seed': seed,
      'num_rounds': self._num_rounds,
      'snapshot_rows': _SNAPSHOT_ROWS,
      'folder': self._folder,
    }
    if self._machines is not None:
      from fl_dpftrl.noise import shards  # Needs Ray.

      return shards.RowSlices(self._machines, **recipe)
    if not placement.fits_memory(self._strategy, self._size):
      recipe['mapped_in'] = self._folder or tempfile.gettempdir()
    return ahead.LocalSource(**recipe)
