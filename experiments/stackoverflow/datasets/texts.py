"""Your own text: a folder of text files, or a table with a client on each row.

A folder holds one .txt file for each client, or the files of a table. A table is CSV, JSON lines
or Parquet, with a column that names the client and one that has text, or a list of token ids.
A file of LEAF's data has the texts of each client. Clients are divided into training, validation
and test by a seed.
"""

import collections
import gzip
import hashlib
import io
import itertools
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as pa_csv
from pyarrow import json as pa_json
from pyarrow import parquet as pa_parquet

from experiments.stackoverflow.datasets import docstring_text, federated_text, vocabularies
from fl_dpftrl.logs import id_columns, id_spellings, table_rows
from fl_dpftrl.support.files import json_files, paths
from fl_dpftrl.support.text import messages

LICENCE = (
  'Text of your own. The vocabulary is counted from the training clients without noise: the'
  ' guarantee is for the model, and takes the list of words as public.'
)
_CSV, _JSON = ('.csv', '.csv.gz'), ('.jsonl', '.ndjson', '.jsonl.gz', '.ndjson.gz')
_TABLES, _LEAF = (*_CSV, *_JSON, '.parquet'), '.json'
SUFFIXES = (*_TABLES, _LEAF)

_CONVERT = 'convert it, as by iconv -f ISO-8859-1 -t UTF-8, with its own encoding'
_UTF_16 = (b'\xff\xfe', b'\xfe\xff')
# Types that are tried: an inferred one would merge clients, as numbers that are rounded.
_JSON_KINDS = [*itertools.product((pa.string(), pa.int64()), (pa.string(), pa.list_(pa.int64())))]
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[.,:;?!()]")
_FEWEST_CLIENTS = 3  # one for each split
_HELD_OUT = 10  # one client of so many is for validation, and one for test

Sentences = list[list[str]]
Content = str | list[int]
"""A text, or token ids."""


def load(
  path: str | os.PathLike[str],
  *,
  seed: int = 0,
  client_column: str = 'client',
  text_column: str = 'text',
  vocabulary_size: int = 10_000,
  length: int = 20,
) -> federated_text.Dataset:
  """Returns the data set of a folder or file.

  Args:
    path: folder of .txt files or of a table's, or a file that ends in one of `SUFFIXES`. Names of
      clients follow the rule of a log's device ids.
    seed: seed of the division into training, validation and test clients.
    client_column: column of the client's name, in a table.
    text_column: column of the text, or of a list of token ids, in a table.
    vocabulary_size: most words of the vocabulary, only from training clients.
    length: most words of a sentence; a longer one is cut.
  """
  path = paths.local(path)
  contents, unit = contents_of(path, client_column, text_column)
  names = id_columns.as_numpy(
    id_columns.column(list(contents), f'{path}, names of clients')
  ).tolist()
  spellings = id_spellings.Spellings()
  spellings.add(pa.array(names))
  if fault := spellings.first_fault(pa.array(names)):
    raise ValueError(f'{path}, names of clients: one {fault[1]}')
  for warning in id_spellings.warnings(spellings.mergeable, len(names)):
    print(messages.one_line(f'{path}: {warning}'), file=sys.stderr)
  clients = {str(name): _sentences(own, length) for name, own in zip(names, contents.values())}
  # Of all names: a client without sentences leaves others where they are.
  splits = split(list(clients), seed)
  splits = {part: [name for name in names if clients[name]] for part, names in splits.items()}
  if not all(splits.values()):
    some = sum(map(len, splits.values()))
    have = '1 client' if some == 1 else f'{some} clients'
    raise ValueError(
      f'{path} has {have} with a sentence of two words or more;'
      f' at least {_FEWEST_CLIENTS} are needed, one each to train, to validate and to test'
    )
  counts = collections.Counter(
    word for client in splits['train'] for sentence in clients[client] for word in sentence
  )
  vocabulary = vocabularies.by_frequency(counts).most_frequent(vocabulary_size)
  rows = {client: vocabulary.encode(found, length) for client, found in clients.items() if found}
  train = {client: rows[client] for client in splits['train']}
  return federated_text.Dataset(
    name=messages.one_line(path.name, limit=80),
    vocabulary=vocabulary,
    train_clients=tuple(train),
    sentences=train.__getitem__,
    validation=np.concatenate([rows[client] for client in splits['validation']]),
    test=np.concatenate([rows[client] for client in splits['test']]),
    unigram_token=federated_text.unigram_token(train.values(), vocabulary),
    licence=LICENCE,
    unit=unit,
    digest=_digest({client: found for client, found in clients.items() if found}),
  )


