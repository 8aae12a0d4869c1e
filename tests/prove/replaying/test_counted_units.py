"""Counts by unit of a database, and of a log, beside the log with its table of units."""

import itertools
import json

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlglot

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import refusals
from fl_dpftrl.prove.replaying import counted, counting, sql_statement
from tests.commands import lines
from tests.prove.replaying import test_counted as plain
from tests.prove.replaying.test_counted import fixture_of_postgres  # noqa: F401

N = 12
STRATEGIES = [
  dpftrl.BLT([0.99, 0.7], [0.1, 0.3]),
  dpftrl.Identity(),
  dpftrl.TreeOnline(),
  dpftrl.BandedToeplitz([1.0, 0.5, 0.25]),
]
BLT = STRATEGIES[0]
NOISE = 2.0


def drawn(seed):
  """Returns rows of a log, and a table in which people have devices, and devices owners."""
  rng = np.random.default_rng([7, seed])
  names = [
    lambda i: f'dévice "{i}"' if seed % 2 else int(i) * 10**15 - 9,
    lambda i: f'p {i}' if seed // 2 % 2 else int(i) - 3,
  ]
  devices, people = int(rng.integers(2, 16)), int(rng.integers(1, 9))
  hits = rng.random((N, devices)) < rng.uniform(0.05, 0.5)
  hits[rng.integers(N), rng.integers(devices)] = True
  rounds, ids = np.nonzero(hits)
  table = []
  for device in range(devices):
    owners = rng.permutation(people)[: rng.choice([1, 1, 2, 3])].tolist()
    firsts = [0, *rng.integers(0, N + 2, len(owners) - 1).tolist()]
    table += [(names[0](device), names[1](o), t) for o, t in zip(owners, firsts)]
  order = rng.permutation(len(table))
  table = [table[i] for i in order.tolist()]
  return (rounds.tolist(), [names[0](i) for i in ids.tolist()]), units_of(table)


def units_of(rows):
  return pa.table(dict(zip(('device_id', 'unit_id', 'from_round'), map(pa.array, zip(*rows)))))


@pytest.fixture(name='result_of', params=['duckdb', 'sqlite', 'postgres'])
def fixture_result_of(request, tmp_path):
  """Runs the statement by unit on an engine, and returns the path of its result."""
  of_engine = {'duckdb': plain.of_duckdb, 'sqlite': plain.of_sqlite}.get(request.param)
  of_engine = of_engine or request.getfixturevalue('of_postgres')
  path = tmp_path / ('result.parquet' if request.param == 'duckdb' else 'result.csv')

  def run(rows, units, strategy=BLT):
    text = sql_statement.statement(strategy, N, request.param, by_unit=True)
    of_engine(rows, sql_statement.gram(strategy, N), text, path, units)
    return path

  return run


def from_counts(path, strategy=BLT, **options):
  options = dict(noise_multiplier=NOISE, num_rounds=N) | options
  return dpftrl.open_run(None, strategy, from_counts=path, **options)


def of_log(rows, units, folder, strategy=BLT):
  log = folder / 'log.parquet'
  dpftrl.write_log(log, rounds=rows[0], device_ids=rows[1], num_rounds=N)
  pq.write_table(units, folder / 'units.parquet')
  given = dict(noise_multiplier=NOISE, units=folder / 'units.parquet')
  return dpftrl.open_run(log, strategy, **given)


