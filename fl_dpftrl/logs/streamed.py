"""A log of any length, written as it comes."""

import contextlib
import os
from typing import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fl_dpftrl import files
from fl_dpftrl.logs import schema as schema_lib

_ROWS = 1 << 20

Append = Callable[[int, np.ndarray, int], None]


@contextlib.contextmanager
def writer(
    path: str | os.PathLike[str],
    *,
    num_rounds: int,
    metadata: Mapping[str, str] | None = None,
) -> Iterator[Append]:
  """Writes a log whose ids are whole numbers, with little of it in memory.

  The file is there when the block ends without error, and not before. The same
  rounds give the same bytes with the same release of pyarrow.

  Args:
    path: the file, ending in .parquet; its folder must exist.
    num_rounds: rows of noise consumed.
    metadata: more keys and values for the file's metadata.

  Yields:
    A function that appends the round of its index: from 0, each the next; with
    device ids, none twice, and the UTC second of the round.

  Raises:
    ValueError: where the rounds are not those of num_rounds.
    OSError: where it cannot be written.
  """
  path = schema_lib.parquet_path(path)
  columns = schema_lib.schema(pa.int64()).with_metadata(
      schema_lib.file_metadata(num_rounds, metadata)
  )
  pending: list[tuple[np.ndarray, ...]] = []
  done = rows = 0

  with files.replacing(path, private=True) as temporary:
    with pq.ParquetWriter(temporary, columns, compression='zstd') as file:

      def flush() -> None:
        nonlocal rows
        if pending:
          table = pa.table(
              [np.concatenate(parts) for parts in zip(*pending)],
              names=['round', 'device_id', 'timestamp'],
          )
          file.write_table(table.cast(columns))
        pending.clear()
        rows = 0

      def append(index: int, device_ids: np.ndarray, timestamp: int) -> None:
        nonlocal done, rows
        if index != done or index >= num_rounds:
          raise ValueError(
              f'the next round of the log is {done} of {num_rounds}, got {index}'
          )
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
