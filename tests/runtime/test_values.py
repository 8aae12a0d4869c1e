"""Values of users as tensors."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.runtime import values

pytestmark = pytest.mark.tff

SEQUENCE = tff.SequenceType(np.int64)


def test_data_sets_of_clients_are_not_tuned_unless_they_ask_for_it():
  given = tf.data.Dataset.range(3)
  options = values._data_set(given, SEQUENCE).options()
  assert options.autotune.enabled is False
  asked = tf.data.Options()
  asked.autotune.enabled = True
  asked.deterministic = False
  options = values._data_set(given.with_options(asked), SEQUENCE).options()
  assert options.autotune.enabled is True and options.deterministic is False
  assert options.experimental_optimization.inject_prefetch is False
  assert list(values._data_set(given, SEQUENCE).as_numpy_iterator()) == [0, 1, 2]
