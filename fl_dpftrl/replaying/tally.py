"""Participation counts, made in one pass over rows sorted by device.

Tallies of different devices add up. So a log may be counted in parts, on one machine or on
many, with the same result.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.participation import counts, schemas
from fl_dpftrl.replaying import exposure as exposure_lib
from fl_dpftrl.text import messages

_BINS_PER_OCTAVE = 256
_LOWEST_OCTAVE = -64


class Exposed(NamedTuple):
  """A device with the square of its sensitivity over all runs."""

  square: float
  device_id: str | int

  @property
  def order(self) -> tuple:
    """Sort key: the largest square first, then by device."""
    return (-self.square, self.device_id)


class DeviceTwice(ValueError):
  """A device occurs twice in a round of one of the logs."""

  def __init__(self, device_id: str | int, log_index: int, round_index: int):
    super().__init__(device_id, log_index, round_index)
    self.device_id, self.log_index, self.round_index = device_id, log_index, round_index

  def __str__(self) -> str:
    return f'device {messages.quoted(self.device_id)} is twice in round {self.round_index}'


class OutOfOrder(ValueError):
  """Rows are not sorted by device."""

  def __str__(self) -> str:
    return (
      'rows came out of the order of their devices, so nothing can be counted: DuckDB, which'
      ' sorts them, does not do as it should; try another release of it'
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Violations:
  """Counts of violations of declared schemas, which add up over different devices.

  Attributes:
    num_devices: devices that did not keep to a schema in at least one run.
    rounds: number of participations that violate one, by round, numbered across runs: those that
      are too soon after the one before, or one too many in its run.
    square: largest squared sensitivity of these devices, over all runs.
  """

  num_devices: int = 0
  rounds: counts.Counts = counts.Counts()
  square: float = 0.0

  def __add__(self, other: 'Violations') -> 'Violations':
    return Violations(
      self.num_devices + other.num_devices,
      self.rounds + other.rounds,
      max(self.square, other.square),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Tally:
  """Counts of several logs of one population.

  Attributes:
    logs: counts of each log.
    num_devices: devices in at least one of the logs.
    exposures: number of devices, by squared sensitivity, in bins whose upper ends
      `upper_squares` gives.
    most_exposed: a few devices, the most exposed first.
    exact: whether all squares are exact; otherwise they are upper bounds.
    most_rounds: most participations of a device in all logs together.
    violations: devices that did not keep to the declared schemas.
  """

  logs: tuple[counts.DeviceCounts, ...]
  num_devices: int = 0
  exposures: counts.Counts = counts.Counts()
  most_exposed: tuple[Exposed, ...] = ()
  exact: bool = True
  most_rounds: int = 0
  violations: Violations = Violations()

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
      self.violations + other.violations,
    )


def upper_squares(bins: np.ndarray) -> np.ndarray:
  """Returns the largest square of each bin, less than 0.28 % above the others in it."""
  return np.exp2(bins / _BINS_PER_OCTAVE + _LOWEST_OCTAVE)


def empty(num_logs: int) -> Tally:
  """Returns the tally of no devices."""
  return Tally((counts.DeviceCounts(),) * num_logs)


def count(
  tables: Iterable[pa.Table],
  exposure: exposure_lib.Exposure,
  num_exposed: int = 1,
  threads: int = 1,
  declared: Sequence[schemas.MinSep] = (),
) -> Tally:
  """Counts rows.

  Args:
    tables: columns `device_id` and `round`, with rounds numbered across runs; sorted, with all
      rows of a device together.
    exposure: exposure of the runs.
    num_exposed: how many of the most exposed devices to name.
    threads: threads that count while this one fetches the tables; the result is the same for
      any number.
    declared: schema that was declared for each log; none to count no violations.

  Raises:
    DeviceTwice: if a device is twice in a round.
    OutOfOrder: if the tables are not sorted.
  """
  count_part = lambda table: _count(table, exposure, num_exposed, declared)
  tables = _whole_devices(_checked(tables, exposure))
  parts = _in_threads(count_part, tables, threads)
  add = lambda a, b: a.plus(b, num_exposed)
  return functools.reduce(add, parts, empty(len(exposure.ends)))


def _in_threads(
  function: Callable[[pa.Table], Tally], tables: Iterable[pa.Table], threads: int
) -> Iterator[Tally]:
  """Yields the function's results in order, with few tables in memory."""
  with futures.ThreadPoolExecutor(threads) as pool:
    pending: collections.deque[futures.Future[Tally]] = collections.deque()
    for table in tables:
      pending.append(pool.submit(function, table))
      if len(pending) > threads:
        yield pending.popleft().result()
    while pending:
      yield pending.popleft().result()


