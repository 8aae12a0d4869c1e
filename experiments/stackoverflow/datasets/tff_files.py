"""Files of federated data in the two forms of TensorFlow Federated's data sets.

A .sqlite file has the tables of `tff.simulation.datasets.SqlClientData`: `examples` has a
serialised `tf.train.Example` in each row, with the client's id. A .h5 file, the form of earlier
releases, has an array of values at `examples/<client id>/<feature>`.
"""

import pathlib
import sqlite3
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

SQL_SUFFIXES = ('.sqlite',)
HDF5_SUFFIXES = ('.h5', '.hdf5')
SUFFIXES = SQL_SUFFIXES + HDF5_SUFFIXES

TOKENS = 'tokens'
"""Feature of StackOverflow's sentences, whose words are divided by spaces."""

_QUERY = 'SELECT client_id, serialized_example_proto FROM examples ORDER BY client_id, rowid'

Content = str | Sequence[int]


def examples(path: pathlib.Path, feature: str) -> Iterator[tuple[Any, str, Content]]:
  """Yields client id, name of the feature, and its text or token ids, for each example.

  Args:
    path: file that ends in one of `SUFFIXES`; all its splits are read.
    feature: name of the feature with the text; without one of the name 'text', it is `TOKENS`.
  """
  with path.open('rb'):
    pass  # Names a missing file as others are.
  read = _of_database if path.suffix in SQL_SUFFIXES else _of_hdf5
  yield from read(path, feature)


def _of_database(path: pathlib.Path, feature: str) -> Iterator[tuple[Any, str, Content]]:
  import tensorflow as tf  # Slow to load.
  from google.protobuf import message

  location = f'file:{urllib.parse.quote(str(path.resolve()))}?mode=ro'
  try:
    connection = sqlite3.connect(location, uri=True)
    try:
      for client, serialized in connection.execute(_QUERY):
        features = tf.train.Example.FromString(serialized).features.feature
        name = _name(path, feature, features)
        yield client, name, _content(path, name, features[name])
    finally:
      connection.close()
  except (sqlite3.Error, message.DecodeError, TypeError) as problem:
    raise ValueError(
      f"{path} has not the tables of TFF's SqlClientData ({problem}): a table `examples` with the"
      ' columns client_id and serialized_example_proto'
    ) from None


def _content(path: pathlib.Path, name: str, feature: Any) -> Content:
  if feature.int64_list.value:
    return list(feature.int64_list.value)
  if feature.float_list.value:
    raise ValueError(f'{path}: --text_column={name} must have text or token ids, has numbers')
  return _text(path, feature.bytes_list.value)


def _of_hdf5(path: pathlib.Path, feature: str) -> Iterator[tuple[Any, str, Content]]:
  try:
    import h5py
  except ImportError:
    raise ValueError(f'{path} needs the package h5py, which is not installed') from None
  try:
    with h5py.File(path, 'r') as file:
      for client, features in file['examples'].items():
        name = _name(path, feature, features)
        for value in features[name][()]:
          is_text = isinstance(value, (bytes, str))
          yield client, name, _text(path, [value]) if is_text else _ids(path, name, value)
  except (OSError, KeyError, AttributeError, TypeError) as problem:
    said = str(problem).partition('(')[2].rstrip(')') or type(problem).__name__
    raise ValueError(
      f"{path} has not the form of TFF's HDF5 files ({said}): arrays at"
      ' examples/<client id>/<feature>'
    ) from None


def _ids(path: pathlib.Path, name: str, value: Any) -> list[int]:
  ids = value.tolist() if hasattr(value, 'tolist') else value
  if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
    raise ValueError(f'{path}: --text_column={name} must have text or lists of token ids')
  return ids


def _name(path: pathlib.Path, feature: str, features: Iterable[str]) -> str:
  names = sorted(features)
  if feature == 'text' and feature not in names and TOKENS in names:
    return TOKENS
  if feature not in names:
    raise ValueError(
      f'{path} has no feature --text_column={feature}; it has {", ".join(names)[:100]}'
    )
  return feature


def _text(path: pathlib.Path, values: Iterable[bytes | str]) -> str:
  try:
    return ' '.join(v if isinstance(v, str) else v.decode() for v in values)
  except UnicodeDecodeError:
    raise ValueError(f'{path} has a text that is not in UTF-8') from None
