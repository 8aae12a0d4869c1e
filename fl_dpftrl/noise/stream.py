"""Streams of noise in TensorFlow, for models of any structure."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.noise import graph, randomness
from fl_dpftrl.support.text import messages

# (seed, t, specs) → standard normals of round t, float64, a tensor a spec.
Draw = Callable[[tf.Tensor, tf.Tensor, list[tf.TensorSpec]], list[tf.Tensor]]


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


class StreamState(NamedTuple):
  """All that a stream remembers. Secret: it determines all noise to come.

  Attributes:
    seed: int64, shape [2]; [4] where an engine makes the rows.
    row: t, the row that comes next (scalar, int64).
    row_stddev: standard deviation of each coordinate of the row that came last, that of Z
      being 1 (scalar, float64); 0 before the first.
    buffers: the `graph.Buffers` of the strategy's noise.
    trail: what the rows so far add up to, where an engine makes them (scalar, int64); 0 where
      that is not known.
    parameters: digest of what the rows are added for, where an aggregator keeps that.
    canaries: what comes with the next row, int64 [coordinates], where an aggregator has canaries.
  """

  seed: tf.Tensor
  row: tf.Tensor
  row_stddev: tf.Tensor
  buffers: Any
  trail: Any = ()
  parameters: Any = ()
  canaries: Any = ()

  def __repr__(self) -> str:
    return messages.outline(self)


def make_stream(
  strategy: strategies.Strategy,
  template: Any,
  *,
  noise_seed: int | None = None,
  draw: Draw = randomness.draw,
  bits: int = lattice.BITS,
) -> NoiseStream:
  """A stream of rows of N·Z in TensorFlow, eager or in a graph, whose state is a `StreamState`.

  Rows are int64, in units of the lattice: 2⁻³⁴ of the standard deviation of Z. Past the strategy's
  last round, `next` fails with an InvalidArgumentError.

  Args:
    template: nested structure of tf.TensorSpec, of known shapes.
    noise_seed: as `units.checked` lets pass. None takes a fresh secret seed from the operating
      system each time that `init` runs. A number gives the same noise always, for tests: it
      protects nobody.
    draw: where normals come from; the default makes them from the seed.
    bits: see `graph.Rows`.
  """
  specs = tf.nest.flatten(template)
  rows = graph.Rows(strategy, specs, bits)

  def init():
    seed = randomness.system_seed() if noise_seed is None else randomness.fixed_seed(noise_seed)
    row, row_stddev = tf.constant(0, tf.int64), tf.constant(0.0, tf.float64)
    return StreamState(seed=seed, row=row, row_stddev=row_stddev, buffers=rows.start())

  def next_fn(state):
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    z = lambda row: draw(state.seed, row, specs)
    row, norm, buffers = rows.next(z, state.row, state.buffers)
    advanced = state._replace(row=state.row + 1, row_stddev=norm, buffers=buffers)
    return tf.nest.pack_sequence_as(template, row), advanced

  return NoiseStream(init, next_fn, lambda state: next_fn(state)[1])
