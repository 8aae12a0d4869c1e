"""The language with topics: its clients, sentences and best accuracy."""

import numpy as np
import pytest

from experiments.stackoverflow import datasets
from experiments.stackoverflow.datasets import topics


@pytest.fixture(name='speakers', scope='module')
def _speakers():
  return topics.Speakers.drawn(seed=1)


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


def test_numbers_are_uniform_and_independent():
  numbers = topics._uniform(3, np.arange(300)[:, None], np.arange(300)[None, :])
  assert numbers.min() >= 0 and numbers.max() < 1
  counts = np.bincount((numbers.ravel() * 50).astype(int), minlength=50)
  expected = numbers.size / 50
  # χ² of 49 degrees of freedom: mean 49, standard deviation 9.9.
  assert 20 < ((counts - expected) ** 2 / expected).sum() < 95
  for shifted in (numbers[1:], numbers[:, 1:]):
    rest = numbers[: shifted.shape[0], : shifted.shape[1]]
    assert abs(np.corrcoef(rest.ravel(), shifted.ravel())[0, 1]) < 5 / 300


def test_sizes_have_the_published_mean_and_minimum(speakers):
  sizes = np.array([speakers.size(client) for client in range(4000)])
  # The standard error of the mean is 8.4.
  assert abs(sizes.mean() - 396.6) < 34
  assert 100 <= sizes.min() < 110
  assert np.median(sizes) < 300 and sizes.max() > 3000  # A long tail.


def test_clients_differ_in_their_topics(speakers):
  shares = np.array([speakers.topics(client) for client in range(3000)])
  assert np.isfinite(shares).all()
  np.testing.assert_allclose(shares.sum(axis=1), 1)
  mean = speakers.language.topics
  # Variance of a Dirichlet share; a concentration of 1 or 4 would give 1.5 or 0.6 times as much.
  variance = mean * (1 - mean) / (2 + 1)
  np.testing.assert_allclose(shares.mean(axis=0), mean, atol=5 * np.sqrt(variance.max() / 3000))
  np.testing.assert_allclose(shares.var(axis=0)[:5], variance[:5], rtol=0.2)


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


@pytest.mark.parametrize('name', ['num_clients', 'vocabulary_size', 'topics', 'length'])
def test_bad_sizes_are_refused(name):
  with pytest.raises(ValueError, match=f'{name} must be at least 1, got 0'):
    topics.load(**{name: 0})
