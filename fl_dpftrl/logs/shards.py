"""The files of a log: found, read and checked one by one.

Rows are numbered from 1 in messages, the header of a CSV file not counted.
"""

import dataclasses
import glob
import hashlib
import json
import os
import pathlib
from typing import Mapping, NoReturn, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

LOG_VERSION = 1
VERSION_KEY = 'fl_dpftrl.log_version'
NUM_ROUNDS_KEY = 'num_rounds'
VOID_KEY = 'fl_dpftrl.void_reason'
"""Why the run that wrote the log gives no guarantee, where it gives none."""

_OWN_PREFIX = 'fl_dpftrl.'
_COLUMNS = ('round', 'device_id')


class LogError(ValueError):
  """A log that cannot be believed; the message names the file, in one line."""


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
  """One file of a log.

  Attributes:
    path: as it was given or found.
    table: `round` int64 and `device_id` large_string or int64, without nulls.
    metadata: the file's own keys and values; none for CSV and JSON lines.
    num_rounds: rows of noise consumed, where the file says.
    sha256: of the file's bytes, in hexadecimal.
  """

  path: str
  table: pa.Table
  metadata: Mapping[str, str]
  num_rounds: int | None
  sha256: str

  @property
  def claims(self) -> dict[str, str]:
    """The metadata that shards of one log have to share."""
    return {
        key: value
        for key, value in self.metadata.items()
        if key == NUM_ROUNDS_KEY or key.startswith(_OWN_PREFIX)
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
    if path.suffix not in _READERS or not path.is_file():
      raise LogError(
          f'{folder}: holds {name!r}, which is no {_SUFFIXES} file; name the'
          " log's own files, or a folder of nothing else"
      )
  return [os.path.join(folder, name) for name in names]


def read(path: str | os.PathLike[str], *extra_columns: str) -> Shard:
  """Reads one file and checks its rows.

  Args:
    path: ends in .parquet, .csv, .jsonl, .ndjson or .json (JSON lines).
    *extra_columns: of a Parquet file, read as they are, and required.

  Raises:
    LogError: where it cannot be read, is of another version, or has a row
      without a round of at least 0 and a device id.
  """
  path = os.fspath(path)
  reader = _READERS.get(pathlib.Path(path).suffix)
  if reader is None:
    raise LogError(f'{path}: ends in none of {_SUFFIXES}')
  try:
    with open(path, 'rb') as file:
      digest = hashlib.sha256()
      while block := file.read(1 << 20):
        digest.update(block)
    table, metadata = reader(path, extra_columns)
  except (pa.ArrowException, OSError) as e:
    reason = ' '.join(str(e).split())
    raise LogError(f'{path}: cannot be read, {reason}') from e
  _check_rows(path, table)
  return Shard(
      path, table, metadata, _num_rounds(path, metadata), digest.hexdigest()
  )


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


def _parquet(
    path: str, extra_columns: Sequence[str]
) -> tuple[pa.Table, dict[str, str]]:
  with pq.ParquetFile(path, memory_map=False) as file:
    names = file.schema_arrow.names
    columns = (*_COLUMNS, *extra_columns)
    _check_names(path, names, columns)
    table = file.read(columns=list(columns)).select(columns)
    stored = file.metadata.metadata or {}
  metadata = {
      k.decode(): v.decode()
      for k, v in stored.items()
      if k not in (b'ARROW:schema', b'pandas')
  }
  return _canonical(path, table), metadata


def _canonical(path: str, table: pa.Table) -> pa.Table:
  """Rounds as int64, ids as int64 or large_string, whatever the file has."""
  types = pa.types
  rounds, ids = table.column('round'), table.column('device_id')
  if not types.is_integer(rounds.type):
    raise LogError(f'{path}: round must be whole numbers, is {rounds.type}')
  kind = ids.type.value_type if types.is_dictionary(ids.type) else ids.type
  if types.is_integer(kind):
    kind = pa.int64()
  elif types.is_string(kind) or types.is_large_string(kind):
    kind = pa.large_string()
  else:
    raise LogError(
        f'{path}: device_id must be text or whole numbers, is {ids.type}'
    )
  table = table.set_column(0, 'round', rounds.cast(pa.int64()))
  return table.set_column(1, 'device_id', ids.cast(kind))


def _csv(
    path: str, extra_columns: Sequence[str]
) -> tuple[pa.Table, dict[str, str]]:
  del extra_columns
  with open(path, 'rb') as file:
    if file.seek(0, os.SEEK_END):
      file.seek(-1, os.SEEK_END)
      if file.read() != b'\n':
        raise LogError(
            f'{path}: does not end with a newline, so it may have been cut; add'
            ' one if it is whole'
        )
  text = {name: pa.large_string() for name in _COLUMNS}
  table = pa_csv.read_csv(
      path,
      parse_options=pa_csv.ParseOptions(newlines_in_values=True),
      convert_options=pa_csv.ConvertOptions(
          column_types=text, strings_can_be_null=False
      ),
  )
  _check_names(path, table.column_names, _COLUMNS)
  table = table.select(_COLUMNS)
  rounds = table.column('round')
  odd = pc.invert(pc.match_substring_regex(rounds, r'^-?[0-9]{1,18}$'))
  _refuse_first(
      path, table, odd, 'round must be a whole number, got {round!r}'
  )
  spaced = pc.not_equal(
      pc.utf8_trim_whitespace(table.column('device_id')),
      table.column('device_id'),
  )
  _refuse_first(
      path, table, spaced, 'device_id has spaces around it, {device_id!r}'
  )
  return table.set_column(0, 'round', rounds.cast(pa.int64())), {}


def _json_lines(
    path: str, extra_columns: Sequence[str]
) -> tuple[pa.Table, dict[str, str]]:
  del extra_columns
  for kind in (pa.large_string(), pa.int64()):
    types = pa.schema([('round', pa.int64()), ('device_id', kind)])
    try:
      table = pa_json.read_json(
          path, parse_options=pa_json.ParseOptions(explicit_schema=types)
      )
      break
    except pa.ArrowInvalid as e:
      error = e
  else:
    _explain_json(path, error)
  return table.select(_COLUMNS), {}


def _explain_json(path: str, error: pa.ArrowInvalid) -> NoReturn:
  """Finds the first row that is at fault, or that differs from the first."""
  first = None
  with open(path, encoding='utf-8', errors='replace') as file:
    for row, line in enumerate(filter(str.strip, file), 1):
      try:
        entry = json.loads(line)
        round_index, device_id = entry['round'], entry['device_id']
      except (ValueError, KeyError, TypeError):
        raise LogError(
            f'{path}, row {row}: must be a JSON object with round and device_id'
        ) from error
      if type(round_index) is not int:  # pylint: disable=unidiomatic-typecheck
        raise LogError(
            f'{path}, row {row}: round must be a whole number, got'
            f' {round_index!r}'
        ) from error
      first = type(device_id) if first is None else first
      if first not in (int, str) or type(device_id) is not first:
        raise LogError(
            f'{path}, row {row}: device_id must be all text or all whole'
            f' numbers, got {device_id!r}'
        ) from error
  raise error


_READERS = {
    '.parquet': _parquet,
    '.csv': _csv,
    '.jsonl': _json_lines,
    '.ndjson': _json_lines,
    '.json': _json_lines,
}
_SUFFIXES = ', '.join(_READERS)


def _check_names(
    path: str, names: Sequence[str], wanted: Sequence[str]
) -> None:
  for name in wanted:
    if names.count(name) != 1:
      how = 'no' if name not in names else 'more than one'
      raise LogError(
          f'{path}: has {how} column {name!r}; its columns are'
          f' {", ".join(map(repr, names))}'
      )


def _check_rows(path: str, table: pa.Table) -> None:
  rounds, ids = table.column('round'), table.column('device_id')
  for name, column in (('round', rounds), ('device_id', ids)):
    if column.null_count:
      _refuse_first(path, table, pc.is_null(column), f'has no {name}')
  _refuse_first(
      path, table, pc.less(rounds, 0), 'round must be at least 0, got {round}'
  )
  if pa.types.is_large_string(ids.type):
    _refuse_first(path, table, pc.equal(ids, ''), 'device_id is empty')


def _refuse_first(
    path: str, table: pa.Table, wrong: pa.ChunkedArray, message: str
) -> None:
  index = pc.index(wrong, pa.scalar(True)).as_py()
  if index >= 0:
    row = table.slice(index, 1).to_pylist()[0]
    raise LogError(f'{path}, row {index + 1}: {message.format(**row)}')
