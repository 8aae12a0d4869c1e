"""Counts of a run as a small table, by which a statement is made without the log.

Its rows (kind, num, amount, device_id) are those of the statement in `sql_statement`, of a
warehouse, or of `write`; each is checked against the others.
"""

import collections
import itertools
import os
import re
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_columns, layouts, participation_log, readers, refusals
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.prove.replaying import device_tallies, sql_statement
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages

COLUMNS = ('kind', 'num', 'amount', 'device_id')
SUFFIXES = ('.parquet', '.csv')
_NUMBER = re.compile(r'0|-?[1-9][0-9]{0,18}')
_MOST_BYTES = 1 << 28
_TEXT = dict.fromkeys(('device_id', 'DEVICE_ID', 'kind', 'KIND'), pa.string())
_CSV = pa_csv.ConvertOptions(column_types=_TEXT, strings_can_be_null=True, null_values=[''])
KINDS = (
  'closest', 'exposed', 'missing', 'cohort', 'newcomers', 'separation', 'place', 'bin', 'rounds',
  'devices', 'gram', 'made_for',
)  # fmt: skip
_WITH_ID = 3  # Kinds, the first ones, whose rows have an id.


def check(path: str | os.PathLike[str], run: Any) -> None:
  """Raises ValueError where the counts of a run cannot be written, as `write` does."""
  _path(path)
  if run.units is not None:
    raise ValueError('counts are of devices, and none of units; replay the log itself')
  if run.claim.answers.num_rounds is None:
    raise ValueError(
      'counts are of the rows of a last round; replay the log of a run without an end'
    )
  if set(run.log.layout.missing) < set(id_columns.MISSING):
    raise ValueError(
      'counts are written of a log without marks of missing data; leave out --missing'
    )
  sql_statement.gram(run.claim.strategy, run.log.num_rounds)


def write(path: str | os.PathLike[str], run: Any, tally: device_tallies.Tally) -> None:
  """Writes the counts of a run, durably, only for its owner."""
  strategy, n = run.claim.strategy, run.log.num_rounds
  rows = [
    *_rows(tally),
    ('gram', *sql_statement.checksum(sql_statement.gram(strategy, n)), None),
    ('made_for', sql_statement.made_for(strategy, n), n, None),
  ]
  id_type = pa.int64() if pa.types.is_integer(run.log.id_type) else pa.string()
  kinds = [pa.string(), pa.int64(), pa.int64(), id_type]
  columns = [pa.array(column, kind) for column, kind in zip(zip(*rows), kinds)]
  write_table(path, pa.table(columns, names=COLUMNS))


def _rows(tally: device_tallies.Tally) -> list[tuple[str, int, int, Any]]:
  """Returns the rows of the counts of one run."""
  (counts,) = tally.logs
  num_rows = counts.cohorts.total
  places = counts.participations.counts[::-1].cumsum()[::-1]
  steps = np.diff(counts.participations.values, prepend=0)
  by_place = np.repeat(places, steps).tolist()
  rows: list[tuple[str, int, int, Any]] = []
  if counts.witness:
    device_id, first, second = counts.witness
    rows.append(('closest', first, second, device_id))
  for exposed in tally.most_exposed[:1]:
    times = collections.Counter(exposed.rounds).items()
    rows += [('exposed', *pair, exposed.device_id) for pair in times]
  for kind, counted in (
    ('cohort', counts.cohorts),
    ('newcomers', counts.newcomers),
    ('separation', counts.separations),
    ('bin', tally.exposures),
  ):
    rows += [(kind, *pair, None) for pair in counted.to_dict().items()]
  rows += [('place', place, amount, None) for place, amount in enumerate(by_place, 1)]
  return [*rows, ('rounds', num_rows, num_rows, None), ('devices', num_rows, num_rows, None)]


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
  """Writes a table as Parquet or CSV, durably, only for its owner; ValueError for another name."""
  path, sink = _path(path), pa.BufferOutputStream()
  (pa_csv.write_csv if path.suffix == '.csv' else pq.write_table)(table, sink)
  durable.write_durably(path, sink.getvalue().to_pybytes(), private=True)


def read(
  path: str | os.PathLike[str], claim: run_claim.Claim, num_rounds: int, missing: str | None
) -> tuple[participation_log.Log, device_tallies.Tally]:
  """Returns a log without rows, and counts that stand for them, for a claim."""
  default_layout = layouts.parse(None, missing=missing)
  if not set(default_layout.missing) <= set(id_columns.MISSING):
    raise ValueError(
      f'missing={messages.quoted(missing)} must be of {",".join(id_columns.MISSING)} for counts'
    )
  path = _path(path)
  terms = sql_statement.checksum(sql_statement.gram(claim.strategy, num_rounds))
  source = readers.Source(str(path))
  rows = _read(source)
  origin = sql_statement.made_for(claim.strategy, num_rounds)
  tally = _CountRows(str(path), rows, default_layout.missing).tally(
    claim, num_rounds, terms, origin
  )
  is_whole = type(tally.most_exposed[0].device_id) is int

  def rows_of_log(*unused: Any) -> Any:
    raise refusals.LogError(f'{path}: holds counts, and no rows')

  shard = participation_log.Shard(
    path=str(path),
    metadata={},
    num_rounds=num_rounds,
    id_type=pa.int64() if is_whole else pa.large_string(),
    tables=rows_of_log,
    sha256=source.sha256,
  )
  return participation_log.Log((shard,), num_rounds, layout=default_layout), tally


