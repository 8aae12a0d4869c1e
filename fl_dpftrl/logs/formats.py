"""Formats of logs, by the ending of a file's name.

Only `reader_program` reads files that others wrote: see `reader`.
"""

from typing import BinaryIO, Iterator, Protocol, Sequence

import pyarrow as pa

from fl_dpftrl.logs import lines
from fl_dpftrl.logs import parquet


class Reader(Protocol):
  """A file that can be read.

  Attributes:
    metadata: the file's own keys and values; none for CSV and JSON lines.
    digest: tells its rows from others, where its writer gave one.
    schema: of its tables: `round`, int64, `device_id`, large_string or int64, and
      the further columns that it was opened with.
  """

  metadata: dict[str, str]
  digest: str | None
  schema: pa.Schema

  def tables(self) -> Iterator[pa.Table]:
    """Yields its rows in order; text in them is not checked yet."""


READERS = {
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
    suffix: str, path: str, file: BinaryIO, extra_columns: Sequence[str]
) -> Reader:
  """Opens a file of the format that a name with this ending has."""
  return READERS[suffix](path, file, extra_columns)
