import collections
import pickle

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess

STRUCTURES = (
  np.arange(14, dtype=np.int32).reshape(7, 2),
  np.zeros((0, 3)),
  (np.arange(5.0), np.array([b'a', b'b', b'', b'd', b'e'])),
  collections.OrderedDict(y=np.zeros((3, 2, 2), np.float32), x=np.arange(3)),
  {'b': (np.ones(4, bool), np.arange(4, dtype=np.int8)), 'a': np.arange(4.0)},
)


@pytest.mark.parametrize('arrays', STRUCTURES)
@pytest.mark.parametrize('batch_size', [1, 3, 100])
def test_gives_what_a_data_set_of_slices_gives(arrays, batch_size):
  expected = tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)
  found = tff_inprocess.batches(arrays, batch_size)
  assert found.element_spec == expected.element_spec
  pairs = list(zip(found.as_numpy_iterator(), expected.as_numpy_iterator(), strict=True))
  for one, other in pairs:
    tf.nest.assert_same_structure(one, other)
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other)):
      np.testing.assert_array_equal(a, b)
      assert a.dtype == b.dtype
  assert len(pairs) == -(-len(tf.nest.flatten(arrays)[0]) // batch_size)


@tff.tensorflow.computation(tff.SequenceType(tff.types.TensorType(np.float32, [None, 2])))
def weighted(data):
  """Depends on each batch's rows and size, and on the order of the batches."""
  add = lambda sum_, batch: 3.0 * sum_ + tf.reduce_mean(batch, axis=0)
  return data.reduce(tf.zeros([2]), add)


@tff.federated_computation(tff.FederatedType(weighted.type_signature.parameter, tff.CLIENTS))
def of_all(data):
  return tff.federated_sum(tff.federated_map(weighted, data))


def arrays_of(client):
  return np.random.default_rng(client).normal(size=(client % 5, 2)).astype(np.float32)


def sliced(client):
  return tf.data.Dataset.from_tensor_slices(arrays_of(client)).batch(2)


def run(data):
  with tff.framework.get_context_stack().install(tff_inprocess.InProcessContext()):
    return np.asarray(of_all(data))


def test_arrays_data_sets_and_those_made_later_give_the_same_bits():
  clients = range(20)
  expected = run([sliced(client) for client in clients])
  made = lambda client: tff_inprocess.batches(arrays_of(client), 2)
  for data in (
    [made(client) for client in clients],
    [made(client) if client % 3 else sliced(client) for client in clients],
    [tff_inprocess.Later(made, (client,)) for client in clients],
    [pickle.loads(pickle.dumps(made(client))) for client in clients],
  ):
    np.testing.assert_array_equal(run(data), expected)


def test_keeps_its_own_copy():
  buffer, data = np.zeros((3, 2), np.float32), []
  for client in range(2):
    buffer[:] = client + 1
    data.append(tff_inprocess.batches(buffer, 3))
  buffer[:] = 7
  np.testing.assert_array_equal(run(data), [3.0, 3.0])


@pytest.mark.parametrize('rows', [np.zeros((3, 3), np.float32), np.zeros((3, 2))])
def test_elements_of_another_type_are_refused(rows):
  with pytest.raises(TypeError, match='client 0, counted from 0, of 2: expected a data set of'):
    run([tff_inprocess.batches(rows, 2)] * 2)
