"""Grouping of log rows by device with Apache Spark.

It is for logs too large for one machine. Executors read the files with the usual checks, Spark
groups the rows of each device, and executors count them; the results are small. Files must be
at the same paths on all executors.
"""

import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from fl_dpftrl.accounting import run_noise
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import exposure as exposure_lib
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import tally as tally_lib

_BATCH_ROWS = 1 << 18
# Lines of an executor's traceback.
_ERROR = re.compile(r'^((?:\w+\.)*\w+(?:Error|Exception): .*)$', re.MULTILINE)
_REFUSED = re.compile(r'^(?:\w+\.)*LogError: (.*)$', re.MULTILINE)


def count(
  runs: Sequence[runs_lib.Run],
  *,
  num_exposed: int = 1,
  progress: Callable[[str], None] = lambda text: None,
) -> tally_lib.Tally:
  """Counts the logs of runs in the active Spark session, or in a new one.

  Args:
    runs: runs of one population.
    num_exposed: how many of the most exposed devices to name.
    progress: called with a line about the progress.

  Raises:
    LogError: if a row is at fault.
    tally.DeviceTwice: if a device is twice in a round.
    ValueError: if Spark is not installed or fails.
  """
  try:
    from pyspark import errors, sql
  except ImportError as e:
    raise ValueError(
      "the engine spark needs the packages pyspark and pandas: pip install 'fl_dpftrl[spark]'"
    ) from e
  noises = [run.noise for run in runs]
  declared = runs_lib.declared_schemas(run.declared_schema for run in runs)
  firsts = (0, *exposure_lib.ends(noises).tolist())
  pieces = [
    (pickle.dumps((s.path, first, run.log.num_rounds, run.log.layout, s.metadata, s.digest)),)
    for first, run in zip(firsts, runs)
    for s in run.log.shards
  ]
  id_type = 'long' if pa.types.is_integer(runs[0].log.id_type) else 'string'
  progress(f'{len(pieces)} files given to Spark')
  try:
    # Executors on this machine would take another Python than this one.
    os.environ.setdefault('PYSPARK_PYTHON', sys.executable)
    session = (
      sql.SparkSession.builder.appName('fl-dpftrl')
      .config('spark.log.level', 'OFF')  # Errors are told of, in a line.
      .config('spark.ui.enabled', 'false')
      .getOrCreate()
    )
    rows = (
      session.createDataFrame(pieces, 'piece binary')
      .repartition(len(pieces))
      .mapInArrow(_read, f'round long, device_id {id_type}')
      .repartition('device_id')
      .sortWithinPartitions('device_id', 'round')
      .mapInArrow(_counter(noises, num_exposed, declared), 'tally binary')
      .collect()
    )
  except errors.PySparkException as e:
    refused = _REFUSED.findall(str(e))
    if refused:
      raise refusals.LogError(refused[-1]) from None
    reasons = _ERROR.findall(str(e)) or [' '.join(str(e).split())]
    raise ValueError(f'Spark failed: {reasons[-1]}') from e
  results = [pickle.loads(row.tally) for row in rows]
  twice = [result for result in results if isinstance(result, tally_lib.DeviceTwice)]
  if twice:
    raise min(twice, key=lambda e: (e.device_id, e.round_index))
  total = tally_lib.empty(len(runs))
  for part in results:
    total = total.plus(part, num_exposed)
  return total


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
  """Yields the rows of the files whose paths come in."""
  for batch in batches:
    for piece in batch.column(0).to_pylist():
      path, first, num_rounds, layout, *known = pickle.loads(piece)
      shard = log_lib.open_shard(path, layout=layout)
      if [shard.metadata, shard.digest] != known:
        raise refusals.LogError(f'{path}: is another file than when it was opened; replay it again')
      for table in shard.tables(num_rounds):
        table = runs_lib.numbered(table, first)
        if not pa.types.is_integer(table.schema.field('device_id').type):
          ids = table.column('device_id').cast(pa.string())
          table = table.set_column(1, 'device_id', ids)
        yield from table.to_batches()


def _counter(
  noises: Sequence[run_noise.RunNoise], num_exposed: int, declared: Sequence[schemas.MinSep]
):
  def counted(batches):
    exposure = exposure_lib.Exposure(noises)
    try:
      tally = tally_lib.count(_together(batches), exposure, num_exposed, declared=declared)
    except tally_lib.DeviceTwice as e:
      tally = e
    yield pa.RecordBatch.from_pydict({'tally': [pickle.dumps(tally)]})

  return counted


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
  """Yields the same rows in fewer, larger tables."""
  kept, rows = [], 0
  for batch in batches:
    kept.append(batch)
    rows += batch.num_rows
    if rows >= _BATCH_ROWS:
      yield pa.Table.from_batches(kept).combine_chunks()
      kept, rows = [], 0
  if kept:
    yield pa.Table.from_batches(kept).combine_chunks()
