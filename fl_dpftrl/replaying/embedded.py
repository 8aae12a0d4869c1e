"""Sorting of logs by device with an embedded engine, DuckDB.

The engine sorts rows that do not fit into memory on disk.
"""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence

import duckdb
import pyarrow as pa

from fl_dpftrl.logs import refusals
from fl_dpftrl.replaying import exposure as exposure_lib
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import tally as tally_lib

MEMORY = 4 << 30
"""Bytes that sorting may use; beyond that it goes on on disk."""

_BY_DEVICE = 'device_id, round'
_BATCH_ROWS = 1 << 20


def count(
  runs: Sequence[runs_lib.Run],
  *,
  num_exposed: int = 1,
  progress: Callable[[str], None] = lambda text: None,
  memory: int = MEMORY,
) -> tally_lib.Tally:
  """Counts the logs of runs.

  Args:
    runs: runs of one population.
    num_exposed: how many of the most exposed devices to name.
    progress: called often with a line about the progress.
    memory: bytes that sorting may use; the rest is on disk meanwhile.

  Raises:
    LogError: if a row is at fault.
    tally.DeviceTwice: if a device is twice in a round.
  """
  with ordered(Rows(runs, progress), _BY_DEVICE, memory=memory) as batches:
    num_rounds = [run.log.num_rounds for run in runs]
    exposure = exposure_lib.Exposure([run.claim for run in runs], num_rounds)
    return tally_lib.count(
      _counted(batches, progress),
      exposure,
      num_exposed,
      _threads(),
      runs_lib.declared_schemas(run.claim for run in runs),
    )


@contextlib.contextmanager
def ordered(rows: 'Rows', by: str, *, memory: int = MEMORY) -> Iterator[pa.RecordBatchReader]:
  """Yields rows of logs in batches, sorted by both columns.

  Args:
    rows: the rows.
    by: both columns in the order in which they sort, as in 'device_id, round'. Batches have the
      columns in this order, too.
    memory: bytes that sorting may use; the rest is on disk meanwhile.

  Raises:
    LogError: if a row is at fault.
  """
  with (
    tempfile.TemporaryDirectory() as folder,
    duckdb.connect(
      ':memory:',
      config={'threads': _threads(), 'memory_limit': f'{memory}B', 'temp_directory': folder},
    ) as engine,
  ):
    engine.register('log', rows.reader())
    try:
      with warnings.catch_warnings():
        # DuckDB 2 tells of a copy that its other interface saves.
        warnings.simplefilter('ignore', UserWarning)
        result = engine.execute(f'SELECT {by} FROM log ORDER BY {by}')
        batches = result.to_arrow_reader(_BATCH_ROWS)
      yield batches
    except (duckdb.Error, pa.ArrowException, OSError):
      if rows.error is not None:
        raise rows.error from None
      raise


def _threads() -> int:
  return len(os.sched_getaffinity(0))


def _counted(ordered: pa.RecordBatchReader, progress: Callable[[str], None]) -> Iterator[pa.Table]:
  rows = 0
  for batch in ordered:
    yield pa.Table.from_batches([batch])
    rows += batch.num_rows
    progress(f'{rows:,} rows counted')


class Rows:
  """All rows of the logs of runs, with rounds numbered across the runs.

  Attributes:
    error: the LogError that ended the rows, if one did. Engines do not pass the original
      exception on.
  """

  def __init__(self, runs: Sequence[runs_lib.Run], progress: Callable[[str], None]):
    self._progress = progress
    self._logs, self._id_type = [run.log for run in runs], runs_lib.id_type(runs)
    self.error: refusals.LogError | None = None

  def reader(self) -> pa.RecordBatchReader:
    schema = pa.schema([('round', pa.int64()), ('device_id', self._id_type)])
    return pa.RecordBatchReader.from_batches(schema, self._batches())

  def _batches(self) -> Iterator[pa.RecordBatch]:
    first = rows = 0
    try:
      for log in self._logs:
        for table in log.tables():
          yield from runs_lib.numbered(table, first).to_batches()
          rows += table.num_rows
          self._progress(f'{rows:,} rows read')
        first += log.num_rounds
    except refusals.LogError as e:
      self.error = e
      raise
