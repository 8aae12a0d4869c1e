"""Words, special tokens, and sentences as rows of token ids."""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """A word list and the token ids around it.

  Ids: pad 0, the words from 1 on, then oov (any other word), bos and eos.

  Attributes:
    words: distinct words, the most frequent first.

  Source: TensorFlow Federated's StackOverflow next-word prediction baseline.
  """

  words: Sequence[str]

  def __post_init__(self):
    object.__setattr__(self, 'words', tuple(self.words))
    if not self.words:
      raise ValueError('words must hold at least one word, got none')
    if len(self._ids) != len(self.words):
      twice = collections.Counter(self.words).most_common(1)[0][0]
      raise ValueError(f'words must be distinct, got {twice!r} twice')

  @functools.cached_property
  def _ids(self) -> Mapping[str, int]:
    return {word: i for i, word in enumerate(self.words, start=1)}

  @property
  def size(self) -> int:
    """The number of token ids, special ones included."""
    return len(self.words) + 4

  @property
  def pad(self) -> int:
    return 0

  @property
  def oov(self) -> int:
    return len(self.words) + 1

  @property
  def bos(self) -> int:
    return len(self.words) + 2

  @property
  def eos(self) -> int:
    return len(self.words) + 3

  def encode(self, sentences: Sequence[Sequence[str]], length: int) -> np.ndarray:
    """Token ids, int32 of shape [len(sentences), length + 1].

    Each row is bos, the first `length` words, eos if there is room for it, and padding.
    """
    rows = np.zeros((len(sentences), length + 1), np.int32)
    rows[:, 0] = self.bos
    for row, sentence in zip(rows, sentences):
      ids = [self._ids.get(word, self.oov) for word in sentence[:length]]
      if len(ids) < length:
        ids.append(self.eos)
      row[1 : 1 + len(ids)] = ids
    return rows

  def decode(self, row: Iterable[int]) -> str:
    """A row as text, special tokens in angle brackets and padding left out."""
    special = {self.oov: '<oov>', self.bos: '<bos>', self.eos: '<eos>'}
    return ' '.join(special.get(i) or self.words[i - 1] for i in row if i != self.pad)

  def most_frequent(self, size: int) -> 'Vocabulary':
    """Only the first `size` words, or all where there are fewer."""
    if size < 1:
      raise ValueError(f'vocabulary size must be at least 1, got {size}')
    return Vocabulary(self.words[:size])

  def counted(self, targets: np.ndarray) -> np.ndarray:
    """Returns the mask of targets that the headline accuracy counts: words of the vocabulary.

    That is the papers' metric of record, next-word accuracy: neither padding nor words out of
    the vocabulary nor ends of sentences are counted.
    """
    return (targets != self.pad) & (targets <= len(self.words))

  def masks(self, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the mask of targets that count in each accuracy, by its name.

    `accuracy` is the headline accuracy, also under its long name beside its siblings.
    """
    words, with_oov = self.counted(targets), targets != self.pad
    return {
      'accuracy': words,
      'accuracy_no_oov_or_eos': words,
      'accuracy_no_oov': with_oov & (targets != self.oov),
      'accuracy_with_oov': with_oov,
    }

  def translate(self, rows: np.ndarray, shorter: 'Vocabulary') -> np.ndarray:
    """Rows of this vocabulary as rows of one that `most_frequent` made."""
    ids = np.full(self.size, shorter.oov, np.int32)
    ids[: shorter.oov] = np.arange(shorter.oov)
    ids[[self.bos, self.eos]] = shorter.bos, shorter.eos
    return ids[rows]


def by_frequency(counts: Mapping[str, int]) -> Vocabulary:
  """All words, the most frequent first; ties go by the alphabet."""
  return Vocabulary(sorted(counts, key=lambda word: (-counts[word], word)))
