"""Noise rows that a graph reads from files, for TFF's worker on this machine.

A `RowServer` makes the row while the clients train. All states of one `initialize()`
have the same noise, as all states of one `RowServer` have: it refuses to serve rows
before the last.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise import base as noise_base
from fl_dpftrl.noise import stream as streams
from fl_dpftrl.noise.engine import server as servers


class RowState(NamedTuple):
  """The next row and the noise it belongs to. It is not secret.

  Attributes:
    identity: identity of the `RowServer` (scalar, int64).
    row: t, the row that comes next (scalar, int64).
    row_stddev: standard deviation of each coordinate of the last row (scalar,
      float32); 0 before the first, and after a burnt one.
    parameters: parameters that the noise state is bound to, if an aggregator keeps them.
  """

  identity: tf.Tensor
  row: tf.Tensor
  row_stddev: tf.Tensor
  parameters: Any = ()


def make_stream(rows: servers.RowServer, template: Any) -> noise_base.NoiseStream:
  """Returns the served rows as a stream whose `next` reads a file.

  `next` fails with an InvalidArgumentError if the file is of another row, of
  other noise or damaged, and with a NotFoundError if the row is not served.

  Args:
    rows: serves row t before `next` runs with a state whose row is t.
    template: nested structure of tf.TensorSpec, float32, of known shapes.

  Raises:
    ValueError: for a template that is not float32, or of another size.
  """
  specs = streams.check_template(template)
  sizes = [spec.shape.num_elements() for spec in specs]
  if sum(sizes) != rows.size:
    raise ValueError(
      f'rows has noise of {rows.size} coordinates, and the model has {sum(sizes)}, counts of'
      ' adaptive clipping included'
    )
  prefix = str(rows.folder / servers.row_name(0))[: -servers.ROW_DIGITS]

  def init():
    return RowState(
      identity=tf.constant(rows.identity, tf.int64),
      row=tf.constant(0, tf.int64),
      row_stddev=tf.constant(0.0, tf.float32),
    )

  def next_fn(state):
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    number = tf.strings.as_string(state.row, width=servers.ROW_DIGITS, fill='0')
    content = tf.io.read_file(tf.strings.join([prefix, number]))
    header = tf.strings.substr(content, 0, servers.HEADER_BYTES)
    facts = tf.io.decode_raw(header, tf.int64)
    expected = [
      tf.constant(servers.MAGIC, tf.int64),
      state.identity,
      state.row,
      tf.constant(rows.size, tf.int64),
    ]
    checks = [
      tf.debugging.assert_equal(facts[:4], tf.stack(expected), message='not the row of this round'),
      tf.debugging.assert_equal(
        tf.strings.length(content),
        servers.HEADER_BYTES + 4 * rows.size,
        message='the file of a row is damaged',
      ),
    ]
    with tf.control_dependencies(checks):
      words = tf.io.decode_raw(content, tf.float32)
    parts = tf.split(words, [servers.HEADER_BYTES // 4, *sizes])[1:]
    row = [tf.reshape(p, spec.shape) for p, spec in zip(parts, specs)]
    stddev = tf.bitcast(facts[4], tf.float64)
    return tf.nest.pack_sequence_as(template, row), state._replace(
      row=state.row + 1, row_stddev=tf.cast(stddev, tf.float32)
    )

  return noise_base.NoiseStream(init, next_fn, streams.skip_unread)


def check_rows(
  rows: servers.RowServer, strategy: strategies.Strategy, stddev: float, noise_seed: int | None
) -> None:
  """Raises ValueError unless the rows are those of an aggregator with its own arguments."""
  if rows.strategy is not strategy:
    raise ValueError('rows must be of the strategy that is given')
  if rows.stddev != stddev:
    raise ValueError(
      f'rows must have a standard deviation of {stddev}, noise_multiplier times clip_norm'
      f' (of an AdaptiveClipping: its update_noise_multiplier), got {rows.stddev}'
    )
  if noise_seed is not None:
    raise ValueError('give noise_seed to the rows instead')
