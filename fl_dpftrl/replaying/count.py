"""Participation counts: an engine, DuckDB, sorts the rows of logs by device, and they are counted.

The engine sorts rows that do not fit into memory on disk. Its order is checked row by row, as a
device whose rows came in two parts would lose separations. Tallies of different devices add up, so
parts of the sorted rows are counted apart.
"""

import collections
import contextlib
import dataclasses
import os
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import refusals
from fl_dpftrl.participation import counts, schemas
from fl_dpftrl.replaying import exposure as exposure_lib
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.text import messages

MEMORY = 4 << 30
"""Bytes that sorting may use; beyond that it goes on on disk."""

_BINS_PER_OCTAVE = 256
_LOWEST_OCTAVE = -64
_BATCH_ROWS = 1 << 20
_SORTED = 'SELECT device_id, round FROM log ORDER BY device_id, round'


class Exposed(NamedTuple):
  """A device with the square of its sensitivity over all runs, and its rounds."""

  square: float
  device_id: str | int
  rounds: tuple[int, ...]

  @property
  def order(self) -> tuple:
    """Sort key: the largest square first, then by device."""
    return (-self.square, self.device_id)


@dataclasses.dataclass(frozen=True, eq=False)
class Tally:
  """Counts of several logs of one population.

  Attributes:
    exposures: number of devices, by squared sensitivity, in bins whose upper ends
      `upper_squares` gives.
    most_exposed: a few devices, the most exposed first.
    exact: whether all squares are exact; otherwise they are upper bounds.
    most_rounds: most participations of a device in all logs together.
    violators: devices that did not keep to a declared schema in at least one run; None if they
      were not counted.
    wrong_rounds: number of participations that violate one, by round, numbered across runs: those
      that are too soon after the one before, or one too many in its run.
    wrong_square: largest squared sensitivity of the violators, over all runs.
  """

  logs: tuple[counts.DeviceCounts, ...]
  num_devices: int = 0
  exposures: counts.Counts = counts.Counts()
  most_exposed: tuple[Exposed, ...] = ()
  exact: bool = True
  most_rounds: int = 0
  violators: int | None = 0
  wrong_rounds: counts.Counts = counts.Counts()
  wrong_square: float = 0.0

  def plus(self, other: 'Tally', num_exposed: int) -> 'Tally':
    """Adds two tallies of different devices, keeping num_exposed devices."""
    exposed = sorted((*self.most_exposed, *other.most_exposed), key=lambda e: e.order)
    return Tally(
      tuple(a + b for a, b in zip(self.logs, other.logs, strict=True)),
      self.num_devices + other.num_devices,
      self.exposures + other.exposures,
      tuple(exposed[:num_exposed]),
      self.exact and other.exact,
      max(self.most_rounds, other.most_rounds),
      (self.violators or 0) + (other.violators or 0),
      self.wrong_rounds + other.wrong_rounds,
      max(self.wrong_square, other.wrong_square),
    )


def bins_of(squares: np.ndarray) -> np.ndarray:
  """Returns the bin of each square, at least 0."""
  bins = np.ceil((np.log2(squares) - _LOWEST_OCTAVE) * _BINS_PER_OCTAVE)
  return np.maximum(bins, 0.0).astype(np.int64)


def upper_squares(bins: np.ndarray) -> np.ndarray:
  """Returns the largest square of each bin, less than 0.28 % above the others in it."""
  return np.exp2(bins / _BINS_PER_OCTAVE + _LOWEST_OCTAVE)


