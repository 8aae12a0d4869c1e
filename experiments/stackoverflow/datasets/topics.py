"""A made-up language with topics, spoken by 100,000 clients whose text is made when it is read.

Each sentence has one topic. Its next word is a successor of the word before it, a word of the
topic, or a common word. Half of the words are mostly followed by their successors, the others by
words of the topic. Clients differ in their topics and in their number of sentences. The number of
sentences has the mean and the minimum of StackOverflow's clients; its tail, the topics and all
words are made up.
"""

import dataclasses

import numpy as np

from experiments.stackoverflow.datasets import federated_text, vocabularies

LICENCE = 'Synthetic: sentences drawn from a language with topics.'
MEAN_SENTENCES = 135_818_730 / 342_477
"""Sentences of a training client of StackOverflow, on average (documentation of TFF's data set)."""
LEAST_SENTENCES = 100
"""Sentences that every user of StackOverflow's data set has at least, by the same source."""

CLIENTS = 100_000
WORDS = 250
TOPICS = 20
LENGTH = 20  # words of a sentence, as many as the papers' models read

_SIZE_SPREAD = 1.2  # standard deviation of the logarithm of a size beyond the least
_CONCENTRATION = 2.0  # of a client's topics; small numbers make clients differ more
_TOPIC_WORDS = 40
_SUCCESSORS = np.array([0.6, 0.2, 0.12, 0.08])
# Of successors, words of the topic, and common words, after the two kinds of words.
_SHARES = np.array([(0.7, 0.15, 0.15), (0.1, 0.75, 0.15)])
_OTHERS = 10**9  # number of the first client that does not train
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Language:
  """Probabilities of topics and words.

  Attributes:
    topics: share of each topic over all clients, [topics].
    common: probabilities of common words, [words].
    of_topic: probabilities of the words of each topic, [topics, words].
    successors: successors of each word, [words + 1, len(_SUCCESSORS)]; the last row has those of
      the beginning of a sentence.
    kinds: 0 for a word that is mostly followed by its successors, 1 for one that is mostly followed
      by words of the topic, [words + 1].
  """

  topics: np.ndarray
  common: np.ndarray
  of_topic: np.ndarray
  successors: np.ndarray
  kinds: np.ndarray

  @classmethod
  def drawn(cls, *, words: int, topics: int, seed: int) -> 'Language':
    """Returns the language of a seed."""
    generator = np.random.default_rng(seed)
    common = _zipf(words)
    of_topic = np.zeros((topics, words))
    size = min(_TOPIC_WORDS, words)
    for row in of_topic:
      row[generator.choice(words, size, replace=False)] = _zipf(size)
    return cls(
      topics=_zipf(topics),
      common=common,
      of_topic=of_topic,
      # Frequent words are frequent successors, too.
      successors=generator.choice(words, (words + 1, len(_SUCCESSORS)), p=common),
      kinds=generator.integers(2, size=words + 1),
    )

  def words(self, topics: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Returns a sentence for each topic, as word numbers from 0: int32 [sentences, length]."""
    bounds = np.cumsum(_SHARES, axis=1)[:, :-1]
    source, place = uniform.transpose(2, 1, 0)
    followers, common = _inverse(_SUCCESSORS, place), _inverse(self.common, place)
    of_topic = np.empty(place.shape, np.int64)
    for topic in np.unique(topics):
      own = topics == topic
      of_topic[:, own] = _inverse(self.of_topic[topic], place[:, own])
    words = np.empty(place.shape, np.int32)
    previous = np.full(len(topics), len(self.common))
    for t, drawn in enumerate(source):
      chosen = (drawn[:, None] >= bounds[self.kinds[previous]]).sum(axis=1)
      successor = self.successors[previous, followers[t]]
      previous = np.choose(chosen, (successor, of_topic[t], common[t]))
      words[t] = previous
    return words.T

  def best_accuracy(self, words: np.ndarray) -> float:
    """Returns the accuracy of the predictor that knows the language, but not the topics.

    It weighs the topics by their shares and by the words of the sentence so far.

    Args:
      words: sentences as `words` returns them, of all clients.
    """
    after = np.zeros((len(self.successors), len(self.common)))
    for share, column in zip(_SUCCESSORS, self.successors.T):
      np.add.at(after, (np.arange(len(after)), column), share)
    every = np.arange(len(words))
    weights = np.tile(self.topics, (len(words), 1))
    previous = np.full(len(words), len(self.common))
    hits = 0
    for actual in words.T:
      of_successors, of_topics, of_common = _SHARES[self.kinds[previous]].T[:, :, None]
      shared = of_successors * after[previous] + of_common * self.common
      predicted = shared + of_topics * (weights @ self.of_topic)
      hits += (predicted.argmax(axis=1) == actual).sum()
      weights *= shared[every, actual, None] + of_topics * self.of_topic[:, actual].T
      weights /= weights.sum(axis=1, keepdims=True)
      previous = actual
    return float(hits / words.size)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Speakers:
  """Clients by number, and each of their sentences, made when it is asked for."""

  language: Language
  length: int
  seed: int

  @classmethod
  def drawn(
    cls, *, words: int = WORDS, topics: int = TOPICS, length: int = LENGTH, seed: int = 0
  ) -> 'Speakers':
    """Returns the clients of a language of so many words and topics."""
    return cls(
      language=Language.drawn(words=words, topics=topics, seed=seed), length=length, seed=seed
    )

  def size(self, client: int) -> int:
    """Returns the number of sentences of a client."""
    mean = MEAN_SENTENCES - LEAST_SENTENCES
    generator = np.random.default_rng([self.seed, client, 0])
    beyond = generator.lognormal(np.log(mean) - _SIZE_SPREAD**2 / 2, _SIZE_SPREAD)
    return LEAST_SENTENCES + round(beyond)

  def topics(self, client: int) -> np.ndarray:
    """Returns the shares of a client's topics: a Dirichlet draw around those of the language."""
    generator = np.random.default_rng([self.seed, client, 1])
    return generator.dirichlet(_CONCENTRATION * self.language.topics)

  def sentences(self, clients: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns sentences as word numbers from 0: int32 [len(clients), length]."""
    different, place = np.unique(clients, return_inverse=True)
    bounds = np.cumsum([self.topics(int(client)) for client in different], axis=1)[:, :-1]
    words = np.arange(2 * self.length + 1)
    uniform = _uniform(self.seed, clients[:, None], numbers[:, None], words[None, :])
    topics = (uniform[:, :1] >= bounds[place]).sum(axis=1)
    return self.language.words(topics, uniform[:, 1:].reshape(-1, self.length, 2))

  def rows(self, clients: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the same sentences as token ids, after the beginning: [len(clients), length + 1]."""
    words = self.sentences(clients, numbers)
    bos = vocabulary(len(self.language.common)).bos
    return np.pad(words + 1, ((0, 0), (1, 0)), constant_values=bos)


def vocabulary(size: int) -> vocabularies.Vocabulary:
  """Returns the words of a language, by their numbers."""
  return vocabularies.Vocabulary([f'word{i}' for i in range(size)])


def load(
  *,
  seed: int = 0,
  num_clients: int = CLIENTS,
  vocabulary_size: int = WORDS,
  topics: int = TOPICS,
  length: int = LENGTH,
  num_test_sentences: int = 4000,
) -> federated_text.Dataset:
  """Returns the data set, of which no client's text is made before it is asked for.

  All sentences have `length` words and all words are known. Those of a client depend on its number,
  the seed, and the sizes of the language, and on nothing else.

  Args:
    length: words of a sentence.
    num_test_sentences: sentences of the test set, and of the validation set, each of another
      client that does not train.
  """
  for name, value in (
    ('num_clients', num_clients),
    ('vocabulary_size', vocabulary_size),
    ('topics', topics),
    ('length', length),
    ('num_test_sentences', num_test_sentences),
  ):
    if value < 1:
      raise ValueError(f'{name} must be at least 1, got {value}')
  speakers = Speakers.drawn(words=vocabulary_size, topics=topics, length=length, seed=seed)
  clients = tuple(f'client{i:06d}' for i in range(num_clients))

  def sentences(client: str) -> np.ndarray:
    number = int(client.removeprefix('client'))
    size = speakers.size(number)
    return speakers.rows(np.full(size, number), np.arange(size))

  def held_out(part: int) -> np.ndarray:
    others = _OTHERS + part * num_test_sentences + np.arange(num_test_sentences)
    return speakers.rows(others, np.zeros_like(others))

  test = held_out(1)
  return federated_text.Dataset(
    name='topics',
    vocabulary=vocabulary(vocabulary_size),
    train_clients=clients,
    sentences=sentences,
    validation=held_out(0),
    test=test,
    # Training clients are drawn as the others are, and too many to count all of their words.
    unigram_token=federated_text.unigram_token([held_out(2)], vocabulary(vocabulary_size)),
    licence=LICENCE,
    unit='a simulated client',
    best_accuracy=speakers.language.best_accuracy(test[:, 1:] - 1),
  )


def _uniform(*indices: int | np.ndarray) -> np.ndarray:
  """Returns a number from 0 to 1 for each tuple of indices, whichever others are asked for."""
  # Bits are mixed as in Steele, Lea and Flood 2014, "Fast splittable pseudorandom generators".
  state = np.zeros(np.broadcast_shapes(*(np.shape(index) for index in indices)), np.uint64)
  with np.errstate(over='ignore'):
    for index in indices:
      state = (state ^ np.asarray(index).astype(np.uint64)) + _GOLDEN
      state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
      state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
      state ^= state >> np.uint64(31)
  return (state >> np.uint64(11)) * 2.0**-53


def _inverse(probabilities: np.ndarray, uniform: np.ndarray) -> np.ndarray:
  # Rounding may leave the last cumulative probability just below one.
  return np.searchsorted(np.cumsum(probabilities)[:-1], uniform, side='right')


def _zipf(size: int) -> np.ndarray:
  weights = 1 / np.arange(1, size + 1)
  return weights / weights.sum()
