"""A federated text data set, and one device's batches."""

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.stackoverflow.datasets import vocabularies

if TYPE_CHECKING:
  import tensorflow as tf


DIGEST_LENGTH = 16
"""Hexadecimal digits of a data set's digest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
  """Sentences by device for training, and held-out sentences.

  Sentences are int32 rows of token ids, of shape [num_sentences, length + 1].

  Attributes:
    name: the name under which `datasets.load` knows it.
    vocabulary: words and special tokens.
    train_clients: ids of the training devices.
    unigram_token: the best constant prediction: the token that most often is a
      target the headline accuracy counts, over training devices.
    unit: what one training device stands for, such as 'a source file'.
    licence: what is to be said about the source and its licence.
    best_accuracy: test accuracy of the best predictor, where it is known.
    digest: digest of the text, in hexadecimal; empty where it is not computed.
    public: sentences of no device, for a public start; None where there are none.
  """

  name: str
  vocabulary: vocabularies.Vocabulary
  train_clients: Sequence[str]
  sentences: Callable[[str], np.ndarray] = dataclasses.field(repr=False)
  validation: np.ndarray = dataclasses.field(repr=False)
  test: np.ndarray = dataclasses.field(repr=False)
  unigram_token: int
  licence: str
  unit: str
  best_accuracy: float | None = None
  digest: str = ''
  public: np.ndarray | None = dataclasses.field(default=None, repr=False)

  @property
  def sequence_length(self) -> int:
    return self.test.shape[1] - 1

  @property
  def unigram_word(self) -> str:
    return self.vocabulary.decode([self.unigram_token])

  @property
  def unigram_accuracy(self) -> float:
    """Headline test accuracy of always predicting `unigram_token`."""
    targets = self.test[:, 1:]
    counted = self.vocabulary.counted(targets)
    return float((targets[counted] == self.unigram_token).mean())


def unigram_token(sentences: Iterable[np.ndarray], vocabulary: vocabularies.Vocabulary) -> int:
  """The most frequent target that the headline accuracy counts."""
  counts = np.zeros(vocabulary.size, np.int64)
  for rows in sentences:
    targets = rows[:, 1:]
    counted = targets[vocabulary.counted(targets)]
    counts += np.bincount(counted, minlength=vocabulary.size)
  if not counts.any():
    raise ValueError('sentences must hold a word of the vocabulary, got none')
  return int(counts.argmax())


def client_dataset(
  dataset: Dataset,
  client_id: str,
  *,
  batch_size: int,
  max_sentences: int | None = None,
  epochs: int = 1,
  seed: int | Sequence[int] = 0,
) -> 'tf.data.Dataset':
  """One device's batches (x, y) for one round, each [batch, length] int32.

  The sentences are drawn without replacement, and shuffled anew each epoch, by a generator of
  only the seed and the device's id: the same arguments give the same batches.

  Args:
    client_id: one of `dataset.train_clients`.
    batch_size: sentences a batch; batches run on across epochs, and the last one may be smaller.
    max_sentences: most sentences to use; None for all of them.
    epochs: passes over these sentences.
    seed: one or more non-negative integers, e.g. (run seed, round).
  """
  given = dict(batch_size=batch_size, max_sentences=max_sentences, epochs=epochs)
  for name, value in given.items():
    if value is not None and value < 1:
      raise ValueError(f'{name} must be at least 1, got {value}')
  rows = dataset.sentences(client_id)
  generator = np.random.default_rng([*np.atleast_1d(seed), zlib.crc32(client_id.encode())])
  rows = rows[generator.permutation(len(rows))[:max_sentences]]
  rows = np.concatenate([rows[generator.permutation(len(rows))] for _ in range(epochs)])
  import tff_inprocess  # Slow to load: only where clients train.

  return tff_inprocess.batches((rows[:, :-1], rows[:, 1:]), batch_size)
