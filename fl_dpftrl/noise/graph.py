"""Noise in integers in TensorFlow, eager or as part of a graph.

The round is a tensor there. So the rows of all rounds, or of those after which they recur, are
tables that the graph looks up. Normals are float64, and their rounding is not proven to be exact:
rows are on the lattice of `mechanisms.lattice`, and its theorem does not cover them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms import lattice, linear_noise, undoing
from fl_dpftrl.noise import randomness
from fl_dpftrl.support.text import messages

# Normals of round t, float64, a tensor for each part of the model.
NoiseSource = Callable[[tf.Tensor], list[tf.Tensor]]
# More ones than any round, an int64, ends in.
_HEIGHTS = 63


class Buffers(NamedTuple):
  """State of a stream between rows, in units of the lattice. Secret.

  Attributes:
    vectors: for each part of the model its buffers, newest first: float64,
      shape [buffers, *part]; empty without buffers. Where the steps do not say the norms, the last
      are those of a part whose Z is a single 1 in the first round.
    square: sum of the squares of the rows of that part (scalar, float64); empty without it.
  """

  vectors: Any = ()
  square: Any = ()

  def __repr__(self) -> str:
    return messages.outline(self)


class Rows:
  """The rows of N·Z for a model, which follow from normals by tables of what each row takes.

  Args:
    specs: parts of the model.
    bits: p; rows are in units of 2⁻ᵖ of the standard deviation of Z. Another one is for tests.
  """

  def __init__(
    self, strategy: strategies.Strategy, specs: Sequence[tf.TensorSpec], bits: int = lattice.BITS
  ):
    strategies.check_strategy(strategy)
    self._specs, self._num_rounds, self._bits = specs, strategy.max_rounds, bits
    noise = self._noise = strategy.noise(strategy.max_rounds)
    undoing.check_undoes(strategy, noise, strategy.max_rounds)
    if noise.dyadic:
      rows = [lattice.dyadic_row(strategy, height) for height in range(_HEIGHTS)]
    elif noise.period is not None:
      rows = list(lattice.rows(strategy, noise.settles + noise.period))
    else:
      rows = list(lattice.rows(strategy, strategy.max_rounds or 0))
    steps = [row.step for row in rows]
    self._responds = any(step.norm is None for step in steps)
    reads = [row.reads for row in rows]
    self._tables = {
      'scale': np.array([s.scale for s in steps], np.float64),
      'spread': np.array([row.spread for row in rows]),
      'below': _padded([row.factor * np.asarray(row.step.below, np.float64) for row in rows]),
      'num_below': np.array([len(s.below) for s in steps], np.int32),
      'weights': _padded([[row.factor * weight for _, weight in row.reads] for row in rows]),
      'lags': _padded([[t - group for group, _ in each] for t, each in enumerate(reads)]).astype(
        np.int64
      ),
      'num_reads': np.array([len(each) for each in reads], np.int64),
      'restart': np.array([s.restart for s in steps]),
    }
    if not self._responds:
      self._tables['norm'] = np.array([step.norm for step in steps], np.float64)
    if any(row.oldest for row in rows):
      oldest = [row.oldest or (t, 0.0) for t, row in enumerate(rows)]
      self._tables['oldest_lag'] = np.array([t - group for t, (group, _) in enumerate(oldest)])
      self._tables['oldest_sign'] = np.array([sign for _, sign in oldest])
    self._pushes = isinstance(steps[0].update, linear_noise.Push)
    for name in steps[0].update._fields if steps[0].update else ():
      self._tables[name] = np.array([getattr(s.update, name) for s in steps])

  def start(self) -> Buffers:
    """Returns the buffers before row 0."""
    shapes, square = [spec.shape for spec in self._specs], ()
    if self._responds:
      shapes, square = [*shapes, []], tf.constant(0.0, tf.float64)
    return Buffers(list(map(self._start, shapes)) if self._noise.num_buffers else (), square)

  def next(
    self, z: NoiseSource, t: tf.Tensor, buffers: Buffers
  ) -> tuple[list[tf.Tensor], tf.Tensor, Buffers]:
    """Makes a row.

    Args:
      z: gives the normals of a round.
      t: the round (scalar, int64).
      buffers: before it.

    Returns:
      The row, an int64 tensor for each part of the model; ‖row t of N‖ (scalar, float64); and the
      buffers after it.
    """
    if self._num_rounds is not None:
      limit = tf.constant(self._num_rounds, t.dtype)
      message = f'a strategy for {self._num_rounds} rounds has no noise for another round'
      with tf.control_dependencies([tf.debugging.assert_less(t, limit, message=message)]):
        t = tf.identity(t)
    place = self._place(t)
    row = {name: tf.gather(table, place) for name, table in self._tables.items()}
    normals, again, oldest = self._draw(row, z, t)
    before = buffers.vectors or [()] * (len(normals) + self._responds)
    parts = [self._part(row, *part) for part in zip(normals, again, oldest, before)]
    result, vectors = map(list, zip(*parts))
    if self._responds:
      begins = tf.logical_or(tf.equal(t, 0), row['restart'])
      impulse, zero = tf.cast(begins, tf.float64) * row['spread'], tf.zeros([], tf.float64)
      response = self._restarted(row, before[-1])
      entry = impulse + self._carried(row, zero, response)
      response = self._entered(row, entry, zero, response)
      square = tf.where(begins, zero, buffers.square) + tf.square(entry / row['scale'])
      vectors, norm = [*vectors, response], row['scale'] * tf.sqrt(square)
    else:
      square, norm = (), row['norm']
    return result, norm, Buffers(vectors if self._noise.num_buffers else (), square)

  def _always(self, name: str, value: float) -> bool:
    """Returns whether a field has this value in all steps."""
    return bool((self._tables[name] == value).all())

  def _place(self, t: tf.Tensor) -> tf.Tensor:
    """Returns the place in the tables of the row of a round."""
    if self._noise.dyadic:
      bits = tf.bitwise.right_shift(t, tf.range(_HEIGHTS, dtype=t.dtype)) & 1
      return tf.reduce_sum(tf.math.cumprod(bits))
    if self._noise.period is not None:
      beyond = tf.maximum(t - self._noise.settles, 0) % self._noise.period
      return tf.minimum(t, self._noise.settles) + beyond
    return t

  def _start(self, shape: Sequence[int]) -> tf.Tensor:
    """Returns the buffers of one part before row 0."""
    if not self._pushes:
      return tf.zeros([self._noise.num_buffers, *shape], tf.float64)
    # The placeholder keeps the height of the stack out of its static shape.
    empty = tf.zeros([0, *shape], tf.float64)
    return tf.compat.v1.placeholder_with_default(empty, [None, *shape])

  def _draw(
    self, row: dict[str, tf.Tensor], z: NoiseSource, t: tf.Tensor
  ) -> tuple[list, list, list]:
    """Returns a round's normals, the sum of those read again, and the one that was first."""
    normals = z(t)
    again = [tf.zeros([], tf.float64)] * len(normals)
    if not self._always('num_reads', 0):
      weights, lags = row['weights'], row['lags']
      _, again = tf.while_loop(
        lambda i, _: i < row['num_reads'],
        lambda i, sums: (
          i + 1,
          [s + weights[i] * part for s, part in zip(sums, self._normals(z, t - lags[i]))],
        ),
        (tf.zeros_like(row['num_reads']), list(map(tf.zeros_like, normals))),
        parallel_iterations=1,
      )
    oldest = [tf.zeros([], tf.float64)] * len(normals)
    if 'oldest_lag' in row:
      drawn = self._normals(z, t - row['oldest_lag'])
      oldest = [row['oldest_sign'] * part for part in drawn]
    return normals, again, oldest

  def _normals(self, z: NoiseSource, t: tf.Tensor) -> list[tf.Tensor]:
    """The normals of an earlier round as its row had them, in units of the lattice."""
    spread = tf.gather(self._tables['spread'], self._place(t))
    return [self._integers(spread, part) / spread for part in z(t)]

  def _integers(self, spread: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    return tf.math.rint(tf.abs(spread) * 2.0**self._bits * part)

  def _part(
    self, row: dict[str, tf.Tensor], normals: Any, again: Any, oldest: Any, buffers: Any
  ) -> tuple[tf.Tensor, Any]:
    """Makes one part of a row, int64, and its buffers, which follow these whole numbers."""
    # XLA would compile a stack anew whenever it grows.
    by_xla = (lambda call, *args: call(*args)) if self._pushes else randomness.by_xla
    buffers = self._restarted(row, buffers)
    part = by_xla(self._whole, row, normals, again, buffers)
    if not self._noise.num_buffers:
      return part, buffers
    return part, by_xla(self._entered, row, part, oldest, buffers)

  def _whole(self, row: dict[str, tf.Tensor], normals: Any, again: Any, buffers: Any) -> tf.Tensor:
    carried = tf.math.rint(self._carried(row, again, buffers))
    return tf.cast(self._integers(row['spread'], normals) + carried, tf.int64)

  def _carried(self, row: dict[str, tf.Tensor], again: Any, buffers: Any) -> tf.Tensor:
    """Returns what a row has of normals that are read again, and of buffers."""
    if not self._noise.num_buffers:
      return again
    if self._pushes:
      count = tf.minimum(row['num_below'], tf.shape(buffers)[0])
      return again - tf.tensordot(row['below'][:count], buffers[:count], 1)
    return again - tf.reduce_sum(_column(row['below'], buffers) * buffers, 0)

  def _entered(self, row: dict[str, tf.Tensor], part: Any, oldest: Any, buffers: Any) -> tf.Tensor:
    """Returns the buffers after a row, and the normal that its round drew first."""
    part = tf.cast(part, tf.float64)
    y = part if self._always('scale', 1.0) else part / row['scale']
    if self._pushes:
      newest = y
      if not self._always('merged', 0):
        newest = y + tf.reduce_sum(buffers[: row['merged']], 0)
        buffers = buffers[row['merged'] :]
      return tf.concat([newest[None], buffers], 0)[: self._noise.num_buffers]
    if not self._always('losses', 0.0):
      buffers = buffers - _column(row['losses'], buffers) * buffers
    for gains, value in (('row_gains', y), ('draw_gains', oldest)):
      if not self._always(gains, 0.0):
        weight = 1.0 if self._always(gains, 1.0) else _column(row[gains], buffers)
        buffers = buffers + weight * value
    return buffers

  def _restarted(self, row: dict[str, tf.Tensor], buffers: tf.Tensor) -> tf.Tensor:
    if not self._noise.num_buffers or self._always('restart', False):
      return buffers
    if self._pushes:
      return buffers[: tf.where(row['restart'], 0, tf.shape(buffers)[0])]
    return tf.cond(row['restart'], lambda: tf.zeros_like(buffers), lambda: buffers)


def _column(values: tf.Tensor, buffers: tf.Tensor) -> tf.Tensor:
  """Returns a value for each buffer, in their shape."""
  return tf.reshape(values, [-1] + [1] * (buffers.shape.rank - 1))


def _padded(rows: list[Sequence[float] | np.ndarray]) -> np.ndarray:
  """Returns rows of several lengths as one table, with zeros at their ends."""
  table = np.zeros((len(rows), max(map(len, rows))))
  for values, row in zip(table, rows):
    values[: len(row)] = row
  return table
