"""Writer of logs of any length, one round at a time."""

import base64
import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fl_dpftrl.files import durable
from fl_dpftrl.logs import digests
from fl_dpftrl.logs import schema as schema_lib

_ROWS = 1 << 20
# What stands in the place of a digest, of its length, until all rows are written.
_PLACES = {key: hashlib.sha256(key.encode()).hexdigest() for key in digests.KEYS}

Append = Callable[[int, np.ndarray, int], None]


@contextlib.contextmanager
def writer(
  path: str | os.PathLike[str], *, num_rounds: int, metadata: Mapping[str, str] | None = None
) -> Iterator[Append]:
  """Writes a log whose ids are whole numbers, with little of it in memory.

  The file appears only when the block ends without an error. The same rounds give the same
  bytes with the same release of pyarrow.

  Args:
    path: the file, ending in .parquet; its folder must exist.
    num_rounds: rows of noise consumed.
    metadata: further keys and values for the file's metadata.

  Yields:
    A function that appends the next round, from 0 on. It takes the round's index, its device
    ids without duplicates, and its UTC second.

  Raises:
    ValueError: if the rounds are not those of num_rounds.
    OSError: if it cannot be written.
  """
  path = schema_lib.parquet_path(path)
  metadata = schema_lib.file_metadata(num_rounds, metadata)
  digested = digests.Rows(timestamps=True)
  columns = digests.marked(schema_lib.schema(pa.int64())).with_metadata({**metadata, **_PLACES})
  pending: list[tuple[np.ndarray, ...]] = []
  done = rows = 0

  with durable.replacing(path, private=True) as temporary:
    with pq.ParquetWriter(temporary, columns, **schema_lib.FORMAT) as file:

      def flush() -> None:
        nonlocal rows
        if pending:
          table = pa.table(
            [np.concatenate(parts) for parts in zip(*pending)],
            names=['round', 'device_id', 'timestamp'],
          )
          table = table.cast(columns)
          digested.update(table)
          file.write_table(table)
        pending.clear()
        rows = 0

      def append(index: int, device_ids: np.ndarray, timestamp: int) -> None:
        nonlocal done, rows
        if index != done or index >= num_rounds:
          raise ValueError(f'the next round of the log is {done} of {num_rounds}, got {index}')
        size = device_ids.size
        times = np.full(size, timestamp * 1_000_000)
        pending.append((np.full(size, index), device_ids, times))
        done += 1
        rows += size
        if rows >= _ROWS:
          flush()

      yield append
      flush()
    if done != num_rounds:
      raise ValueError(f'num_rounds is {num_rounds}, but {done} were written')
    _fill(temporary, digests.sealed(metadata, digested.stated(pa.int64())))


def _fill(path: pathlib.Path, metadata: Mapping[str, str]) -> None:
  """Writes the digests, known only at the end, over their placeholders.

  The placeholders are in the footer, whose length precedes the last four bytes.

  Raises:
    ValueError: if the file has no placeholders.
  """
  schema = pq.read_metadata(path).metadata[b'ARROW:schema']
  with open(path, 'r+b') as file:
    file.seek(-8, os.SEEK_END)
    length = int.from_bytes(file.read(4), 'little')
    start = file.seek(-8 - length, os.SEEK_END)
    footer = file.read(length)
    file.seek(start)
    file.write(_filled(footer, schema, metadata))


def _filled(footer: bytes, schema: bytes, metadata: Mapping[str, str]) -> bytes:
  """Returns a footer with digests in place of all placeholders.

  Arrow's schema in the footer repeats the same metadata in base64.
  """
  decoded = base64.b64decode(schema)
  for key, place in _PLACES.items():
    old, new = place.encode(), metadata[key].encode()
    if (footer.count(old), decoded.count(old)) != (1, 1):
      raise ValueError(f'the footer must have one place for {key}')
    footer = footer.replace(old, new)
    decoded = decoded.replace(old, new)
  return footer.replace(schema, base64.b64encode(decoded))
