import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines.stackoverflow import (
  word_prediction_preprocessing,
)

from experiments.stackoverflow.datasets import vocabularies

pytestmark = pytest.mark.tff


def test_encoding_equals_tff_preprocessing():
  words = ['is', 'this', 'the', 'edit']
  sentences = ['edit : this is the end', 'this ' * 30, 'the', 'edit edit :']
  fn = word_prediction_preprocessing.create_preprocess_fn(
    tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=8, shuffle_buffer_size=1), words
  )
  data = tf.data.Dataset.from_tensor_slices({'tokens': sentences})
  ((x, y),) = fn(data).as_numpy_iterator()
  rows = vocabularies.Vocabulary(words).encode([s.split() for s in sentences], 20)
  np.testing.assert_array_equal(rows[:, :-1], x)
  np.testing.assert_array_equal(rows[:, 1:], y)


def test_translation_equals_encoding_with_the_shorter_vocabulary():
  whole = vocabularies.Vocabulary(['c', 'a', 'b', 'd'])
  shorter = whole.most_frequent(2)
  sentences = [['a', 'b', 'zebra'], ['c', 'd'], ['a', 'a', 'a', 'a']]
  np.testing.assert_array_equal(
    whole.translate(whole.encode(sentences, 3), shorter), shorter.encode(sentences, 3)
  )


@pytest.mark.parametrize('words', [[], ['a', 'b', 'a']])
def test_bad_words(words):
  with pytest.raises(ValueError, match='words'):
    vocabularies.Vocabulary(words)
