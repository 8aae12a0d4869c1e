"""Reads files of logs, and of tables beside them, that others may have written.

docs/write-the-log.md says why.
"""

import contextlib
import hashlib
import os
import pathlib
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import (
  layouts,
  ledger_format,
  ledger_reader,
  limits,
  lines,
  parquet,
  refusals,
  table_columns,
  table_rows,
)

_BUFFER = 1 << 20
_FLAGS = os.O_RDONLY
for _name in ('O_NONBLOCK', 'O_CLOEXEC', 'O_BINARY'):  # Not on every system.
  _FLAGS |= getattr(os, _name, 0)


class _Reader(Protocol):
  """A file that is open: its metadata, columns, rows, and the schema of its checked rows."""

  metadata: dict[str, str]
  schema: pa.Schema
  names: list[str]

  def tables(self) -> Iterator[pa.Table]:
    """Yields the file's rows in order, unchecked, as `rows.checked` takes them."""


_READERS: dict[str, Callable[..., _Reader]] = {
  '.parquet': parquet.ParquetReader,
  '.csv': lines.CsvReader,
}
FORMATS = tuple(_READERS)
"""Endings of the names of logs, besides those that are still written."""

SUFFIXES = (*FORMATS, ledger_format.SUFFIX)
"""Endings of the names of logs."""


class Source:
  """A file that is opened for each use, and must be the same file each time.

  Metadata, rows and digest then belong to one file, also where a writer replaces a log by a new
  one of the same name. A ledger may grow meanwhile, and is read up to the rounds that it had.
  """

  def __init__(self, path: str, columns: table_columns.TableColumns = layouts.PLAIN):
    """Notes which file the name is of."""
    self.path, self.columns = path, columns
    if path.endswith(ledger_format.SUFFIX):  # A writer in this process would lose its locks.
      return
    descriptor = self._open()
    self._identity = self._identified(descriptor)
    self.size = os.fstat(descriptor).st_size
    os.close(descriptor)

  def _open(self) -> int:
    try:
      descriptor = os.open(self.path, _FLAGS)
    except OSError as e:
      raise refusals.LogError(f'{self.path}: cannot be read, {e.strerror}') from e
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
      os.close(descriptor)
      raise refusals.LogError(f'{self.path}: is no regular file')
    return descriptor

  def _identified(self, descriptor: int) -> tuple[int, ...]:
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns

  @contextlib.contextmanager
  def opened(self) -> Iterator[BinaryIO]:
    """Yields the file; LogError if it changes before its end."""
    descriptor = self._open()
    try:
      self._check(descriptor)
      yield open(descriptor, 'rb', _BUFFER, closefd=False)  # noqa: SIM115
      self._check(descriptor)
    finally:
      os.close(descriptor)

  def _check(self, descriptor: int) -> None:
    if self._identified(descriptor) != self._identity:
      raise refusals.LogError(f'{self.path}: was changed while it was read; replay it again')

  def sha256(self) -> str:
    """Returns the digest of the file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with self.opened() as file:
      while block := file.read(_BUFFER):
        digest.update(block)
    return digest.hexdigest()


def head(source: Source) -> tuple[pa.Schema, dict[str, str], list[str]]:
  """Returns the schema of a file's checked rows, its metadata, and the names of all columns.

  LogError if it cannot be read.
  """
  with _opened(source) as reader:
    return reader.schema, reader.metadata, reader.names


def check_types(schemas: Mapping[str, pa.Schema]) -> None:
  """Raises LogError unless files, by their paths, have ids of one type in each column, or none."""
  firsts: dict[str, tuple[str, pa.DataType]] = {}
  for path, schema in schemas.items():
    for field in schema:
      if field.type == pa.null():
        continue
      first_path, first_type = firsts.setdefault(field.name, (path, field.type))
      if field.type != first_type:
        kinds = [
          'whole numbers' if kind == pa.int64() else 'text' for kind in (field.type, first_type)
        ]
        raise refusals.LogError(
          f'{path}: {field.name} is {kinds[0]}, but {kinds[1]} in {first_path}'
        )


def tables(source: Source, num_rounds: int | None = None) -> Iterator[pa.Table]:
  """Yields checked rows of a file in order; LogError for a faulty row."""
  return (flat for _, flat in _parts(source, num_rounds) if flat.num_rows)


def last_round(source: Source) -> int:
  """Returns the last round of any cohort, also of an empty one; −1 for a file without any."""
  rounds = (table.column('round') for table, _ in _parts(source) if table.num_rows)
  return max((pc.max(part).as_py() - source.columns.first_round for part in rounds), default=-1)


def _parts(source: Source, num_rounds: int | None = None) -> Iterator[tuple[pa.Table, pa.Table]]:
  """Yields some rows at a time, as the file has them and checked."""
  first_row = 1
  with _opened(source, num_rounds) as reader:
    for table in reader.tables():
      flat = table_rows.checked(
        source.path,
        table,
        reader.schema,
        source.columns,
        num_rounds=num_rounds,
        first_row=first_row,
      )
      first_row += table.num_rows
      limits.grant_time()
      yield table, flat


@contextlib.contextmanager
def _opened(source: Source, num_rounds: int | None = None) -> Iterator[_Reader]:
  """Yields the reader of a file; LogError for whatever goes wrong in it."""
  path = source.path
  limits.grant_time()
  try:
    if path.endswith(ledger_format.SUFFIX):
      yield ledger_reader.Reader(path, num_rounds)
      return
    with source.opened() as file:
      yield _READERS[pathlib.PurePath(path).suffix](path, file, source.columns)
  except refusals.LogError:
    raise
  except MemoryError as e:
    why = 'takes more memory to read than there is; it is damaged, or made to take much'
    raise refusals.LogError(f'{path}: {why}') from e
  except Exception as e:  # The libraries raise many kinds for files that are damaged.
    raise refusals.LogError(f'{path}: cannot be read, {e}') from e
  finally:
    limits.grant_time(limits.COUNT_CPU_SECONDS)