def count(
  runs: Sequence[runs_lib.Run],
  *,
  num_exposed: int = 1,
  progress: Callable[[str], None] = lambda text: None,
  memory: int = MEMORY,
) -> Tally:
  """Counts the logs of runs, sorted within `memory` bytes and on disk; LogError for a bad row."""
  claims = [run.claim for run in runs]
  exposure = exposure_lib.Exposure(claims, [run.log.num_rounds for run in runs])
  declared = runs_lib.declared_schemas(claims)
  total, threads = Tally((counts.DeviceCounts(),) * len(runs)), _threads()
  parts: collections.deque[futures.Future[Tally]] = collections.deque()
  with (
    contextlib.closing(_sorted_rows(runs, progress, memory)) as batches,
    futures.ThreadPoolExecutor(threads) as pool,
  ):
    for table in _whole_devices(batches, runs, progress):
      parts.append(pool.submit(_count, table, exposure, num_exposed, declared))
      if len(parts) > threads:
        total = total.plus(parts.popleft().result(), num_exposed)
    for part in parts:
      total = total.plus(part.result(), num_exposed)
  return total


def _threads() -> int:
  return len(os.sched_getaffinity(0))


def _sorted_rows(
  runs: Sequence[runs_lib.Run], progress: Callable[[str], None], memory: int
) -> Generator[pa.RecordBatch, None, None]:
  """Yields rows of all runs by device and round, as the engine sorts them."""
  errors: list[refusals.LogError] = []
  schema = pa.schema([('round', pa.int64()), ('device_id', runs_lib.id_type(runs))])
  with (
    tempfile.TemporaryDirectory() as folder,
    duckdb.connect(
      ':memory:',
      config={'threads': _threads(), 'memory_limit': f'{memory}B', 'temp_directory': folder},
    ) as engine,
  ):
    rows = _rows(runs, progress, errors)
    engine.register('log', pa.RecordBatchReader.from_batches(schema, rows))
    try:
      with warnings.catch_warnings():
        # DuckDB 2 tells of a copy that its other interface saves.
        warnings.simplefilter('ignore', UserWarning)
        batches: Any = engine.execute(_SORTED).to_arrow_reader(_BATCH_ROWS)
      yield from batches
    except (duckdb.Error, pa.ArrowException, OSError):
      if errors:  # The engine does not pass it on.
        raise errors[0] from None
      raise


def _rows(
  runs: Sequence[runs_lib.Run], progress: Callable[[str], None], errors: list[refusals.LogError]
) -> Iterator[pa.RecordBatch]:
  """Yields rows of all runs, with rounds numbered across them; keeps the error that ends them."""
  first = rows = 0
  try:
    for run in runs:
      for table in run.log.tables():
        yield from runs_lib.numbered(table, first).to_batches()
        rows += table.num_rows
        progress(f'{rows:,} rows read')
      first += run.log.num_rounds
  except refusals.LogError as error:
    errors.append(error)
    raise


def _whole_devices(
  batches: Iterator[pa.RecordBatch], runs: Sequence[runs_lib.Run], progress: Callable[[str], None]
) -> Iterator[pa.Table]:
  """Yields rows, with is_new where a device begins, in tables that end with its last row."""
  kept: list[pa.Table] = []
  rows, last = 0, None
  for batch in batches:
    table = pa.Table.from_batches([batch])
    is_new = np.append([True] * (last is None), _is_new(runs, table, last))
    last = table.slice(table.num_rows - 1)
    table = table.append_column('is_new', pa.array(is_new, pa.bool_()))
    starts = np.flatnonzero(is_new)
    cut = int(starts[-1]) if starts.size else table.num_rows
    kept.append(table.slice(0, cut))
    if starts.size:
      if sum(part.num_rows for part in kept):
        yield pa.concat_tables(kept)
      kept = [table.slice(cut)]
    rows += table.num_rows
    progress(f'{rows:,} rows counted')
  if kept:
    yield pa.concat_tables(kept)


