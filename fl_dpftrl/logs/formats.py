"""Formats of logs, by file name suffix.

Only `reader_program` reads files of untrusted origin: see `reader`.
"""

import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Protocol, cast

import pyarrow as pa

from fl_dpftrl.logs import journal, lines, parquet
from fl_dpftrl.logs import layout as layout_lib


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


READERS: dict[str, Callable[..., Reader]] = {
  '.parquet': parquet.Reader,
  '.csv': lines.Csv,
  '.tsv': lines.Csv,
  '.jsonl': lines.JsonLines,
  '.ndjson': lines.JsonLines,
  '.json': lines.JsonLines,
}
"""Ending of a name → (path, file, further columns, layout) → Reader.

Readers and their tables raise LogError, OSError, pa.ArrowException, MemoryError.
"""

GZIP = '.gz'
SUFFIXES = (
  *READERS,
  *(suffix + GZIP for suffix, kind in READERS.items() if kind is not parquet.Reader),
  journal.SUFFIX,
)
"""Endings of the names of logs."""


def suffix_of(path: str) -> str:
  """Returns the ending of a name that says its format, such as .csv.gz."""
  stem, suffix = os.path.splitext(path)
  return os.path.splitext(stem)[1] + suffix if suffix == GZIP else suffix


def open_(
  path: str, file: BinaryIO, extra_columns: Sequence[str], size: int, layout: layout_lib.Layout
) -> Reader:
  """Opens a file in the format that its name says; a journal has this many bytes."""
  suffix = suffix_of(path)
  if suffix == journal.SUFFIX:
    return journal.Reader(path, file, extra_columns, size)
  if suffix.endswith(GZIP):
    unpacked = cast(BinaryIO, gzip.GzipFile(fileobj=file))
    return READERS[suffix.removesuffix(GZIP)](path, unpacked, extra_columns, layout)
  return READERS[suffix](path, file, extra_columns, layout)