def _path(path: str | os.PathLike[str]) -> Any:
  local = paths.local(path)
  if local.suffix not in SUFFIXES:
    raise ValueError(f'{messages.quoted(str(local))} must end in {" or ".join(SUFFIXES)}')
  return local


def _read(source: readers.Source) -> list[tuple[Any, ...]]:
  """Returns the rows of a file, with its columns in their order; LogError for another table."""
  if source.size > _MOST_BYTES:
    raise refusals.LogError(f'{source.path}: has more than {_MOST_BYTES} bytes: no counts of a run')
  is_csv = source.path.endswith('.csv')
  try:
    with source.opened() as file:
      table = pa_csv.read_csv(file, convert_options=_CSV) if is_csv else pq.read_table(file)
  except Exception as e:  # Of many kinds, where a file is damaged.
    raise refusals.LogError(f'{source.path}: cannot be read, {e}') from e
  names = [name.lower() for name in table.schema.names]
  refusals.check_names(source.path, names, COLUMNS)
  for name in sorted(set(names) - set(COLUMNS)):
    raise refusals.LogError(f'{source.path}: its column {messages.quoted(name)} is not known')
  columns = {name: table.column(names.index(name)) for name in COLUMNS}
  try:
    for name in COLUMNS[1:3]:
      if columns[name].null_count:
        raise ValueError(f'{name} is missing in a row: a round is missing, or no device took part')
      if pa.types.is_decimal(columns[name].type):
        columns[name] = columns[name].cast(pa.int64())
      columns[name] = id_columns.whole_numbers(columns[name].combine_chunks(), name)
    ids = _ids(columns['device_id'], is_csv)
  except (ValueError, pa.ArrowException) as e:
    raise refusals.LogError(f'{source.path}: {e}') from e
  return list(zip(*(columns[name].to_pylist() for name in COLUMNS[:3]), ids))


def _ids(column: pa.ChunkedArray, is_csv: bool) -> list[str | int | None]:
  """Returns the ids of a column; ValueError for one that no log takes."""
  ids = id_columns.column(column.drop_null(), 'device_id', ()).to_pylist()
  if is_csv and all(_NUMBER.fullmatch(text) and abs(int(text)) < 2**63 for text in ids):
    ids = list(map(int, ids))
  remaining_ids = iter(ids)
  return [None if none else next(remaining_ids) for none in column.is_null().to_pylist()]