def _whole_devices(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
  """Yields the same rows in tables that end with the last row of a device."""
  kept: list[pa.Table] = []
  for table in tables:
    starts = np.flatnonzero(_changes(table.column('device_id')))
    if starts.size:
      cut = int(starts[-1]) + 1
      yield pa.concat_tables([*kept, table.slice(0, cut)])
      kept = [table.slice(cut)]
    elif kept and kept[-1].column('device_id')[-1] != table.column('device_id')[0]:
      yield pa.concat_tables(kept)
      kept = [table]
    else:
      kept.append(table)
  if kept:
    yield pa.concat_tables(kept)


def _checked(tables: Iterable[pa.Table], exposure: exposure_lib.Exposure) -> Iterator[pa.Table]:
  """Yields the non-empty tables after checking that their rows ascend.

  If the rows of a device came in two parts, its separations across the parts would go unseen. A
  device could also be a million times in one round, which would take too long for anything that
  works on the rounds of a device.

  Raises:
    OutOfOrder: if a row sorts before one above it.
    DeviceTwice: if two rows are the same.
  """
  before = None
  for table in tables:
    if not table.num_rows:
      continue
    _check_order(table if before is None else pa.concat_tables([before, table]), exposure)
    before = table.slice(table.num_rows - 1)
    yield table


def _check_order(table: pa.Table, exposure: exposure_lib.Exposure) -> None:
  ids = _one_chunk(table.column('device_id'))
  falls = pc.greater(ids.slice(0, len(ids) - 1), ids.slice(1))
  rounds = table.column('round').to_numpy()
  apart = np.diff(rounds)
  same = ~_changes(table.column('device_id'))
  if pc.any(falls).as_py() or (same & (apart < 0)).any():
    raise OutOfOrder()
  twice = same & (apart == 0)
  if twice.any():
    row = int(twice.argmax())
    log_index = int(np.searchsorted(exposure.ends, rounds[row], side='right'))
    first = int(exposure.ends[log_index - 1]) if log_index else 0
    raise DeviceTwice(ids[row].as_py(), log_index, int(rounds[row]) - first)


def _changes(ids: pa.ChunkedArray) -> np.ndarray:
  """Returns for each row but the last whether the next row's device differs."""
  if pa.types.is_integer(ids.type):
    return np.diff(ids.to_numpy()) != 0
  chunk = _one_chunk(ids)
  return pc.not_equal(chunk.slice(1), chunk.slice(0, len(chunk) - 1)).to_numpy(zero_copy_only=False)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
  joined = column.combine_chunks()
  return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _count(
  table: pa.Table,
  exposure: exposure_lib.Exposure,
  num_exposed: int,
  declared: Sequence[schemas.MinSep],
) -> Tally:
  ids = table.column('device_id')
  rounds = table.column('round').to_numpy()
  changes = _changes(ids)
  starts = np.append(0, np.flatnonzero(changes) + 1)
  sizes = np.diff(starts, append=rounds.size)
  squares, exact = exposure.squares(rounds, sizes)
  worst = _largest(squares, num_exposed)
  bins = np.ceil((np.log2(squares) - _LOWEST_OCTAVE) * _BINS_PER_OCTAVE)
  owners = np.append(0, np.cumsum(changes))
  logs = np.searchsorted(exposure.ends, rounds, side='right')
  tallies = []
  for index, first in enumerate((0, *exposure.ends[:-1].tolist())):
    rows = np.flatnonzero(logs == index)
    device_id = lambda row, rows=rows: ids[int(rows[row])].as_py()
    tallies.append(counts.DeviceCounts.of_rows(rounds[rows] - first, owners[rows], device_id))
  return Tally(
    tuple(tallies),
    starts.size,
    counts.Counts.of(np.maximum(bins, 0.0).astype(np.int64)),
    tuple(Exposed(float(squares[i]), ids[int(starts[i])].as_py()) for i in worst),
    exact,
    int(sizes.max()),
    _count_violations(rounds, owners, logs, squares, declared) if declared else Violations(),
  )


def _largest(values: np.ndarray, most: int) -> np.ndarray:
  """Returns indices of the largest values, descending; ties by first index."""
  if values.size > most:
    least = np.partition(values, values.size - most)[values.size - most]
    places = np.flatnonzero(values >= least)
  else:
    places = np.arange(values.size)
  return places[np.argsort(-values[places], kind='stable')][:most]


def _count_violations(
  rounds: np.ndarray,
  owners: np.ndarray,
  logs: np.ndarray,
  squares: np.ndarray,
  declared: Sequence[schemas.MinSep],
) -> Violations:
  """Counts the violations of some devices.

  Args:
    rounds: numbered across runs; ascending, device after device.
    owners: index of the device of each round.
    logs: index of the run of each round.
    squares: squared sensitivity of each device.
    declared: schema of each run.
  """
  apart = np.array([schema.min_sep for schema in declared])[logs]
  most = np.array([schema.participations for schema in declared])[logs]
  goes_on = np.append(False, (np.diff(owners) == 0) & (np.diff(logs) == 0))
  too_soon = goes_on & (np.append(0, np.diff(rounds)) < apart)
  places = np.arange(rounds.size)
  starts = np.maximum.accumulate(np.where(goes_on, 0, places))
  wrong = too_soon | (places - starts >= most)
  who = np.unique(owners[wrong])
  if not who.size:
    return Violations()
  return Violations(who.size, counts.Counts.of(rounds[wrong]), float(squares[who].max()))
