"""TensorFlow Federated's StackOverflow, prepared as in the papers."""

import hashlib
import os
import pathlib
import sqlite3
import tarfile
import tempfile
import urllib.error
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.stackoverflow.datasets import federated_text, vocabularies
from fl_dpftrl.support.files import paths
from fl_dpftrl.support.text import messages

LICENCE = (
  'Stack Overflow questions and answers, under the Creative Commons Attribution-ShareAlike 3.0'
  ' Unported License (http://creativecommons.org/licenses/by-sa/3.0/); prepared by TensorFlow'
  ' Federated.'
)
DATABASE = 'stackoverflow.sqlite'
WORD_COUNTS = 'stackoverflow.word_count'

_OF_THE_NETWORK = (urllib.error.URLError, ConnectionError, TimeoutError)
# The data are too many to count them all for the unigram baseline.
_BASELINE_CLIENTS = 500


def _find(data_dir: pathlib.Path, *names: str) -> pathlib.Path:
  """The first of the files that is in the folder, or in its `datasets`."""
  for name in names:
    for path in (data_dir / name, data_dir / 'datasets' / name):
      if path.is_file():
        return path
  raise ValueError(
    f'data_dir {str(data_dir)!r} lacks {" and ".join(names)}: pass --download once to fetch it'
    f" with tff.simulation.datasets.stackoverflow, or put TFF's {DATABASE} (splits train, heldout,"
    f' test) and {WORD_COUNTS}.tar.bz2 there (--data_dir)'
  )


def _download(data_dir: pathlib.Path) -> None:
  """Runs TFF's own download; a file appears under its name only when it is whole."""
  data_dir.mkdir(parents=True, exist_ok=True)
  source = tff.simulation.datasets.stackoverflow
  with tempfile.TemporaryDirectory(dir=data_dir) as folder:
    for name, load, written in (
      (DATABASE, source.load_data, DATABASE),
      (WORD_COUNTS, source.load_word_counts, f'datasets/{WORD_COUNTS}'),
    ):
      if (data_dir / name).is_file():
        continue
      try:
        load(cache_dir=folder)
      except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, _OF_THE_NETWORK):
          raise
        said = messages.one_line(getattr(error, 'reason', error), limit=80)
        raise ValueError(
          f'--download: {name} cannot be fetched from {_address(load)} ({said}): fetch it where'
          ' there is a network, put it into a folder and give --data_dir'
        ) from error
      os.replace(pathlib.Path(folder, written), data_dir / name)


def _address(load: Callable[..., object]) -> str:
  """Returns the address that a function of TFF downloads from, as its code has it."""
  constants = (c for c in load.__code__.co_consts if isinstance(c, str))
  return next((c for c in constants if c.startswith('http')), "TensorFlow Federated's storage")


def read_vocabulary(path: pathlib.Path, size: int) -> vocabularies.Vocabulary:
  """The first words of a word count file, which has the most frequent first."""
  try:
    if path.suffix == '.bz2':
      with tarfile.open(path) as archive:
        content = archive.extractfile(WORD_COUNTS).read()
    else:
      content = path.read_bytes()
    lines = content.decode('utf-8-sig').removesuffix('\n').split('\n')[:size]
    words, counts = zip(*(_word_count(number, line) for number, line in enumerate(lines, 1)))
    rises = [
      n for n, (count, following) in enumerate(zip(counts, counts[1:]), 2) if following > count
    ]
    if rises:
      raise ValueError(f'line {rises[0]} has a larger count than the line before')
    return vocabularies.Vocabulary(words)
  except (tarfile.TarError, EOFError, OSError, LookupError, ValueError) as e:
    raise ValueError(
      f'{path} is not a word count file ({e}): it must hold a word and its'
      ' count on each line, the most frequent first'
    ) from e


def _word_count(number: int, line: str) -> tuple[str, int]:
  """Returns word and count of a line."""
  fields = line.split()
  if len(fields) != 2 or not fields[1].isdecimal():
    raise ValueError(f'line {number} is no word and its count')
  return fields[0], int(fields[1])