class _CountRows:
  """Rows (kind, num, amount, device_id) of counts.

  Raises:
    LogError: for an unknown kind, an id too many or too few, and one that is a mark.
  """

  def __init__(
    self, path: str, rows: Sequence[tuple[str, int, int, str | int | None]], missing: Sequence[str]
  ):
    self._path = path
    self._rows: dict[str, list[tuple[int, int, str | int | None]]] = {kind: [] for kind in KINDS}
    first = sorted(rows, key=lambda row: row[0] != 'missing')
    for kind, num, amount, device_id in first:
      self._need(kind in self._rows, f'has rows of an unknown kind, {messages.quoted(kind)}')
      device_id = device_id or '' if kind == 'missing' else device_id  # CSV has no empty text.
      has_id = kind in KINDS[:_WITH_ID]
      self._need((device_id is not None) == has_id, f'{kind} has a device_id too many, or none')
      if kind == 'missing' and device_id in ('', *missing):
        hint = refusals.MARK_HINT if device_id else ''
        self._need(
          False,
          f'{num} rows have the device_id {messages.quoted(device_id)}, {id_columns.MARK}{hint}',
        )
      self._rows[kind].append((num, amount, device_id))

  def _need(self, holds: bool, why: str) -> None:
    if not holds:
      raise refusals.LogError(f'{self._path}: {why}')

  def _one(self, kind: str) -> tuple[int, int]:
    self._need(len(self._rows[kind]) == 1, f'must have one row of kind {kind}; run the whole text')
    return self._rows[kind][0][:2]

  def _counts(self, kind: str, total: int, least: int, below: int) -> participation_counts.Counts:
    """Returns the counts of a kind, of numbers within a range and with a total that is known."""
    pairs = sorted(row[:2] for row in self._rows[kind])
    values, amounts = np.array(pairs, np.int64).reshape(-1, 2).T
    for number in values[(values < least) | (values >= below)][:1].tolist():
      self._need(False, f'has a {kind} of {number}, which must be {least} to {below - 1}')
    self._need(bool((np.diff(values) > 0).all()), f'has a {kind} twice')
    sums = (amounts > 0).all() and int(amounts.sum()) == total
    self._need(bool(sums), f'its counts of kind {kind} do not add up to {total}')
    return participation_counts.Counts(values, amounts)

  def tally(
    self, claim: run_claim.Claim, num_rounds: int, terms: tuple[int, int], origin: int
  ) -> device_tallies.Tally:
    """Returns the tally of the rows; LogError where one does not fit another."""
    is_of_run = self._one('made_for') == (origin, num_rounds)
    self._need(is_of_run, 'made for another strategy, num_rounds or text')
    gram_origin = self._one('gram')
    close = abs(gram_origin[1] - terms[1]) <= 1 + sql_statement.TOLERANCE * terms[1]
    self._need(gram_origin[0] == terms[0] and close, 'gram was not loaded as it was written')
    num_rows, with_round = self._one('rounds')
    self._need(num_rows > 0, 'counts no rows, and does not say how many rounds there were')
    self._need(with_round == num_rows, f'{num_rows - with_round} rows have no round')
    with_id = self._one('devices')[1]
    self._need(with_id == num_rows, f'{num_rows - with_id} rows have no device_id')
    cohorts = self._counts('cohort', num_rows, 0, num_rounds)
    places = self._counts('place', num_rows, 1, num_rounds + 1)
    num_devices = int(places.counts[0])
    steps = places.values.tolist() == [*range(1, places.values.size + 1)]
    falls = bool((np.diff(places.counts) <= 0).all())
    self._need(steps and falls, 'its counts of kind place do not fit')
    zero = any(row[0] == 0 for row in self._rows['separation'])
    self._need(not zero, 'a device is twice in a round')
    separations = self._counts('separation', num_rows - num_devices, 1, num_rounds)
    newcomers = self._counts('newcomers', num_devices, 0, num_rounds)
    bins = self._counts('bin', num_devices, 0, 1 << 20)
    ended = -np.diff(places.counts, append=0)
    some = np.flatnonzero(ended)
    exposed, exact = self._exposed(claim, num_rounds, int(bins.values[-1]))
    self._need(len(exposed.rounds) <= places.values.size, 'its most exposed device does not fit')
    devices = participation_counts.DeviceCounts(
      cohorts,
      separations,
      participation_counts.Counts(places.values[some], ended[some]),
      self._witness(separations, num_rounds),
      newcomers,
    )
    most_rounds = places.values.size
    return device_tallies.Tally((devices,), num_devices, bins, (exposed,), exact, most_rounds)

  def _witness(
    self, separations: participation_counts.Counts, num_rounds: int
  ) -> participation_counts.Witness | None:
    if not separations.values.size:
      self._need(not self._rows['closest'], 'has a closest pair, and no separation')
      return None
    first, second = self._one('closest')
    fits = 0 <= first < num_rounds > second and second - first == separations.values[0]
    self._need(bool(fits), 'its closest pair is not as far apart as its least separation')
    device_id = cast('str | int', self._rows['closest'][0][2])  # As `closest` has a device.
    return participation_counts.Witness(device_id, first, second)

  def _exposed(
    self, claim: run_claim.Claim, num_rounds: int, top: int
  ) -> tuple[device_tallies.Exposed, bool]:
    """Returns the most exposed device, and whether its square is exact."""
    rounds: dict[Any, list[int]] = {}
    for t, times, device_id in self._rows['exposed']:
      self._need(0 <= t < num_rounds, f'has a round of {t}, beyond the {num_rounds} of the run')
      fits = times == 1 and t not in rounds.setdefault(device_id, [])
      self._need(fits, 'a device is twice in a round')
      rounds[device_id].append(t)
    self._need(bool(rounds), 'names no most exposed device')
    patterns: Sequence[list[int]] = [sorted(own) for own in rounds.values()]
    exposure = device_tallies.Exposure([claim], [num_rounds])
    joined = np.fromiter(itertools.chain.from_iterable(patterns), np.int64)
    squares, exact = exposure.squares(joined, np.array([len(own) for own in patterns]))
    ranked = zip(squares.tolist(), rounds, map(tuple, patterns))
    exposed = min(itertools.starmap(device_tallies.Exposed, ranked), key=lambda e: e.order)
    ends = exposed.square * np.array([1.0 - sql_statement.TOLERANCE, 1.0 + sql_statement.TOLERANCE])
    low, high = device_tallies.bins_of(ends).tolist()
    fits = low <= top <= high
    self._need(fits, 'its largest square is not that of its most exposed device')
    return exposed, exact
