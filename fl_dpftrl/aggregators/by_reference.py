"""Aggregator whose state holds the index of the next noise row, not the noise.

The row itself is a file that the graph reads. A `RowServer` outside TensorFlow
Federated makes it while the clients train.
"""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import factory
from fl_dpftrl.aggregators import parameters as parameters_lib
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
    raise ValueError(f'rows has noise of {rows.size} coordinates, and the model has {sum(sizes)}')
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


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseByReferenceFactory(factory.CorrelatedNoiseFactory):
  """A `CorrelatedNoiseFactory` that reads its noise, of any state, from files.

  All else is the same: updates, sums, measurements. The state is a few numbers.
  Before each round its row must be served, which `learning.served` does for a
  learning process; the worker must see the rows' folder, and so be local.

  Two states of one `initialize()` have the same noise, as all states of one
  `RowServer` have: it refuses to serve rows before the last.

  Attributes:
    rows: of the same strategy, and of the standard deviation that
      noise_multiplier and clip_norm give.

  Raises:
    ValueError: for an attribute that will not do.
  """

  _: dataclasses.KW_ONLY
  rows: servers.RowServer

  def __post_init__(self):
    super().__post_init__()
    if self.rows.strategy is not self.strategy:
      raise ValueError('rows must be of the strategy that is given')
    stddev = self.noise_multiplier * self.clip_norm
    if self.rows.stddev != stddev:
      raise ValueError(
        f'rows must have a standard deviation of {stddev}, noise_multiplier'
        f' times clip_norm, got {self.rows.stddev}'
      )
    if self.noise_seed is not None:
      raise ValueError(
        f'noise_seed is for noise inside TFF; give it to rows instead, got {self.noise_seed}'
      )

  def noise_stream(self, value_type: tff.Type) -> noise_base.NoiseStream:
    """Returns the served rows as a stream.

    Raises:
      ValueError: unless value_type holds float32 tensors of known shapes, with
        as many entries as a row.
    """
    if not tff.types.is_structure_of_tensors(value_type):
      raise ValueError(f'value_type must be made of tensors, got {value_type}')
    stream = make_stream(self.rows, tff.types.type_to_tf_tensor_specs(value_type))
    return parameters_lib.bind(stream, self.parameters(value_type))

  def _seed_identity(self, value_type: tff.Type) -> int:
    del value_type
    return self.rows.identity