def _client_data(path: pathlib.Path, split: str) -> tff.simulation.datasets.ClientData:
  try:
    data = tff.simulation.datasets.SqlClientData(str(path), split)
  except (sqlite3.Error, ValueError) as e:
    raise ValueError(
      f'{path} is not a database of federated data ({e}): put TensorFlow'
      f" Federated's {DATABASE} there"
    ) from e
  except Exception as e:
    if type(e).__name__ != 'DatabaseFormatError':  # TFF does not export it.
      raise
    raise ValueError(f"{path} lacks what TFF's databases hold: {e}") from e
  if not data.client_ids:
    raise ValueError(f'{path} has no clients in split {split!r}')
  return data


def _shuffled(client_ids: list[str]) -> list[str]:
  """Always the same order, but one that says nothing of the clients."""
  return sorted(client_ids, key=lambda i: hashlib.sha256(i.encode()).digest())


class _Sentences:
  """The encoded sentences of a split's clients, read when they are needed."""

  def __init__(
    self, path: pathlib.Path, split: str, vocabulary: vocabularies.Vocabulary, length: int
  ):
    self._data, self._path, self._split = _client_data(path, split), path, split
    self._vocabulary = vocabulary
    self._length = length

  @property
  def client_ids(self) -> list[str]:
    return self._data.client_ids

  def __call__(self, client_id: str) -> np.ndarray:
    texts = []
    # Large batches: the parsing operation costs more to start than to run.
    for batch in self._data.create_tf_dataset_for_client(client_id).batch(1024):
      try:
        parsed = tf.io.parse_example(batch, {'tokens': tf.io.FixedLenFeature([], tf.string)})
      except tf.errors.InvalidArgumentError:
        raise ValueError(
          f'{self._path}: an example of split {self._split!r} is no tf.train.Example with one text'
          ' feature, tokens'
        ) from None
      texts.extend(parsed['tokens'].numpy())
    sentences = [text.decode('utf-8', 'replace').split() for text in texts]
    return self._vocabulary.encode(sentences, self._length)

  def first(self, num_sentences: int) -> np.ndarray:
    """That many sentences, or all there are, of clients chosen by a hash."""
    parts, missing = [], num_sentences
    for client_id in _shuffled(self.client_ids):
      parts.append(self(client_id)[:missing])
      missing -= len(parts[-1])
      if not missing:
        break
    return np.concatenate(parts)

  def sample(self, num_clients: int) -> Iterator[np.ndarray]:
    return map(self, _shuffled(self.client_ids)[:num_clients])


def load(
  *,
  data_dir: str | os.PathLike = '~/.tff',
  download: bool = False,
  vocabulary_size: int = 10_000,
  length: int = 20,
  num_validation_sentences: int = 10_000,
  num_test_sentences: int = 50_000,
) -> federated_text.Dataset:
  """The data set, from local files.

  Validation sentences come from the held-out users, test sentences from the
  test split (later than all training sentences).
  """
  folder = paths.local(data_dir).expanduser()
  if download:
    _download(folder)
  database = _find(folder, DATABASE)
  vocabulary = read_vocabulary(
    _find(folder, WORD_COUNTS, f'{WORD_COUNTS}.tar.bz2'), vocabulary_size
  )
  train, validation, test = (
    _Sentences(database, split, vocabulary, length) for split in ('train', 'heldout', 'test')
  )
  return federated_text.Dataset(
    name='stackoverflow',
    vocabulary=vocabulary,
    train_clients=tuple(train.client_ids),
    sentences=train,
    validation=validation.first(num_validation_sentences),
    test=test.first(num_test_sentences),
    unigram_token=federated_text.unigram_token(train.sample(_BASELINE_CLIENTS), vocabulary),
    licence=LICENCE,
    unit='a user of the site',
  )
