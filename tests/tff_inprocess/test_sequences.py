"""Data sets that computations make: slices for clients, mapped elements, results."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

pytestmark = pytest.mark.tff

NUMBERS = tff.SequenceType(np.int64)
ROWS = tff.TensorType(np.float32, [None, 2])


def rows_of(data_set):
  return [tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), one) for one in data_set]


def selection(select=tff.federated_select):
  """Each client selects rows of a database, with their keys."""

  @tff.tensorflow.computation(ROWS, np.int32)
  def row(database, key):
    return collections.OrderedDict(row=tf.gather(database, key), key=key)

  @tff.federated_computation(
    tff.FederatedType(ROWS, tff.SERVER),
    tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
  )
  def selected(database, keys):
    return select(keys, tff.federated_value(5, tff.SERVER), database, row)

  return selected


@pytest.mark.parametrize('select', [tff.federated_select, tff.federated_secure_select])
def test_clients_select_what_their_keys_say(select, in_process):
  database = np.arange(6, dtype=np.float32).reshape(3, 2)
  with in_process(max_concurrent_clients=2):
    found = selection(select)(database, [[2, 0], [1, 1]])
  assert [rows_of(one) for one in found] == [
    [{'row': [4.0, 5.0], 'key': 2}, {'row': [0.0, 1.0], 'key': 0}],
    [{'row': [2.0, 3.0], 'key': 1}, {'row': [2.0, 3.0], 'key': 1}],
  ]
