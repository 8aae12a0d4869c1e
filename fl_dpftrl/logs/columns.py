"""Columns of a log in memory: checked, and as Arrow and NumPy arrays."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import device_ids as device_ids_lib
from fl_dpftrl.logs import digests
from fl_dpftrl.text import messages

_MOST_SECONDS = 253_402_300_799  # end of the year 9999


def table(
  rounds: Sequence[int] | np.ndarray,
  device_ids: Sequence[str] | Sequence[int] | np.ndarray,
  timestamps: Sequence[int] | np.ndarray | None,
) -> pa.Table:
  """Returns the columns as a table, with types and shapes checked."""
  columns = {'round': integers('rounds', rounds), 'device_id': id_column(device_ids)}
  if timestamps is not None:
    seconds = utc_seconds('timestamps', timestamps)
    columns['timestamp'] = seconds.cast(pa.timestamp('s', tz='UTC')).cast(digests.TIMESTAMP)
  lengths = {name: len(column) for name, column in columns.items()}
  if len(set(lengths.values())) != 1:
    raise ValueError(f'columns must have one length, got {lengths}')
  return pa.table(columns)


def integers(name: str, values: Sequence[int] | np.ndarray) -> pa.Array:
  """Returns whole numbers as int64; ValueError naming the argument otherwise."""
  values = np.asarray(values)
  if values.ndim != 1 or (values.size and values.dtype.kind not in 'iu'):
    raise ValueError(
      f'{name} must be a list of whole numbers, got {values.dtype} of shape {values.shape}'
    )
  return pa.array(values.astype(np.int64))


def utc_seconds(name: str, values: Sequence[int] | np.ndarray) -> pa.Array:
  """Returns UTC seconds as int64; ValueError naming the argument for other numbers."""
  seconds = integers(name, values)
  for value in () if not len(seconds) else (pc.min(seconds).as_py(), pc.max(seconds).as_py()):
    if abs(value) > _MOST_SECONDS:
      raise ValueError(
        f'{name} must be UTC seconds, got {value}, which is beyond the year 9999; divide'
        ' milliseconds by 1000'
      )
  return seconds


def id_column(device_ids: Sequence[str] | Sequence[int] | np.ndarray) -> pa.Array:
  """Returns device ids as string or int64; ValueError if one breaks the rule for ids."""
  if isinstance(device_ids, (str, bytes)):
    raise ValueError(f'device_ids must be a list of ids, got {messages.quoted(device_ids)}')
  try:
    ids = pa.array(device_ids)
  except (pa.ArrowException, TypeError) as e:
    raise ValueError(f'device_ids must be all text or all whole numbers: {e}') from e
  if not len(ids):
    return ids.cast(pa.string())
  if pa.types.is_integer(ids.type):
    ids = ids.cast(pa.int64())
  elif not pa.types.is_string(ids.type):
    raise ValueError(f'device_ids must be text or whole numbers, got {ids.type}')
  if ids.null_count:
    raise ValueError('device_ids must not be empty')
  if fault := device_ids_lib.first_fault(ids):
    raise ValueError(f'device_ids: at {fault.index}, {fault.reason}')
  return ids


def as_numpy(ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
  """Returns device ids as int64 or as text."""
  if pa.types.is_integer(ids.type):
    return ids.to_numpy()
  return np.array(ids.to_pylist(), dtype=np.str_)


def seconds(table: pa.Table) -> pa.ChunkedArray:
  """Returns the timestamps of a log's rows as UTC seconds, int64."""
  return pc.divide(table.column('timestamp').cast(pa.int64()), 1_000_000)


def of_round(round_index: int, ids: pa.Array, timestamp: int) -> pa.Table:
  """Returns the rows of a round, with one timestamp in UTC seconds."""
  size = len(ids)
  times = pa.array(np.full(size, 1_000_000 * timestamp, np.int64)).cast(digests.TIMESTAMP)
  return pa.table(
    {'round': np.full(size, round_index, np.int64), 'device_id': ids, 'timestamp': times}
  )
