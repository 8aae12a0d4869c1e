"""A small made-up language whose best accuracy is known, for tests."""

import numpy as np

from experiments.stackoverflow.datasets import federated_text, vocabularies

LICENCE = 'Synthetic: sentences drawn from a Markov chain.'


def transitions(vocabulary_size: int, seed: int) -> np.ndarray:
  """Probabilities of the next word, [vocabulary_size + 1, vocabulary_size].

  Row w is what follows word w, the last row what begins a sentence. Each row
  has one favourite, chosen anew for each, with more than half of the mass.
  """
  generator = np.random.default_rng([seed, 0])
  rest = generator.dirichlet(np.ones(vocabulary_size), vocabulary_size + 1)
  favourites = generator.integers(vocabulary_size, size=vocabulary_size + 1)
  return 0.4 * rest + 0.6 * np.eye(vocabulary_size)[favourites]


def best_accuracy(chain: np.ndarray, words: np.ndarray) -> float:
  """Accuracy of the predictor that knows the chain.

  Args:
    chain: as `transitions` gives it.
    words: sentences as `draw` gives them, of which every word is predicted.
  """
  first = np.full((len(words), 1), len(chain) - 1)
  previous = np.concatenate([first, words[:, :-1]], axis=1)
  return float((chain.argmax(axis=1)[previous] == words).mean())


def draw(chain: np.ndarray, num_sentences: int, length: int, seed: list[int]) -> np.ndarray:
  """Sentences as word numbers from 0: int array [num_sentences, length]."""
  uniform = np.random.default_rng(seed).random((num_sentences, length))
  cumulative = chain.cumsum(axis=1)
  words = np.empty((num_sentences, length), np.int32)
  previous = np.full(num_sentences, len(chain) - 1)
  for t in range(length):
    previous = (uniform[:, t, None] >= cumulative[previous]).sum(axis=1)
    # Rounding may leave the last cumulative probability just below one.
    previous = np.minimum(previous, chain.shape[1] - 1)
    words[:, t] = previous
  return words


def load(
  *,
  seed: int = 0,
  num_clients: int = 500,
  sentences_per_client: int = 16,
  vocabulary_size: int = 30,
  length: int = 10,
  num_test_sentences: int = 1000,
) -> federated_text.Dataset:
  """The data set: all sentences have `length` words and all words are known."""
  counts = dict(
    num_clients=num_clients,
    sentences_per_client=sentences_per_client,
    length=length,
    vocabulary_size=vocabulary_size,
    num_test_sentences=num_test_sentences,
  )
  for name, value in counts.items():
    if value < 1:
      raise ValueError(f'{name} must be at least 1, got {value}')
  vocabulary = vocabularies.Vocabulary([f'word{i}' for i in range(vocabulary_size)])
  chain = transitions(vocabulary_size, seed)

  def rows(num_sentences: int, stream: int) -> np.ndarray:
    words = draw(chain, num_sentences, length, [seed, stream])
    bos = np.full((num_sentences, 1), vocabulary.bos, np.int32)
    return np.concatenate([bos, words + 1], axis=1)

  clients = [f'device{i:05d}' for i in range(num_clients)]
  parts = np.split(rows(num_clients * sentences_per_client, 1), num_clients)
  train = dict(zip(clients, parts))
  test = rows(num_test_sentences, 3)
  return federated_text.Dataset(
    name='synthetic',
    vocabulary=vocabulary,
    train_clients=tuple(clients),
    sentences=train.__getitem__,
    validation=rows(num_test_sentences, 2),
    test=test,
    unigram_token=federated_text.unigram_token(parts, vocabulary),
    licence=LICENCE,
    unit='a simulated device',
    best_accuracy=best_accuracy(chain, test[:, 1:] - 1),
  )
