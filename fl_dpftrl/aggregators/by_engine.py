"""Noise rows that an engine makes in this process, for rounds that run in it.

A row is a function of the seed and its number, and TFF's state holds both. The
engine's buffers are no state: they save making the rows before it again.
"""

import functools
import os
import pathlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fl_dpftrl.aggregators import placement
from fl_dpftrl.families import base as strategies
from fl_dpftrl.files import durable, json_files
from fl_dpftrl.noise import ahead, draws, graph, randomness, reference, snapshots
from fl_dpftrl.noise import rows as rows_lib
from fl_dpftrl.noise import stream as streams
from fl_dpftrl.runtime import callbacks
from fl_dpftrl.strategies import document

_PRECISION = 'float32'
_SNAPSHOT_ROWS = 16


def make_stream(
  strategy: strategies.Strategy,
  template: Any,
  *,
  stddev: float,
  noise_seed: int | None = None,
  folder: str | os.PathLike[str] | None = None,
  machines: int | None = None,
) -> reference.NoiseStream:
  """Returns the engine's rows as a stream that runs in this process alone.

  The arguments are those of `streams.make_stream`, a folder for snapshots, and the number of
  actors that make slices of the rows. The state has no buffers, and `next` fails with an
  InvalidArgumentError past the strategy's last round.

  Raises:
    ValueError: for an argument that will not do.
  """
  specs = streams.check_template(template)
  sizes = [spec.shape.num_elements() for spec in specs]
  rows = _Rows(strategy, sum(sizes), stddev, folder, machines)

  def init():
    if noise_seed is None:
      seed = randomness.system_seed()
    else:
      words = np.frombuffer(draws.fixed_seed(noise_seed), '<i8')
      seed = tf.constant(words, randomness.SEED_SPEC.dtype)
    return streams.StreamState(
      seed=seed, row=tf.constant(0, tf.int64), row_stddev=tf.constant(0.0), buffers=graph.Buffers()
    )

  def next_fn(state):
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    types = [tf.float32, tf.float64]
    values, row_stddev = callbacks.call(rows, [state.seed, state.row], types)
    parts = tf.split(tf.ensure_shape(values, [rows.size]), sizes)
    row = [tf.reshape(part, spec.shape) for part, spec in zip(parts, specs)]
    row_stddev = tf.cast(tf.ensure_shape(row_stddev, []), tf.float32)
    advanced = state._replace(row=state.row + 1, row_stddev=row_stddev)
    return tf.nest.pack_sequence_as(template, row), advanced

  return reference.NoiseStream(init, next_fn, streams.skip_unread)


def seed_identity(noise_seed: int | None) -> int:
  """Returns bits that tell the engine's use of a seed from that in TFF's state."""
  return document.short_digest(b'fl_dpftrl engine %d, %a' % (rows_lib.VERSION, noise_seed))


class _Rows:
  """Rows of a strategy as a `callbacks.Callback`.

  What needs memory lives as long as computations that are compiled with it, and is
  made anew where it is needed again.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    size: int,
    stddev: float,
    folder: str | os.PathLike[str] | None,
    machines: int | None,
  ):
    self.size = size
    self._strategy, self._stddev = strategy, stddev
    self._folder, self._machines = folder, machines
    self._num_rounds = placement.num_rounds(strategy)
    rows_lib.check(size=size, stddev=stddev, memory='memory', precision=_PRECISION)
    self._lock = threading.Lock()
    self._rows: Callable[[], ahead.Rows | None] = lambda: None

  def __call__(self, seed: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, float]:
    return self.resources().row(seed.astype('<i8').tobytes(), int(row))

  def resources(self) -> ahead.Rows:
    with self._lock:
      rows = self._rows()
      if rows is None:
        rows = ahead.Rows(self._source, self.size, self._num_rounds)
        self._rows = weakref.ref(rows)
      return rows

  def _source(self, seed: bytes) -> ahead.Source:
    if self._machines is not None:
      from fl_dpftrl.noise import shards  # Needs Ray.

      return shards.RowSlices(
        self._machines,
        strategy=self._strategy,
        size=self.size,
        seed=seed,
        stddev=self._stddev,
        num_rounds=self._num_rounds,
        precision=_PRECISION,
        snapshot_rows=_SNAPSHOT_ROWS,
        folder=self._folder,
      )
    recipe: json_files.Object = dict(
      strategy=self._strategy, size=self.size, seed=seed, precision=_PRECISION
    )
    saved = None
    if self._folder is not None:
      folder = pathlib.Path(self._folder)
      folder.mkdir(mode=0o700, parents=True, exist_ok=True)
      folder.chmod(0o700)
      durable.remove_leftovers(folder)
      saved = snapshots.Snapshots(folder, rows_lib.identity(**recipe), self._num_rounds)
    new_maker = functools.partial(
      rows_lib.RowMaker,
      **recipe,
      stddev=self._stddev,
      num_rounds=self._num_rounds,
      memory=placement.engine_memory(self._strategy, 4 * self.size),
      folder=self._folder,
    )
    return ahead.LocalSource(new_maker, saved, _SNAPSHOT_ROWS)
