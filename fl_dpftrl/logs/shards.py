"""The files of a log: found, read and checked one by one.

Rows are numbered from 1 in messages, the header of a CSV file not counted.
"""

import contextlib
import dataclasses
import glob
import hashlib
import os
import pathlib
from typing import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import formats

LogError = formats.LogError

LOG_VERSION = 1
VERSION_KEY = 'fl_dpftrl.log_version'
NUM_ROUNDS_KEY = 'num_rounds'
# Why the run that wrote the log gives no guarantee, where it gives none.
VOID_KEY = 'fl_dpftrl.void_reason'
# Of the first round, and from where on they were others: JSON, a list of [round,
# noise multiplier, clip norm].
NOISE_MULTIPLIER_KEY = 'fl_dpftrl.noise_multiplier'
CLIP_NORM_KEY = 'fl_dpftrl.clip_norm'
NOISE_CHANGES_KEY = 'fl_dpftrl.noise_changes'
STRATEGY_KEY = 'fl_dpftrl.strategy_sha256'
# Rounds whose results may have been used; for who goes on with the run.
RELEASED_KEY = 'fl_dpftrl.rounds_released'
SAMPLING_KEY = 'fl_dpftrl.sampling'
_OWN_PREFIX = 'fl_dpftrl.'
_SUFFIXES = ', '.join(formats.READERS)


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
  """One file of a log, opened: its rows are read when they are asked for.

  Attributes:
    path: as it was given or found.
    metadata: the file's own keys and values; none for CSV and JSON lines.
    num_rounds: rows of noise consumed, where the file says.
    id_type: of `device_id`: large_string or int64.
  """

  path: str
  metadata: Mapping[str, str]
  num_rounds: int | None
  id_type: pa.DataType
  _tables: Callable[[], Iterator[pa.Table]] = dataclasses.field(repr=False)

  def tables(self, num_rounds: int | None = None) -> Iterator[pa.Table]:
    """Its rows in order, some at a time, checked.

    Args:
      num_rounds: rounds have to be below it; None for any.

    Yields:
      Tables of `round` int64 and `device_id` of id_type, without nulls, and the
      further columns that the shard was opened with.

    Raises:
      LogError: where it cannot be read, or a row has no round of at least 0 or
        no device id.
    """
    first_row = 1
    with _explained(self.path):
      for table in self._tables():
        _check_rows(self.path, table, num_rounds, first_row)
        first_row += table.num_rows
        yield table

  def sha256(self) -> str:
    """Of the file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with _explained(self.path), open(self.path, 'rb') as file:
      while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()

  @property
  def claims(self) -> dict[str, str]:
    """The metadata that shards of one log have to share."""
    return {
        key: value
        for key, value in self.metadata.items()
        if key == NUM_ROUNDS_KEY or key.startswith(_OWN_PREFIX)
        if key != RELEASED_KEY
    }


def find(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
  """The files that paths, folders and globs name, each once, in order.

  A folder stands for all files in it but those whose names start with a dot or
  an underscore. It must hold nothing else, so that no shard is overlooked.

  Raises:
    LogError: where nothing is there, or a folder holds something else.
  """
  found: dict[str, str] = {}
  for given in map(os.fspath, paths):
    if os.path.isfile(given):
      matches = [given]
    elif os.path.isdir(given):
      matches = _in_folder(given)
    else:
      matches = sorted(m for m in glob.glob(given, recursive=True)
                       if os.path.isfile(m))
    if not matches:
      raise LogError(f'{given}: no such file, folder or match of a glob')
    for match in matches:
      found.setdefault(os.path.realpath(match), match)
  if not found:
    raise LogError('no log given')
  return list(found.values())


def _in_folder(folder: str) -> list[str]:
  names = sorted(n for n in os.listdir(folder) if not n.startswith(('.', '_')))
  for name in names:
    path = pathlib.Path(folder, name)
    if path.suffix not in formats.READERS or not path.is_file():
      raise LogError(
          f'{folder}: holds {name!r}, which is no {_SUFFIXES} file; name the'
          " log's own files, or a folder of nothing else"
      )
  return [os.path.join(folder, name) for name in names]


def open_(path: str | os.PathLike[str], *extra_columns: str) -> Shard:
  """Opens one file, and reads what it says of itself.

  Args:
    path: ends in .parquet, .csv, .jsonl, .ndjson or .json (JSON lines).
    *extra_columns: of a Parquet file, read as they are, and required.

  Raises:
    LogError: where it cannot be read, or is of another version.
  """
  path = os.fspath(path)
  reader = formats.READERS.get(pathlib.Path(path).suffix)
  if reader is None:
    raise LogError(f'{path}: ends in none of {_SUFFIXES}')
  with _explained(path):
    metadata, id_type, tables = reader(path, extra_columns)
  return Shard(path, metadata, _num_rounds(path, metadata), id_type, tables)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
  try:
    yield
  except (pa.ArrowException, OSError) as e:
    reason = ' '.join(str(e).split())
    raise LogError(f'{path}: cannot be read, {reason}') from e


def _num_rounds(path: str, metadata: Mapping[str, str]) -> int | None:
  version = metadata.get(VERSION_KEY, str(LOG_VERSION))
  if version != str(LOG_VERSION):
    raise LogError(
        f'{path}: {VERSION_KEY} is {version!r}, known is {LOG_VERSION}'
    )
  text = metadata.get(NUM_ROUNDS_KEY)
  if text is None:
    return None
  if not (text.isascii() and text.isdigit() and int(text) >= 1):
    raise LogError(
        f'{path}: {NUM_ROUNDS_KEY} must be a whole number of at least 1, got'
        f' {text!r}'
    )
  return int(text)


def _check_rows(
    path: str, table: pa.Table, num_rounds: int | None, first_row: int
) -> None:
  rounds, ids = table.column('round'), table.column('device_id')
  refuse = lambda wrong, message: formats.refuse_first(
      path, table, wrong, message, first_row
  )
  for name, column in (('round', rounds), ('device_id', ids)):
    if column.null_count:
      refuse(pc.is_null(column), f'has no {name}')
  bounds = pc.min_max(rounds).as_py()
  if table.num_rows and bounds['min'] < 0:
    refuse(pc.less(rounds, 0), 'round must be at least 0, got {round}')
  if num_rounds is not None and table.num_rows and bounds['max'] >= num_rounds:
    refuse(
        pc.greater_equal(rounds, num_rounds),
        f'round {{round}} is beyond the {num_rounds} rounds of the log',
    )
  if pa.types.is_large_string(ids.type):
    refuse(pc.equal(ids, ''), 'device_id is empty')
