"""Linear noise in TensorFlow, eager or as part of a graph.

The round is a tensor there. So the steps of all rounds, or of those after which
they recur, are tables that the graph looks up.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import linear_noise
from fl_dpftrl.noise import reference
from fl_dpftrl.text import messages

# Row r of Z, a tensor for each part of the model.
NoiseSource = Callable[[tf.Tensor], list[tf.Tensor]]
# More ones than any round, an int64, ends in.
_HEIGHTS = 63


class Buffers(NamedTuple):
  """State of a stream between rows, for Z of standard deviation 1. Secret.

  Attributes:
    vectors: for each part of the model its buffers, newest first: float32,
      shape [buffers, *part]; empty without buffers.
    drawn: number of rows of Z that were used (scalar, int64); empty where every round uses one.
    response: the same buffers if Z were a single 1 in the first round (float64);
      empty where the steps say the norms.
    square: sum of the squares of the rows that follow from it (scalar, float64).
  """

  vectors: Any = ()
  drawn: Any = ()
  response: Any = ()
  square: Any = ()

  def __repr__(self) -> str:
    return messages.outline(self)


class Recurrence(NamedTuple):
  """How the rows of N·Z follow from those of Z, as two pure functions.

  Attributes:
    init: () → buffers.
    next: (z, t, buffers) → (row, norm, buffers): z gives the rows of Z, t is
      the round (scalar, int64), row has a tensor for each part of the model,
      and norm is ‖row t of N‖ (scalar, float64), so that the standard deviation
      of every coordinate of the row is norm times that of Z.
  """

  init: Callable[[], Buffers]
  next: Callable[[NoiseSource, tf.Tensor, Buffers], tuple[list, tf.Tensor, Buffers]]


def recurrence(strategy: strategies.Strategy, specs: Sequence[tf.TensorSpec]) -> Recurrence:
  """Returns the recurrence of a strategy for models whose parts are as specs say.

  Raises:
    ValueError: if strategy is not a Strategy, if its noise does not undo C, or if
      it has neither a last round nor noise of its own.
  """
  reference.check_is_strategy(strategy)
  num_rounds = strategy.max_rounds
  noise = strategy.noise(num_rounds)
  reference.check_undoes(strategy, noise, num_rounds)
  steps = _Steps(strategy, noise)
  responds, counts_draws = steps.norm is None, not steps.always('fresh', 1)

  def init():
    return Buffers(
      vectors=[steps.start(spec.shape, tf.float32) for spec in specs] if noise.num_buffers else (),
      drawn=tf.constant(0, tf.int64) if counts_draws else (),
      response=steps.start([], tf.float64) if responds else (),
      square=tf.constant(0.0, tf.float64) if responds else (),
    )

  def next_fn(z, t, buffers):
    if num_rounds is not None:
      limit = tf.constant(num_rounds, t.dtype)
      message = f'a strategy for {num_rounds} rounds has no noise for another round'
      with tf.control_dependencies([tf.debugging.assert_less(t, limit, message=message)]):
        t = tf.identity(t)
    step = steps.at(t)
    used = buffers.drawn if counts_draws else t
    row, oldest = steps.draw(step, z, used - step['earlier'])
    after = {'drawn': used + step['fresh']} if counts_draws else {}
    if noise.num_buffers:
      made = [steps.advance(step, *parts) for parts in zip(row, oldest, buffers.vectors)]
      row, after['vectors'] = map(list, zip(*made))
    else:
      row = [steps.times('own', step, part) for part in row]
    row = [steps.times('scale', step, part) for part in row]
    if not responds:
      return row, step['norm'], buffers._replace(**after)
    begins = tf.logical_or(tf.equal(t, 0), step['restart'])
    impulse = tf.cast(begins, tf.float64)
    entry, after['response'] = steps.advance(step, impulse, impulse, buffers.response)
    after['square'] = tf.where(begins, tf.zeros_like(entry), buffers.square) + entry**2
    return row, step['scale'] * tf.sqrt(after['square']), buffers._replace(**after)

  return Recurrence(init, next_fn)


class _Steps:
  """The steps of a noise as tables, from which a graph takes those of a round."""

  def __init__(self, strategy: strategies.Strategy, noise: linear_noise.LinearNoise):
    self.noise = noise
    rounds: Sequence[int]
    if noise.dyadic:
      rounds = [(1 << height) - 1 for height in range(_HEIGHTS)]
    elif noise.period is not None:
      rounds = range(noise.settles + noise.period)
    else:
      rounds = range(strategy.max_rounds or 0)
    steps = [noise.at(t) for t in rounds]
    self.norm = None if any(s.norm is None for s in steps) else [s.norm for s in steps]
    # Impulses need all digits. Divided beforehand: graphs multiply by the
    # reciprocal of a constant divisor, which rounds otherwise than division.
    below = _padded([list(np.asarray(s.below) / s.own) for s in steps])
    used = np.array([strategy.num_noise_rows(t + 1) - strategy.num_noise_rows(t) for t in rounds])
    self._tables = {
      'own': np.array([1.0 / s.own for s in steps]),
      'scale': np.array([s.scale for s in steps], np.float64),
      'draws': _padded([s.draws for s in steps]).astype(np.float32),
      'below': below if self.norm is None else below.astype(np.float32),
      'num_draws': np.array([len(s.draws) for s in steps], np.int64),
      'num_below': np.array([len(s.below) for s in steps], np.int32),
      'earlier': np.array([s.earlier for s in steps], np.int64),
      'fresh': used.astype(np.int64),
      'restart': np.array([s.restart for s in steps]),
    }
    if self.norm is not None:
      self._tables['norm'] = np.array(self.norm, np.float64)
    self._pushes = isinstance(steps[0].update, linear_noise.Push)
    for name in steps[0].update._fields if steps[0].update else ():
      self._tables[name] = np.array([getattr(s.update, name) for s in steps])

  def always(self, name: str, value: float) -> bool:
    """Returns whether a field has this value in all steps."""
    return bool((self._tables[name] == value).all())

  def at(self, t: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the fields of the step of a round."""
    if self.noise.dyadic:
      bits = tf.bitwise.right_shift(t, tf.range(_HEIGHTS, dtype=t.dtype)) & 1
      t = tf.reduce_sum(tf.math.cumprod(bits))
    elif self.noise.period is not None:
      beyond = tf.maximum(t - self.noise.settles, 0) % self.noise.period
      t = tf.minimum(t, self.noise.settles) + beyond
    return {name: tf.gather(table, t) for name, table in self._tables.items()}

  def times(self, name: str, step: dict[str, tf.Tensor], part: tf.Tensor) -> tf.Tensor:
    """Multiplies a tensor by a scalar field, where that is not always 1."""
    return part if self.always(name, 1.0) else tf.cast(step[name], part.dtype) * part

  def start(self, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """Returns the buffers of one part before row 0."""
    if not self._pushes:
      return tf.zeros([self.noise.num_buffers, *shape], dtype)
    # The placeholder keeps the height of the stack out of its static shape.
    return tf.compat.v1.placeholder_with_default(tf.zeros([0, *shape], dtype), [None, *shape])

  def draw(self, step: dict[str, tf.Tensor], z: NoiseSource, first: tf.Tensor) -> tuple[list, list]:
    """Returns the sum of the weighted rows of Z from `first` on, and the first."""
    oldest = z(first)
    if self.always('draws', 1.0) and self.always('num_draws', 1):
      return oldest, oldest
    weights, count = step['draws'], step['num_draws']
    _, row = tf.while_loop(
      lambda i, _: i < count,
      lambda i, row: (i + 1, [part + weights[i] * new for part, new in zip(row, z(first + i))]),
      (tf.ones_like(count), [weights[0] * part for part in oldest]),
      parallel_iterations=1,
    )
    return row, oldest

  def advance(
    self, step: dict[str, tf.Tensor], drawn: tf.Tensor, oldest: tf.Tensor, buffers: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Makes one part of a row, but for its scale; see `linear_noise.advance`."""
    if not self.always('restart', False):
      buffers = self._restarted(step, buffers)
    below = tf.cast(step['below'], buffers.dtype)
    read = buffers
    if self._pushes:
      count = tf.minimum(step['num_below'], tf.shape(buffers)[0])
      below, read = below[:count], buffers[:count]
    row = self.times('own', step, drawn) - tf.tensordot(below, read, 1)
    if self._pushes:
      newest = row
      if not self.always('merged', 0):
        newest = row + tf.reduce_sum(buffers[: step['merged']], 0)
        buffers = buffers[step['merged'] :]
      return row, tf.concat([newest[None], buffers], 0)[: self.noise.num_buffers]
    column = lambda name: tf.reshape(
      tf.cast(step[name], buffers.dtype), [-1] + [1] * row.shape.rank
    )
    if not self.always('losses', 0.0):
      buffers = buffers - column('losses') * buffers
    for gains, value in (('row_gains', row), ('draw_gains', oldest)):
      if not self.always(gains, 0.0):
        buffers = buffers + (value if self.always(gains, 1.0) else column(gains) * value)
    return row, buffers

  def _restarted(self, step: dict[str, tf.Tensor], buffers: tf.Tensor) -> tf.Tensor:
    if self._pushes:
      return buffers[: tf.where(step['restart'], 0, tf.shape(buffers)[0])]
    return tf.cond(step['restart'], lambda: tf.zeros_like(buffers), lambda: buffers)


def _padded(rows: list[Sequence[float] | np.ndarray]) -> np.ndarray:
  """Returns rows of several lengths as one table, with zeros at their ends."""
  table = np.zeros((len(rows), max(map(len, rows))))
  for values, row in zip(table, rows):
    values[: len(row)] = row
  return table
