"""TensorFlow of all kinds in the work of clients."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess

pytestmark = pytest.mark.tff

FLOATS = [1.0, 2.0, 3.0]
VECTOR = tff.TensorType(np.float32, [3])
WORDS = tff.TensorType(np.str_, [None])
NUMBERS = tff.SequenceType(np.int64)


def at_clients(work, of):
  """A computation that does the work at each client, with its own argument."""
  work = tff.tensorflow.computation(work, of)
  return tff.federated_computation(
    lambda values: tff.federated_map(work, values), tff.FederatedType(of, tff.CLIENTS)
  )


# What one client could read of another: each kind, filled by every client in turn.


def hash_table(x):
  return _of_table(tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1), x)


def named_table(x):
  return _of_table(tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1, 'shared'), x)


def dense_table(x):
  table = tf.lookup.experimental.DenseHashTable(
    tf.int64, tf.int64, -1, empty_key=-1, deleted_key=-2
  )
  return _of_table(table, x)


def table_of_vectors(x):
  table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, [-1, -1])
  return _of_table(table, tf.reshape(x, [1]), tf.reshape(x, [1, 1]) * [[1, 1]])


def table_of_a_function(x):
  @tf.function
  def of_one_call(x):
    types = dict(key_dtype=tf.int64, value_dtype=tf.int64)
    handle = tf.raw_ops.MutableHashTableV2(shared_name='inside', **types)
    size = tf.raw_ops.LookupTableSizeV2(table_handle=handle)
    with tf.control_dependencies([size]):
      insertion = tf.raw_ops.LookupTableInsertV2(table_handle=handle, keys=x, values=x)
    with tf.control_dependencies([insertion]):
      return tf.identity(size), tf.raw_ops.LookupTableSizeV2(table_handle=handle)

  return of_one_call(x)


def variable(x):
  # Like the variable of another part of the graph that has the same name.
  handles = [tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name='v') for _ in range(2)]
  before = tf.raw_ops.VarIsInitializedOp(resource=handles[0])
  with tf.control_dependencies([before]):
    assigned = tf.raw_ops.AssignVariableOp(resource=handles[0], value=x)
  with tf.control_dependencies([assigned]):
    after = tf.raw_ops.VarIsInitializedOp(resource=handles[1])
  return tf.cast(before, tf.int64), tf.cast(after, tf.int64)


def _of_table(table, key, value=None):
  before = table.size()
  with tf.control_dependencies([before]):
    insertion = table.insert(key, key if value is None else value)
  with tf.control_dependencies([insertion]):
    return before, table.size()


@pytest.mark.parametrize(
  'work',
  [hash_table, named_table, dense_table, table_of_vectors, table_of_a_function, variable],
  ids=lambda work: work.__name__,
)
def test_no_client_reads_what_another_wrote(work, in_process):
  comp = at_clients(work, np.int64)
  with in_process(max_concurrent_clients=2):
    for _ in range(2):
      assert comp([1, 2, 3, 4]) == [(0, 1)] * 4


def queue(x):
  waiting = tf.queue.FIFOQueue(10, [tf.float32], [[]])
  with tf.control_dependencies([waiting.enqueue(x)]):
    return waiting.size()


def accumulator(x):
  gradients = tf.compat.v1.ConditionalAccumulator(tf.float32, shape=[])
  with tf.control_dependencies([gradients.apply_grad(x)]):
    return gradients.num_accumulated()


def staged(x):
  staging = tf.raw_ops.Stage(values=[x])
  with tf.control_dependencies([staging]):
    return tf.raw_ops.StageSize(dtypes=[tf.float32])


def batched(x):
  together = tf.nondifferentiable_batch_function(2, 1, 2)
  return together(lambda values: values + tf.reduce_sum(values))(tf.reshape(x, [1]))


def variable_of_version_1(x):
  kept = tf.compat.v1.Variable(0.0, use_resource=False)
  with tf.control_dependencies([tf.compat.v1.assign_add(kept, x)]):
    return tf.identity(kept)


def variable_of_a_function(x):
  @tf.function
  def assigned(x):
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name='inside')
    tf.raw_ops.AssignVariableOp(resource=handle, value=x)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)

  return assigned(x)


@pytest.mark.parametrize('work, operation', [
  (queue, 'FIFOQueueV2'), (accumulator, 'ResourceConditionalAccumulator'), (staged, 'Stage'),
  (batched, 'BatchFunction'), (variable_of_version_1, 'VariableV2'),
  (variable_of_a_function, 'VarHandleOp'),
])  # fmt: skip
def test_what_would_keep_data_between_clients_is_refused(work, operation, in_process):
  with in_process():
    with pytest.raises(
      tff_inprocess.UnsupportedComputationError, match=f'{operation}.*client'
    ) as found:
      at_clients(work, np.float32)(FLOATS)
  assert 'variables' in str(found.value) and len(str(found.value)) <= 300


def named_queue():
  return tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shared_name='named')


def size_of_a_queue(x):
  with tf.control_dependencies([tf.raw_ops.QueueEnqueueV2(handle=named_queue(), components=[x])]):
    return tf.raw_ops.QueueSizeV2(handle=named_queue())


def size_of_a_stage(x):
  of = dict(dtypes=[tf.float32], shared_name='named')
  with tf.control_dependencies([tf.raw_ops.Stage(values=[x], shared_name='named')]):
    return tf.raw_ops.StageSize(**of)


def size_of_a_variable(x):
  @tf.function
  def grown(x):
    named = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name='named')
    known = tf.raw_ops.VarIsInitializedOp(resource=named)
    with tf.control_dependencies([known]):
      tf.raw_ops.AssignVariableOp(resource=named, value=0)
    return tf.where(known, 1, 0)

  return grown(x)


@pytest.mark.parametrize('work', [size_of_a_queue, size_of_a_stage, size_of_a_variable])
def test_no_graph_at_the_server_finds_what_another_left(work, in_process):
  """Both have the same names; the first call of the second must see nothing of the first's."""
  one, other = (tff.tensorflow.computation(work, np.float32) for _ in range(2))
  with in_process():
    before = [one(1.0), one(2.0)]
    assert other(3.0) == before[0]
  if work is size_of_a_queue:  # Its handle is in the graph, so it goes with each call.
    assert before == [1, 1]


def test_iterators_begin_anew(in_process):
  def one_shot(x):
    return x + tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(2)).get_next()

  def initializable(data):
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    with tf.control_dependencies([iterator.initializer]):
      return iterator.get_next()

  @tf.function
  def in_a_function(data):
    iterator = iter(data)
    return next(iterator) + next(iterator)

  with in_process(max_concurrent_clients=2):
    assert at_clients(one_shot, np.int64)([1, 2, 3]) == [1, 2, 3]
    assert at_clients(initializable, NUMBERS)([[1], [2], [3]]) == [1, 2, 3]
    assert at_clients(in_a_function, NUMBERS)([[1, 2], [3, 4]]) == [3, 7]