def _is_new(runs: Sequence[runs_lib.Run], table: pa.Table, last: pa.Table | None) -> np.ndarray:
  """Returns whether rows have another device than the row before; refuses a row out of order."""
  rows = table if last is None else pa.concat_tables([last, table])
  before, after = rows.slice(0, rows.num_rows - 1), rows.slice(1)
  same, later = (
    compare(after.column('device_id'), before.column('device_id')).fill_null(False).to_numpy()
    for compare in (pc.equal, pc.greater)
  )
  steps = after.column('round').to_numpy() - before.column('round').to_numpy()
  wrong = np.flatnonzero(~(later | (same & (steps > 0))))
  if wrong.size:
    at = int(wrong[0])
    device_id, round_index = (after.column(name)[at].as_py() for name in ('device_id', 'round'))
    raise _fault(runs, device_id, round_index, twice=bool(same[at] and steps[at] == 0))
  return ~same


def _fault(
  runs: Sequence[runs_lib.Run], device_id: str | int, round_index: int, *, twice: bool
) -> ValueError:
  """Returns the error for a row that does not follow on the one before."""
  if not twice:
    return ValueError(
      'rows came out of the order of their devices, so nothing can be counted: DuckDB, which'
      ' sorts them, does not do as it should; try another release of it'
    )
  logs = iter(runs)
  while round_index >= (log := next(logs).log).num_rounds:
    round_index -= log.num_rounds
  place = log.place(round_index, device_id)
  device = messages.quoted(device_id)
  return refusals.LogError(f'{place}: device {device} is twice in round {round_index}')


def _count(
  table: pa.Table,
  exposure: exposure_lib.Exposure,
  num_exposed: int,
  declared: Sequence[schemas.MinSep],
) -> Tally:
  """Counts the rows of whole devices."""
  ids, rounds = table.column('device_id'), table.column('round').to_numpy()
  changes = table.column('is_new').to_numpy()
  starts, owners = np.flatnonzero(changes), np.cumsum(changes) - 1
  sizes = np.diff(starts, append=rounds.size)
  squares, exact = exposure.squares(rounds, sizes)
  logs = np.searchsorted(exposure.ends, rounds, side='right')
  tallies = []
  for index, first in enumerate((0, *exposure.ends[:-1].tolist())):
    rows = np.flatnonzero(logs == index)
    device_id = lambda row, rows=rows: ids[int(rows[row])].as_py()
    tallies.append(counts.DeviceCounts.of_rows(rounds[rows] - first, owners[rows], device_id))
  exposed = [
    Exposed(
      float(squares[i]),
      ids[int(starts[i])].as_py(),
      tuple(rounds[starts[i] : starts[i] + sizes[i]].tolist()),
    )
    for i in _largest(squares, num_exposed)
  ]
  return Tally(
    tuple(tallies),
    starts.size,
    counts.Counts.of(bins_of(squares)),
    tuple(exposed),
    exact,
    int(sizes.max()),
    *_violations(rounds, owners, logs, squares, declared),
  )


def _largest(values: np.ndarray, most: int) -> np.ndarray:
  """Returns indices of the largest values, descending; ties by first index."""
  if values.size > most:
    least = np.partition(values, values.size - most)[values.size - most]
    places = np.flatnonzero(values >= least)
  else:
    places = np.arange(values.size)
  return places[np.argsort(-values[places], kind='stable')][:most]


def _violations(
  rounds: np.ndarray,
  owners: np.ndarray,
  logs: np.ndarray,
  squares: np.ndarray,
  declared: Sequence[schemas.MinSep],
) -> tuple[int, counts.Counts, float]:
  """Counts the violators, the participations that violate, and the largest square of a violator."""
  if not declared:
    return 0, counts.Counts(), 0.0
  apart = np.array([schema.min_sep for schema in declared])[logs]
  most = np.array([schema.participations for schema in declared])[logs]
  goes_on = np.append(False, (np.diff(owners) == 0) & (np.diff(logs) == 0))
  too_soon = goes_on & (np.append(0, np.diff(rounds)) < apart)
  places = np.arange(rounds.size)
  starts = np.maximum.accumulate(np.where(goes_on, 0, places))
  wrong = too_soon | (places - starts >= most)
  who = np.unique(owners[wrong])
  return who.size, counts.Counts.of(rounds[wrong]), float(squares[who].max(initial=0.0))
