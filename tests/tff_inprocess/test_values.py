"""Values of users as tensors."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import leaks, made
from tff_inprocess import values

pytestmark = pytest.mark.tff

SEQUENCE = tff.SequenceType(np.int64)
SECRET = 8154468547356303393


TYPES = [
  *(np.int32, np.str_, tff.TensorType(np.int64, [3]), SEQUENCE, tff.SequenceType(np.int32)),
  *([], [np.int32, (np.str_, [2])], collections.OrderedDict(seed=np.float32), [[np.int64] * 3]),
]


@made.cases(
  'value',
  *(SECRET, [SECRET], (SECRET, SECRET), {'a': SECRET}, {'seed': [SECRET, SECRET]}, {SECRET}),
  *(str(SECRET), [[SECRET], [SECRET, SECRET]], np.array([SECRET, SECRET]), np.float64(SECRET)),
  *(np.array(SECRET), tf.constant([SECRET, SECRET]), np.array([str(SECRET)], object)),
  types.SimpleNamespace(seed=SECRET),
  ids=lambda value: type(value).__name__,
)
def test_a_value_of_another_type_is_not_quoted(value):
  secrets, refused = leaks.Secrets([np.int64(SECRET)]), 0
  for of in map(tff.to_type, TYPES):
    try:
      values.tensors(value, of, values.Arrays())
    except TypeError as error:
      refused += 1
      assert str(error).startswith('expected ')
      for text in leaks.said(error):
        assert not secrets.found_in(text), text
  assert refused >= 5
