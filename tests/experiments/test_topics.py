"""The language with topics: its clients, sentences and best accuracy."""

import numpy as np
import pytest

from experiments.stackoverflow import datasets
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


def test_no_text_of_a_training_client_is_made_before_it_is_read(monkeypatch):
  asked = []
  plain = topics.Speakers.sentences
  monkeypatch.setattr(
    topics.Speakers,
    'sentences',
    lambda self, clients, numbers: asked.extend(clients.tolist()) or plain(self, clients, numbers),
  )
  data = datasets.load('topics', seed=1)
  assert len(data.train_clients) == len(set(data.train_clients)) == 100_000
  assert asked and min(asked) >= len(data.train_clients)
  asked.clear()
  rows = data.sentences(data.train_clients[77_777])
  assert set(asked) == {77_777}
  assert rows.shape == (len(asked), 21)