def check_equal(seed, result_of, folder):
  strategy, (rows, units) = STRATEGIES[seed % 4], drawn(seed // 4 * 7 + seed)
  run = of_log(rows, units, folder, strategy)
  expected = plain.statement_of(run)
  assert plain.statement_of(from_counts(result_of(rows, units, strategy), strategy)) == expected
  return expected


@pytest.mark.parametrize('seeds', [range(2), pytest.param(range(2, 40), marks=pytest.mark.slow)])
def test_figures_of_people_are_those_of_the_log_digit_for_digit(seeds, result_of, tmp_path):
  shown = [check_equal(seed, result_of, tmp_path) for seed in seeds]
  assert max(one['units']['max_rows'] for one in shown) > 1
  assert any(one['num_devices'] != one['units']['num_participating'] for one in shown)


@pytest.mark.thorough
def test_figures_of_300_drawn_tables(result_of, tmp_path):
  for seed in range(300):
    check_equal(seed, result_of, tmp_path)


@pytest.mark.parametrize('seed', range(6))
@pytest.mark.parametrize('suffix', ['parquet', 'csv'])
def test_counts_of_a_log_give_its_figures_again(seed, suffix, tmp_path):
  strategy, (rows, units) = STRATEGIES[seed % 4], drawn(seed)
  run = of_log(rows, units, tmp_path, strategy)
  path = tmp_path / f'counts.{suffix}'
  counted.check(path, run)
  counted.write(path, run, counting.count([run]))
  assert plain.statement_of(from_counts(path, strategy)) == plain.statement_of(run)


OTHERS = [d for d in sql_statement.DIALECTS if d != 'duckdb']


@pytest.mark.parametrize(
  'dialect', ['duckdb', *(pytest.param(d, marks=pytest.mark.slow) for d in OTHERS)]
)
def test_each_dialect_reads_the_text_by_unit_alike(dialect):
  """Its parser reads it, and DuckDB gives the same rows for what it means."""
  text = sql_statement.statement(BLT, N, dialect, by_unit=True)
  (meant,) = sqlglot.transpile(
    text, read=dialect, write='duckdb', unsupported_level=sqlglot.ErrorLevel.RAISE
  )
  order = lambda rows: sorted(rows, key=repr)
  assert order(rows_of(meant)) == order(rows_of())


def rows_of(text=None):
  """Returns the rows that DuckDB gives."""
  rows, units = drawn(3)
  with duckdb.connect() as engine:
    engine.register('participation', pa.table(dict(zip(('round', 'device_id'), rows))))
    engine.register('gram', sql_statement.gram(BLT, N))
    engine.register('units', units)
    result = engine.execute(text or sql_statement.statement(BLT, N, 'duckdb', by_unit=True))
    return result.to_arrow_table().to_pylist()


ROWS = ([0, 1, 1, 4], ['d1', 'd1', 'd2', 'd3'])
TABLE = [('d1', 'p', 0), ('d2', 'p', 0), ('d3', 'q', 3), ('d1', 'q', 2)]


def changed(place, **values):
  """Returns the table with other values in one row."""
  names = ('device_id', 'unit_id', 'from_round')
  rows = [dict(zip(names, row)) for row in TABLE]
  rows[place] |= values
  return units_of([tuple(row[name] for name in names) for row in rows])


@pytest.mark.parametrize('units, message', [
  (units_of(TABLE[:2]), "nobody owns device 'd3' in round 4; a table has every device of the log"),
  (units_of([*TABLE[1:], TABLE[0][:2] + (1,)]), "nobody owns device 'd1' in round 0"),
  (changed(2, from_round=5), "nobody owns device 'd3' in round 4"),
  (changed(2, unit_id=None), "nobody owns device 'd3' in round 4"),
  (changed(2, device_id='D3'), "nobody owns device 'd3' in round 4"),
  (changed(3, unit_id=None), 'has rows without a device_id, unit_id or from_round'),
  (changed(3, from_round=None), 'has rows without a device_id, unit_id or from_round'),
  (changed(3, device_id=None), 'has rows without a device_id, unit_id or from_round'),
  (units_of([*TABLE, TABLE[1]]), "has one owner of device 'd2' in 2 rows"),
  (units_of([*TABLE, ('d1', 'p', 6)]), "has one owner of device 'd1' in 2 rows"),  # A cycle.
  (changed(3, from_round=-1), "from_round must be at least 0, got -1 of device 'd1'"),
  (changed(2, unit_id='NULL'), "1 rows have the unit_id 'NULL', a mark of missing data"),
  (changed(2, unit_id=''), "unit_id: at .* is empty|1 rows have the unit_id '', a mark"),
])  # fmt: skip
def test_a_hostile_table_is_refused_by_its_row(units, message, result_of):
  from_counts(result_of(ROWS, units_of(TABLE)))
  with pytest.raises(refusals.LogError, match=message):
    from_counts(result_of(ROWS, units))


def test_what_is_refused_of_a_log_is_so_by_unit(result_of):
  for rows, message in (
    (([0, 1, 1, None], ROWS[1]), 'num is missing in a row: a round is missing'),
    ((ROWS[0], ['d1', 'd1', 'd2', None]), '1 rows have no device_id'),
    (([0, 1, 1, N], ROWS[1]), f'cohort of {N}, which must be 0 to 11'),
    (([0, 1, 1, 4], ['d1', 'd2', 'd2', 'd3']), 'a device is twice in a round'),
  ):
    with pytest.raises(refusals.LogError, match=message):
      from_counts(result_of(rows, units_of(TABLE)))


def opened(rows, path):
  pq.write_table(pa.Table.from_pylist(rows), path)
  return from_counts(path)


_CHANGES = [
  *itertools.product((f'unit_{kind}' for kind in plain.ALWAYS), ('drop', 1, -1)),
  *itertools.product(('table_rows', 'table_devices', 'table_units', 'table_most'), ('drop', -1)),
]  # fmt: skip


@pytest.mark.parametrize('kind, change', _CHANGES)
def test_counts_of_units_that_do_not_fit_are_refused(kind, change, tmp_path):
  rows = rows_of()
  opened(rows, tmp_path / 'result.parquet')
  place = next(i for i, row in enumerate(rows) if row['kind'] == kind)
  if change == 'drop':
    rows = [row for row in rows if row['kind'] != kind]
  elif kind == 'unit_gram':
    rows[place]['num'] += change
  else:
    rows[place]['amount'] += change * (10**6 if kind == 'unit_exposed' else 1)
    rows[place]['num'] += change * (kind in ('table_rows', 'table_devices', 'table_units'))
  with pytest.raises(refusals.LogError, match='.'):
    opened(rows, tmp_path / 'result.parquet')


def test_counts_by_unit_are_of_another_text_than_those_of_devices(tmp_path):
  rows, path = rows_of(), tmp_path / 'result.parquet'
  without = [{k: v for k, v in row.items() if k != 'unit_id'} for row in rows]
  of_devices = [row for row in without if not row['kind'].startswith(('unit_', 'table_'))]
  with pytest.raises(refusals.LogError, match='made for another strategy, num_rounds or text'):
    opened(of_devices, path)
  with pytest.raises(refusals.LogError, match='unknown kind'):
    opened(without, path)
  run = opened(rows, path)
  with pytest.raises(refusals.LogError, match='holds counts, and no rows'):
    dpftrl.replay([run, run], delta=1e-6)


def test_commands_from_tables_to_a_statement_of_people(tmp_path):
  """By `sql --units` and a database, and by `--write_counts` of a log."""
  rows, table = drawn(3)
  of_log(rows, table, tmp_path)
  text, gram = tmp_path / 'replay.sql', tmp_path / 'gram.parquet'
  about = ['--strategy=tree_online', f'--num_rounds={N}']
  plain.command('sql', *about, '--units', '--dialect=duckdb', f'--output={text}', f'--gram={gram}')
  assert '-- units: a view' in text.read_text()
  result, counts = tmp_path / 'result.parquet', tmp_path / 'counts.parquet'
  with duckdb.connect() as engine:
    engine.execute(f"CREATE TABLE participation AS FROM '{tmp_path / 'log.parquet'}'")
    engine.execute(f"CREATE TABLE units AS FROM '{tmp_path / 'units.parquet'}'")
    engine.execute(f"CREATE TABLE gram AS FROM '{gram}'")
    engine.execute(f"COPY ({text.read_text()}) TO '{result}'")
  about += ['--noise_multiplier=3', '--delta=1e-6', '--json']
  log = [f'--log={tmp_path / "log.parquet"}', f'--units={tmp_path / "units.parquet"}']
  shown = [plain.command('replay', *log, f'--write_counts={counts}', *about)]
  shown += [plain.command('replay', f'--from_counts={path}', *about) for path in (result, counts)]
  first, *others = (
    {k: v for k, v in json.loads(done.stdout).items() if k not in plain.OF_A_LOG} for done in shown
  )
  assert first['units']['name'] == 'person' and all(other == first for other in others)
  said = ' '.join(json.loads(shown[1].stdout)['assumptions'])
  assert 'compared device ids and unit ids byte by byte' in said and 'not cited by the log' in said
  about = [word for word in about if word != '--json']
  page = lines.run(['replay', f'--from_counts={result}', *about]).stdout
  assert 'in the table of' in page and 'persons' in page


def test_the_text_by_unit_replaces_words_that_are_there():
  for word, _ in sql_statement._WORDS_OF_UNITS:
    assert word in sql_statement._TEXT
