"""The language with topics: its clients, sentences and best accuracy."""

import numpy as np
import pytest

from experiments.stackoverflow.datasets import topics


@pytest.fixture(name='speakers', scope='module')
def _speakers():
  return topics.Speakers.drawn(seed=1)


def test_sentences_depend_on_seed_client_and_number_alone(speakers):
  clients, numbers = np.array([5, 99_999, 5, 123]), np.array([0, 7, 3, 0])
  together = speakers.rows(clients, numbers)
  alone = [speakers.rows(clients[i : i + 1], numbers[i : i + 1])[0] for i in range(4)]
  np.testing.assert_array_equal(together, alone)
  assert len({row.tobytes() for row in together}) == 4
  data = topics.load(seed=1, num_clients=200, num_test_sentences=10)
  np.testing.assert_array_equal(data.sentences('client000005')[[0, 3]], together[[0, 2]])
  again = topics.load(seed=1, num_clients=200, num_test_sentences=10)
  np.testing.assert_array_equal(again.test, data.test)
  other = topics.load(seed=2, num_clients=200, num_test_sentences=10)
  assert (other.test != data.test).any()


def test_no_predictor_of_one_word_is_better_than_the_best(speakers):
  words = speakers.sentences(np.arange(20_000), np.zeros(20_000, int))
  best = speakers.language.best_accuracy(words[:2000])
  counts = np.zeros((250, 250), int)
  np.add.at(counts, (words[2000:, :-1], words[2000:, 1:]), 1)
  tested = words[:2000]
  by_word = (counts.argmax(axis=1)[tested[:, :-1]] == tested[:, 1:]).mean()
  constant = np.bincount(tested.ravel()).max() / tested.size
  assert 2 * constant < by_word < best < 0.4
  other = topics.Language.drawn(words=250, topics=20, seed=2)
  assert other.best_accuracy(tested) < 0.5 * best
