"""Counts of a run as a small table, by which a statement is made without the log.

Its rows (kind, num, amount, device_id) are those of the statement in `sql_statement`, of a
warehouse, or of `write`. By unit there is a column unit_id too, with the same rows once more of
units, whose kinds begin with `unit_`, and rows of their table.
"""

import collections
import dataclasses
import os
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from fl_dpftrl import claims
from fl_dpftrl.files import durable, paths
from fl_dpftrl.logs import id_columns, layouts, participation_log, readers, refusals
from fl_dpftrl.replaying import count_rows, device_tallies, sql_statement
from fl_dpftrl.text import messages

COLUMNS = ('kind', 'num', 'amount', 'device_id')
_UNIT_ID, _OF_UNITS, _OF_TABLE = 'unit_id', 'unit_', 'table_'
SUFFIXES = ('.parquet', '.csv')
_NUMBER = re.compile(r'0|-?[1-9][0-9]{0,18}')
_MOST_BYTES = 1 << 28


def check(path: str | os.PathLike[str], run: Any) -> None:
  """Raises ValueError where the counts of a run cannot be written, as `write` does."""
  _path(path)
  if run.units is not None and run.units.ends:
    raise ValueError(
      'counts cite no table of units, as one whose rows end needs; replay the log itself'
    )
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
  path, n = _path(path), run.log.num_rounds
  strategy, devices, owners = run.claim.strategy, tally.devices or tally, run.units
  origin = [
    ('gram', *sql_statement.checksum(sql_statement.gram(strategy, n)), None),
    ('made_for', sql_statement.made_for(strategy, n, by_unit=devices is not tally), n, None),
  ]
  rows: list[tuple[Any, ...]] = [(*row, None) for row in (*_rows(devices), *origin)]
  kinds = [pa.string(), pa.int64(), pa.int64(), _id_type(run.log.id_type)]
  if devices is not tally:
    rows += [(_OF_UNITS + kind, i, j, None, unit) for kind, i, j, unit in (*_rows(tally), *origin)]
    most = tally.logs[0].max_rows, tally.logs[0].cohorts.total
    columns = {'rows': len(owners), 'devices': owners.num_devices, 'units': owners.num_units}
    rows += [(_OF_TABLE + kind, len(owners), i, None, None) for kind, i in columns.items()]
    rows.append((f'{_OF_TABLE}most', *most, None, None))
    kinds.append(_id_type(owners.id_type))
  names = (*COLUMNS, _UNIT_ID)[: len(kinds)]
  write_table(path, pa.table([pa.array(c, k) for c, k in zip(zip(*rows), kinds)], names=names))


def _rows(tally: device_tallies.Tally) -> list[tuple[str, int, int, Any]]:
  """Returns the rows of the counts of one run, of devices or of units."""
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


def _id_type(kind: pa.DataType) -> pa.DataType:
  return pa.int64() if pa.types.is_integer(kind) else pa.string()


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
  """Writes a table as Parquet or CSV, durably, only for its owner; ValueError for another name."""
  path, sink = _path(path), pa.BufferOutputStream()
  (pa_csv.write_csv if path.suffix == '.csv' else pq.write_table)(table, sink)
  durable.write_durably(path, sink.getvalue().to_pybytes(), private=True)


