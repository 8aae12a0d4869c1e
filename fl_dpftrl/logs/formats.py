"""Formats of logs, by file name suffix.

Only `reader_program` reads files of untrusted origin: see `reader`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Protocol

import pyarrow as pa

from fl_dpftrl.logs import journal, lines, parquet


class Reader(Protocol):
  """A log file that is open for reading.

  Attributes:
    metadata: the file's own keys and values; none for CSV and JSON lines.
    digest: identifies the file's rows, if its writer gave a digest.
    schema: schema of its tables: `round`, int64, `device_id`, large_string or int64, and the
      further columns that it was opened with.
  """

  metadata: dict[str, str]
  digest: str | None
  schema: pa.Schema

  def tables(self) -> Iterator[pa.Table]:
    """Yields the file's rows in order; text in them is not checked yet."""


READERS: dict[str, Callable[[str, BinaryIO, Sequence[str]], Reader]] = {
  '.parquet': parquet.Reader,
  '.csv': lines.Csv,
  '.jsonl': lines.JsonLines,
  '.ndjson': lines.JsonLines,
  '.json': lines.JsonLines,
}
"""Ending of a name → (path, file, further columns) → Reader.

Readers and their tables raise LogError, OSError, pa.ArrowException, MemoryError.
"""


def open_(
  suffix: str, path: str, file: BinaryIO, extra_columns: Sequence[str], size: int
) -> Reader:
  """Opens a file in the format that its suffix names; a journal has this many bytes."""
  if suffix == journal.SUFFIX:
    return journal.Reader(path, file, extra_columns, size)
  return READERS[suffix](path, file, extra_columns)


SUFFIXES = (*READERS, journal.SUFFIX)
"""Endings of the names of logs."""
