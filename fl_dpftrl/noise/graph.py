"""Noise in integers in TensorFlow, eager or as part of a graph.

The round is a tensor there. So the rows of all rounds, or of those after which they recur, are
tables that the graph looks up. Normals are float64, and their rounding is not proven to be exact:
rows are on the lattice of `families.lattice`, and its theorem does not cover them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import lattice, linear_noise, undoing
from fl_dpftrl.text import messages

# Normals of round t, float64, a tensor for each part of the model.
NoiseSource = Callable[[tf.Tensor], list[tf.Tensor]]
# More ones than any round, an int64, ends in.
_HEIGHTS = 63


class Buffers(NamedTuple):
  """State of a stream between rows, in units of the lattice. Secret.

  Attributes:
    vectors: for each part of the model its buffers, newest first: float64,
      shape [buffers, *part]; empty without buffers.
    response: the same buffers if Z were a single 1 in the first round (float64);
      empty where the steps say the norms.
    square: sum of the squares of the rows that follow from it (scalar, float64).
  """

  vectors: Any = ()
  response: Any = ()
  square: Any = ()

  def __repr__(self) -> str:
    return messages.outline(self)


def recurrence(
  strategy: strategies.Strategy, specs: Sequence[tf.TensorSpec], bits: int = lattice.BITS
) -> tuple[Callable[[], Buffers], Callable[..., tuple[list, tf.Tensor, Buffers]]]:
  """Returns how the rows of N·Z for a model follow from normals, as two pure functions.

  They are () → buffers, and (z, t, buffers) → (row, norm, buffers): z gives the normals of a round,
  t is the round (scalar, int64), row has an int64 tensor for each part of the model, in units of
  2^−bits of the standard deviation of Z, and norm is ‖row t of N‖ (scalar, float64).
  """
  strategies.check_strategy(strategy)
  num_rounds = strategy.max_rounds
  noise = strategy.noise(num_rounds)
  undoing.check_undoes(strategy, noise, num_rounds)
  rows = _RowTables(strategy, noise, bits)
  responds = rows.norm is None

  def init():
    return Buffers(
      vectors=[rows.start(spec.shape) for spec in specs] if noise.num_buffers else (),
      response=rows.start([]) if responds else (),
      square=tf.constant(0.0, tf.float64) if responds else (),
    )

  def next_fn(z, t, buffers):
    t = within(t, num_rounds)
    row = rows.at(t)
    fresh, again, oldest = rows.draw(row, z, t)
    state = {}
    vectors = buffers.vectors or [()] * len(specs)
    pairs = [rows.advance(row, *parts) for parts in zip(fresh, again, oldest, vectors)]
    result = [tf.cast(part, tf.int64) for part, _ in pairs]
    if noise.num_buffers:
      state['vectors'] = [buffered for _, buffered in pairs]
    if not responds:
      return result, row['norm'], buffers._replace(**state)
    begins = tf.logical_or(tf.equal(t, 0), row['restart'])
    impulse, zero = tf.cast(begins, tf.float64) * row['spread'], tf.zeros([], tf.float64)
    entry, state['response'] = rows.advance(row, impulse, zero, zero, buffers.response, rint=False)
    square = tf.where(begins, zero, buffers.square) + tf.square(entry / row['scale'])
    norm = row['scale'] * tf.sqrt(square)
    return result, norm, buffers._replace(**state, square=square)

  return init, next_fn


def within(t: tf.Tensor, num_rounds: int | None) -> tf.Tensor:
  """Returns a round unchanged; fails unless it is below num_rounds, where that is not None."""
  if num_rounds is None:
    return t
  limit = tf.constant(num_rounds, t.dtype)
  message = f'a strategy for {num_rounds} rounds has no noise for another round'
  with tf.control_dependencies([tf.debugging.assert_less(t, limit, message=message)]):
    return tf.identity(t)


class _RowTables:
  """The rows of a noise as tables, from which a graph takes those of a round."""

  def __init__(self, strategy: strategies.Strategy, noise: linear_noise.LinearNoise, bits: int):
    self.noise, self._bits = noise, bits
    if noise.dyadic:
      rows = [lattice.dyadic_row(strategy, height) for height in range(_HEIGHTS)]
    elif noise.period is not None:
      rows = list(lattice.rows(strategy, noise.settles + noise.period))
    else:
      rows = list(lattice.rows(strategy, strategy.max_rounds or 0))
    steps = [row.step for row in rows]
    self.norm = None if any(s.norm is None for s in steps) else [s.norm for s in steps]
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
    if self.norm is not None:
      self._tables['norm'] = np.array(self.norm, np.float64)
    if any(row.oldest for row in rows):
      oldest = [row.oldest or (t, 0.0) for t, row in enumerate(rows)]
      self._tables['oldest_lag'] = np.array([t - group for t, (group, _) in enumerate(oldest)])
      self._tables['oldest_sign'] = np.array([sign for _, sign in oldest])
    self._pushes = isinstance(steps[0].update, linear_noise.Push)
    for name in steps[0].update._fields if steps[0].update else ():
      self._tables[name] = np.array([getattr(s.update, name) for s in steps])

  def always(self, name: str, value: float) -> bool:
    """Returns whether a field has this value in all steps."""
    return bool((self._tables[name] == value).all())

  def at(self, t: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the fields of the row of a round."""
    t = self._place(t)
    return {name: tf.gather(table, t) for name, table in self._tables.items()}

  def _place(self, t: tf.Tensor) -> tf.Tensor:
    if self.noise.dyadic:
      bits = tf.bitwise.right_shift(t, tf.range(_HEIGHTS, dtype=t.dtype)) & 1
      return tf.reduce_sum(tf.math.cumprod(bits))
    if self.noise.period is not None:
      beyond = tf.maximum(t - self.noise.settles, 0) % self.noise.period
      return tf.minimum(t, self.noise.settles) + beyond
    return t

  def start(self, shape: Sequence[int]) -> tf.Tensor:
    """Returns the buffers of one part before row 0."""
    if not self._pushes:
      return tf.zeros([self.noise.num_buffers, *shape], tf.float64)
    # The placeholder keeps the height of the stack out of its static shape.
    empty = tf.zeros([0, *shape], tf.float64)
    return tf.compat.v1.placeholder_with_default(empty, [None, *shape])

  def draw(
    self, row: dict[str, tf.Tensor], z: NoiseSource, t: tf.Tensor
  ) -> tuple[list, list, list]:
    """Returns the fresh part, the sum of what is read again, and the normal that was first."""
    fresh = self._integers(row['spread'], z(t))
    again = [tf.zeros_like(part) for part in fresh]
    if not self.always('num_reads', 0):
      weights, lags = row['weights'], row['lags']
      _, again = tf.while_loop(
        lambda i, _: i < row['num_reads'],
        lambda i, sums: (
          i + 1,
          [s + weights[i] * part for s, part in zip(sums, self._normals(z, t - lags[i]))],
        ),
        (tf.zeros_like(row['num_reads']), again),
        parallel_iterations=1,
      )
    oldest = [0.0] * len(fresh)
    if 'oldest_lag' in row:
      drawn = self._normals(z, t - row['oldest_lag'])
      oldest = [row['oldest_sign'] * part for part in drawn]
    return fresh, again, oldest

  def _normals(self, z: NoiseSource, t: tf.Tensor) -> list[tf.Tensor]:
    """The normals of an earlier round as its row had them, in units of the lattice."""
    spread = tf.gather(self._tables['spread'], self._place(t))
    return [part / spread for part in self._integers(spread, z(t))]

  def _integers(self, spread: tf.Tensor, parts: list[tf.Tensor]) -> list[tf.Tensor]:
    scale = tf.abs(spread) * 2.0**self._bits
    return [tf.math.rint(scale * part) for part in parts]

  def advance(
    self, row: dict[str, tf.Tensor], fresh: Any, again: Any, oldest: Any, buffers: Any, rint=True
  ) -> tuple[tf.Tensor, Any]:
    """Makes one part of a row, of whole numbers unless rint is False, and its buffers."""
    rounded = tf.math.rint if rint else tf.identity
    if not self.noise.num_buffers:
      return fresh + rounded(again), buffers
    if not self.always('restart', False):
      buffers = self._restarted(row, buffers)
    below, read = row['below'], buffers
    if self._pushes:
      count = tf.minimum(row['num_below'], tf.shape(buffers)[0])
      below, read = below[:count], buffers[:count]
    part = fresh + rounded(again - tf.tensordot(below, read, 1))
    y = part if self.always('scale', 1.0) else part / row['scale']
    if self._pushes:
      newest = y
      if not self.always('merged', 0):
        newest = y + tf.reduce_sum(buffers[: row['merged']], 0)
        buffers = buffers[row['merged'] :]
      return part, tf.concat([newest[None], buffers], 0)[: self.noise.num_buffers]
    column = lambda name: tf.reshape(row[name], [-1] + [1] * part.shape.rank)
    if not self.always('losses', 0.0):
      buffers = buffers - column('losses') * buffers
    for gains, value in (('row_gains', y), ('draw_gains', oldest)):
      if not self.always(gains, 0.0):
        buffers = buffers + (value if self.always(gains, 1.0) else column(gains) * value)
    return part, buffers

  def _restarted(self, row: dict[str, tf.Tensor], buffers: tf.Tensor) -> tf.Tensor:
    if self._pushes:
      return buffers[: tf.where(row['restart'], 0, tf.shape(buffers)[0])]
    return tf.cond(row['restart'], lambda: tf.zeros_like(buffers), lambda: buffers)


def _padded(rows: list[Sequence[float] | np.ndarray]) -> np.ndarray:
  """Returns rows of several lengths as one table, with zeros at their ends."""
  table = np.zeros((len(rows), max(map(len, rows))))
  for values, row in zip(table, rows):
    values[: len(row)] = row
  return table