def read(
  path: str | os.PathLike[str], claim: claims.Claim, num_rounds: int, missing: str | None
) -> tuple[participation_log.Log, device_tallies.Tally, count_rows.CountedUnits | None]:
  """Returns counts for a claim, as `opened_runs.open_run` takes them.

  Returns:
    A log without the rows that were counted, what it counts, and the table of units; None where
    counts are of devices only.
  """
  default_layout = layouts.parse(None, missing=missing)
  if not set(default_layout.missing) <= set(id_columns.MISSING):
    raise ValueError(
      f'missing={messages.quoted(missing)} must be of {",".join(id_columns.MISSING)} for counts'
    )
  path = _path(path)
  terms = sql_statement.checksum(sql_statement.gram(claim.strategy, num_rounds))
  source = readers.Source(str(path))
  digest = source.sha256()
  rows = _read(source)
  if source.sha256() != digest:
    raise refusals.LogError(f'{path}: was changed while it was read; replay it again')
  parts: dict[str, list[Any]] = {'': [], _OF_UNITS: [], _OF_TABLE: []}
  for kind, num, amount, device_id, *unit_ids in rows:
    prefix = next((p for p in (_OF_UNITS, _OF_TABLE) if unit_ids and str(kind).startswith(p)), '')
    row_id = unit_ids[0] if prefix == _OF_UNITS else device_id
    parts[prefix].append((str(kind).removeprefix(prefix), num, amount, row_id))
  by_unit, marks = bool(rows and len(rows[0]) > len(COLUMNS)), default_layout.missing
  origin = sql_statement.made_for(claim.strategy, num_rounds, by_unit=by_unit)
  expected = claim, num_rounds, terms, origin
  tally, owners = count_rows.Rows(str(path), parts[''], marks).tally(*expected), None
  id_type = count_rows.type_of(tally)
  if by_unit:
    table = count_rows.Rows(str(path), parts[_OF_TABLE], marks, kinds=count_rows.TABLE_KINDS)
    most = table.most_rows(tally.logs[0])
    unit_rows = count_rows.Rows(str(path), parts[_OF_UNITS], marks, id_name=_UNIT_ID)
    units = unit_rows.tally(*expected, most)
    owners = table.owners(tally, units)
    tally = dataclasses.replace(units, devices=tally)

  def rows_of_log(*unused: Any) -> Any:
    raise refusals.LogError(f'{path}: holds counts, and no rows')

  shard = participation_log.Shard(
    path=str(path),
    metadata={},
    num_rounds=num_rounds,
    id_type=id_type,
    tables=rows_of_log,
    sha256=lambda: digest,
  )
  return participation_log.Log((shard,), num_rounds, layout=default_layout), tally, owners


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
      table = _csv(file) if is_csv else pq.read_table(file)
  except Exception as e:  # Of many kinds, where a file is damaged.
    raise refusals.LogError(f'{source.path}: cannot be read, {e}') from e
  names = [name.lower() for name in table.schema.names]
  wanted = (*COLUMNS, _UNIT_ID) if _UNIT_ID in names else COLUMNS
  refusals.check_names(source.path, names, wanted)
  columns = {name: table.column(names.index(name)) for name in wanted}
  try:
    for name in COLUMNS[1:3]:
      if columns[name].null_count:
        raise ValueError(f'{name} is missing in a row: a round is missing, or no device took part')
      if pa.types.is_decimal(columns[name].type):
        columns[name] = columns[name].cast(pa.int64())
      columns[name] = id_columns.whole_numbers(columns[name].combine_chunks(), name)
    ids = [_ids(columns[name], name, is_csv) for name in wanted[3:]]
  except (ValueError, pa.ArrowException) as e:
    raise refusals.LogError(f'{source.path}: {e}') from e
  return list(zip(*(columns[name].to_pylist() for name in COLUMNS[:3]), *ids))


def _ids(column: pa.ChunkedArray, name: str, is_csv: bool) -> list[str | int | None]:
  """Returns the ids of a column; ValueError for one that no log takes."""
  ids = id_columns.column(column.drop_null(), name, ()).to_pylist()
  if is_csv and all(_NUMBER.fullmatch(text) and abs(int(text)) < 2**63 for text in ids):
    ids = list(map(int, ids))
  remaining_ids = iter(ids)
  return [None if none else next(remaining_ids) for none in column.is_null().to_pylist()]


def _csv(file: Any) -> pa.Table:
  names = ('device_id', 'unit_id', 'kind')
  text = {name: pa.string() for lower in names for name in (lower, lower.upper())}
  options = pa_csv.ConvertOptions(column_types=text, strings_can_be_null=True, null_values=[''])
  return pa_csv.read_csv(file, convert_options=options)