def split(clients: Sequence[str], seed: int) -> dict[str, list[str]]:
  """Returns the clients of 'train', 'validation' and 'test', by name and seed.

  One client of ten, and at least one, is for validation, and as many for test.
  """
  order = sorted(clients, key=lambda name: hashlib.sha256(f'{seed}\n{name}'.encode()).digest())
  held_out = max(1, len(order) // _HELD_OUT)
  return {
    'test': sorted(order[:held_out]),
    'validation': sorted(order[held_out : 2 * held_out]),
    'train': sorted(order[2 * held_out :]),
  }


def contents_of(
  path: pathlib.Path,
  client_column: str,
  text_column: str,
  flags: tuple[str, str] = ('--client_column', '--text_column'),
) -> tuple[dict[Any, list[Content]], str]:
  """Returns what each client has, by its name, and what a client is.

  Args:
    path, client_column, text_column: see `load`.
    flags: names of the flags of both columns, as errors have them.
  """
  files = _files(path)
  if path.is_dir() and not files:
    return _of_folder(path), 'a text file'
  if path.suffix == _LEAF:
    return _of_leaf(path, text_column), 'a client id'
  return _of_table(files, (client_column, text_column), flags), f'a value of {client_column}'


def _of_folder(folder: pathlib.Path) -> dict[str, list[Content]]:
  paths = sorted(path for path in folder.rglob('*.txt') if path.is_file())
  if not paths:
    raise ValueError(
      f'{folder} has no .txt file; it must have one for each client, also in subfolders'
    )
  clients: dict[str, list[Content]] = {}
  for path in paths:
    try:
      clients[path.relative_to(folder).as_posix()] = [path.read_text('utf-8-sig')]
    except UnicodeDecodeError as problem:
      raise ValueError(
        f'{path} is not text in UTF-8, at byte {problem.start}; {_CONVERT}'
      ) from None
  return clients


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a table; none for a folder of texts."""
  if not path.is_dir():
    return [path]
  if any(path.rglob('*.txt')):
    return []
  inside = sorted(file for file in path.rglob('[!._]*') if file.is_file())
  return [file for file in inside if file.name.endswith(_TABLES)]


def _of_table(
  files: Sequence[pathlib.Path], columns: tuple[str, str], flags: tuple[str, str]
) -> dict[str | int, list[Content]]:
  clients: dict[str | int, list[Content]] = {}
  client_column, text_column = columns
  for path in files:
    table = _read(path, client_column, text_column)
    for flag, column in zip(flags, columns):
      if (number := table.column_names.count(column)) != 1:
        names = messages.one_line(', '.join(table.column_names), limit=100)
        have = 'more than one' if number else 'no'
        raise ValueError(f'{path} has {have} column {column} ({flag}); it has {names}')
      if table[column].null_count:
        row = 1 + table[column].is_null().index(True).as_py()
        raise ValueError(f'{path}, row {row}: has nothing in column {column} ({flag})')
    kind = table.schema.field(text_column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_tokens = table_rows.is_list(kind) and pa.types.is_integer(kind.value_type)
    if not (is_tokens or id_columns.is_text(kind)):
      raise ValueError(
        f'{path}: column {text_column} ({flags[1]}) must have text or lists of token ids, is {kind}'
      )
    names = id_columns.column(table[client_column], f'{path}, column {client_column}')
    for name, content in zip(names.to_pylist(), table[text_column].to_pylist()):
      clients.setdefault(name, []).append(content)
  return clients


def _of_leaf(path: pathlib.Path, text_column: str) -> dict[str, list[Content]]:
  """Returns the clients of a file of LEAF's data: `x` of each in user_data, if not text_column."""
  try:
    data = json_files.parse(path.read_bytes())['user_data']
    clients = {client: list(own.get(text_column) or own['x']) for client, own in data.items()}
  except (ValueError, KeyError, TypeError, AttributeError) as problem:
    said = messages.one_line(repr(problem), limit=80)
    raise ValueError(f"{path} is not LEAF's JSON, with lists in user_data: {said}") from None
  is_tokens = lambda content: isinstance(content, list) and {*map(type, content)} <= {int}
  for contents in clients.values():
    if not all(isinstance(content, str) or is_tokens(content) for content in contents):
      raise ValueError(f'{path}: --text_column={text_column} must have text or lists of token ids')
  return clients


def _sentences(contents: Sequence[Content], length: int) -> Sentences:
  """Returns sentences of at most `length` words, in which a token id is a word."""
  sentences: Sentences = []
  for content in contents:
    if isinstance(content, str):
      sentences += docstring_text.sentences_of(content, length, words=_WORD)
    else:
      words = [str(token) for token in content]
      pieces = [words[start : start + length] for start in range(0, len(words), length)]
      sentences += [piece for piece in pieces if len(piece) > 1]
  return sentences


def _read(path: pathlib.Path, client_column: str, text_column: str) -> pa.Table:
  """Reads the two columns of a table, and the names of the others."""
  if not path.is_file():
    raise ValueError(f'{path} is neither a folder nor a file')
  try:
    # Arrow would take a name such as ~/a.csv or run:1 for another place.
    with path.open('rb') as opened:
      return _table(path, opened, client_column, text_column)
  except (pa.ArrowException, OSError, EOFError) as problem:
    raise ValueError(f'{path} {_unreadable(path, problem)}') from None


def _table(path: pathlib.Path, opened: Any, client_column: str, text_column: str) -> pa.Table:
  if path.suffix == '.parquet':
    file = pa_parquet.ParquetFile(opened)
    wanted = {client_column, text_column} & set(file.schema_arrow.names)
    whole = len(wanted) == len({client_column, text_column})
    return file.read(columns=sorted(wanted)) if whole else file.schema_arrow.empty_table()
  if path.suffix == '.gz':
    opened = gzip.GzipFile(fileobj=opened)
  if path.name.endswith(_JSON):
    first = None
    for client, text in _JSON_KINDS:
      schema = pa.schema([(client_column, client), (text_column, text)])
      parsing = pa_json.ParseOptions(schema, False, unexpected_field_behavior='ignore')
      opened.seek(0)
      try:
        return pa_json.read_json(opened, parse_options=parsing)
      except pa.ArrowInvalid as problem:
        first = first or problem
    raise first
  if path.name.endswith(_CSV):
    content = opened.read()
    if content.count(b'"') % 2:  # The rest would be one client's text.
      raise pa.ArrowInvalid('a quotation mark has no other; write such a mark twice')
    text = {client_column: pa.string(), text_column: pa.string()}
    return pa_csv.read_csv(
      io.BytesIO(content),
      parse_options=pa_csv.ParseOptions(newlines_in_values=True),
      convert_options=pa_csv.ConvertOptions(column_types=text),
    )
  raise ValueError(f'{path} must be a folder, or a file that ends in {", ".join(SUFFIXES)}')


def _unreadable(path: pathlib.Path, problem: Exception) -> str:
  """Returns why a table cannot be read, and what to do."""
  with path.open('rb') as stream:
    start = stream.read(2)
  if not start:
    return 'is empty; it must have a row for each text'
  if path.suffix == '.parquet':
    return f'is not Parquet: {messages.one_line(str(problem), limit=120)}'
  if 'UTF8' in str(problem) or start in _UTF_16:
    return f'is not text in UTF-8; {_CONVERT}'
  said = messages.one_line(str(problem), limit=80)
  if path.name.endswith(_CSV):
    return f'is not CSV with commas and quoted texts, under a line of column names: {said}'
  return f'is not JSON lines with names of text or whole numbers, and texts or token ids: {said}'


def _digest(clients: Mapping[str, Sentences]) -> str:
  """Returns a digest of all clients and their sentences."""
  digest = hashlib.sha256()
  for client in sorted(clients):
    lines = [repr(client), *(' '.join(sentence) for sentence in clients[client])]
    digest.update('\n'.join(lines).encode('utf-8', 'surrogatepass') + b'\n\n')
  return digest.hexdigest()[: federated_text.DIGEST_LENGTH]
