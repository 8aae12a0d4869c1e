"""Statements made from counts that a database made, beside those of the log itself."""

import contextlib
import csv
import functools
import json
import math
import os
import pathlib
import shutil
import sqlite3
import subprocess
import tempfile

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import sqlglot

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import id_columns, refusals
from fl_dpftrl.prove.replaying import counted, replays, sql_statement
from tests import made
from tests.commands import lines

BLT, N = dpftrl.BLT([0.99, 0.7], [0.1, 0.3]), 40
STRATEGIES = [BLT, dpftrl.Identity(), dpftrl.TreeOnline(), dpftrl.load_strategy('banded-b16')]
ALWAYS = [kind for kind in counted.KINDS if kind != 'missing']
OF_A_LOG = ('log', 'assumptions', 'from_counts', 'ids')


def draw(seed, text, devices=60, num_rounds=N):
  """Returns rounds and ids of a run some of whose rounds had nobody."""
  rng = np.random.default_rng(seed)
  hits = rng.random((num_rounds, devices)) < 0.15
  hits[[3, 17]] = False
  rounds, ids = np.nonzero(hits)
  return rounds.tolist(), [f'dévice "{i}", {i % 7}' if text else int(i) * 10**15 - 9 for i in ids]


def of_duckdb(rows, gram, text, path):
  with duckdb.connect() as engine:
    engine.register('participation', pa.table(dict(zip(('round', 'device_id'), rows))))
    engine.register('gram', gram)
    pq.write_table(engine.execute(text).to_arrow_table(), path)


def of_sqlite(rows, gram, text, path):
  with contextlib.closing(sqlite3.connect(':memory:')) as engine:
    try:
      engine.execute('SELECT LN(2), CEIL(2.5), FLOOR(2.5)')
    except sqlite3.OperationalError:
      pytest.skip('this SQLite has no mathematical functions')
    engine.execute('CREATE TABLE participation (round INTEGER, device_id)')
    engine.execute('CREATE TABLE gram (i INTEGER, j INTEGER, x REAL)')
    engine.executemany('INSERT INTO participation VALUES (?, ?)', zip(*rows))
    terms = zip(*(column.to_pylist() for column in gram.columns))
    engine.executemany('INSERT INTO gram VALUES (?, ?, ?)', terms)
    result = engine.execute(text)
    with open(path, 'w', newline='') as file:
      writer = csv.writer(file)
      writer.writerow(name for name, *_ in result.description)
      writer.writerows(result)


@pytest.fixture(name='of_postgres', scope='module')
def fixture_of_postgres():
  """Runs the statement on a server of its own, which refuses to run as root."""
  programs = sorted(pathlib.Path('/usr/lib/postgresql').glob('*/bin'))
  if not programs or not shutil.which('psql'):
    pytest.skip('Postgres is not installed')
  folder = pathlib.Path(tempfile.mkdtemp())
  user = ['runuser', '-u', 'postgres', '--'] if os.getuid() == 0 else []
  if user:
    shutil.chown(folder, 'postgres')
  start = lambda *words: subprocess.run(
    [*user, *map(str, words)], check=True, capture_output=True, cwd=folder, timeout=120
  )
  data, server = folder / 'data', programs[-1] / 'pg_ctl'
  start(programs[-1] / 'initdb', '-D', data, '--locale=C.UTF-8', '-A', 'trust', '-U', 'tester')
  words = f'-k {folder} -c listen_addresses= -c fsync=off'
  start(server, '-D', data, '-o', words, '-l', folder / 'server.log', '-w', 'start')

  def run(rows, gram, text, path):
    kind = 'text' if isinstance(rows[1][0], str) else 'bigint'
    pa_csv.write_csv(pa.table(dict(zip(('round', 'device_id'), rows))), f'{path}.rows')
    pa_csv.write_csv(gram, f'{path}.gram')
    script = [
      'DROP TABLE IF EXISTS participation, gram;',
      f'CREATE TABLE participation (round integer, device_id {kind});',
      'CREATE TABLE gram (i bigint, j bigint, x double precision);',
      f"\\copy participation FROM '{path}.rows' CSV HEADER",
      f"\\copy gram FROM '{path}.gram' CSV HEADER",
      f'CREATE TEMPORARY TABLE result AS {text};',
      f"\\copy result TO '{path}' CSV HEADER",
    ]
    subprocess.run(
      ['psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-h', str(folder), '-U', 'tester', 'postgres'],
      input='\n'.join(script),
      text=True,
      check=True,
      capture_output=True,
      timeout=120,
    )

  try:
    yield run
  finally:
    start(server, '-D', data, '-m', 'immediate', 'stop')
    shutil.rmtree(folder)


@pytest.fixture(name='counted_by', params=['duckdb', 'sqlite', 'postgres'])
def fixture_counted_by(request, tmp_path):
  """Runs the statement on an engine, and returns the path of its result."""
  of_engine = {'duckdb': of_duckdb, 'sqlite': of_sqlite}.get(request.param)
  of_engine = of_engine or request.getfixturevalue('of_postgres')
  path = tmp_path / ('result.parquet' if request.param == 'duckdb' else 'result.csv')

  def run(rows, strategy=BLT, gram=None):
    text = sql_statement.statement(strategy, N, request.param)
    of_engine(rows, gram or sql_statement.gram(strategy, N), text, path)
    return path

  return run


def statement_of(run, **given):
  said = replays.replay(run, delta=[1e-6, 1e-9], **given).to_json()
  return {name: value for name, value in said.items() if name not in OF_A_LOG}


@pytest.mark.parametrize('text', [False, True])
def test_the_statement_is_that_of_the_log_digit_for_digit(counted_by, text, tmp_path):
  for seed, strategy in enumerate(STRATEGIES):
    rows = draw(seed, text)
    log = tmp_path / f'{seed}.parquet'
    dpftrl.write_log(log, rounds=rows[0], device_ids=rows[1], num_rounds=N)
    given = dict(noise_multiplier=2.0, declared_num_rounds=N)
    run = dpftrl.open_run(
      None, strategy, from_counts=counted_by(rows, strategy), num_rounds=N, **given
    )
    assert statement_of(run) == statement_of(dpftrl.open_run(log, strategy, **given))
    replaced = statement_of(run, adjacency='replace_one')
    assert replaced['observed']['sensitivity'] > run.tally.most_exposed[0].square ** 0.5


@pytest.mark.parametrize('dialect', sql_statement.DIALECTS)
def test_each_dialect_reads_the_text_alike(dialect):
  """Its parser reads it, and DuckDB gives the same rows for what it means."""
  text = sql_statement.statement(BLT, N, dialect)
  (meant,) = sqlglot.transpile(
    text, read=dialect, write='duckdb', unsupported_level=sqlglot.ErrorLevel.RAISE
  )
  order = lambda rows: sorted(rows, key=repr)
  assert order(rows_of(text=meant)) == order(rows_of())


@functools.cache
def rows_of(strategy=BLT, text=None):
  """Returns the rows that DuckDB gives, which no test changes."""
  with duckdb.connect() as engine:
    engine.register('participation', pa.table(dict(zip(('round', 'device_id'), draw(0, True)))))
    engine.register('gram', sql_statement.gram(strategy, N))
    result = engine.execute(text or sql_statement.statement(strategy, N, 'duckdb'))
    return result.to_arrow_table().to_pylist()


def opened(rows, path, strategy=BLT, num_rounds=N):
  pq.write_table(pa.Table.from_pylist(rows), path)
  return dpftrl.open_run(
    None, strategy, from_counts=path, noise_multiplier=2.0, num_rounds=num_rounds
  )


@made.cases(
  'change, message',
  (dict(round=None), 'num is missing in a row: a round is missing, or no device took part'),
  (dict(device_id=None), '1 rows have no device_id'),
  (dict(round=-1), 'cohort of -1, which must be 0 to 39'),
  (dict(round=N), 'cohort of 40, which must be 0 to 39'),
  (dict(device_id=' spaced'), 'has spaces around it'),
  (dict(device_id='of the next row'), 'a device is twice in a round'),
  (dict(gram=sql_statement.gram(BLT, N).slice(1)), 'gram was not loaded as it was written'),
  (dict(gram=sql_statement.gram(dpftrl.TreeOnline(), N)), 'gram was not loaded as it was written'),
)
def test_a_faulty_table_is_refused(change, message, counted_by):
  rounds, ids = draw(0, True)
  if 'round' in change:
    rounds[5] = change['round']
  elif (
    change.get('device_id') == ' spaced'
  ):  # Ids that the result names are seen by the rule of ids.
    rounds, ids = [*rounds, *range(N)], [*ids, *[' spaced'] * N]
  elif change.get('device_id'):
    rounds[5:7], ids[5:7] = [0, 0], ids[6:7] * 2
  elif 'device_id' in change:
    ids[5] = None
  path = counted_by((rounds, ids), gram=change.get('gram'))
  with pytest.raises(refusals.LogError, match=message):
    dpftrl.open_run(None, BLT, from_counts=path, noise_multiplier=2.0, num_rounds=N)


@pytest.mark.parametrize('mark', [*id_columns.MISSING, ''])
def test_a_mark_is_refused_with_its_rows_unless_it_is_said_to_be_an_id(mark, counted_by, tmp_path):
  rounds, devices = draw(0, True)
  marked = [mark if device == devices[0] else device for device in devices]
  path = counted_by((rounds, marked))
  given = dict(noise_multiplier=2.0, num_rounds=N)
  number = devices.count(devices[0])
  # A result in CSV has no empty text, and Parquet's is refused as any empty id is.
  with pytest.raises(
    refusals.LogError, match=f'{number} rows have the .*mark of|device_id is empty'
  ):
    dpftrl.open_run(None, BLT, from_counts=path, **given)
  if mark:
    log = tmp_path / 'l.parquet'
    dpftrl.write_log(log, rounds=rounds, device_ids=devices, num_rounds=N)
    run = dpftrl.open_run(None, BLT, from_counts=path, missing='', **given)
    plain = replays.replay(dpftrl.open_run(log, BLT, noise_multiplier=2.0), delta=1e-6)
    told = replays.replay(run, delta=1e-6)
    assert told.observed.epsilon() == plain.observed.epsilon()
    assert told.num_devices == plain.num_devices
    assert 'said which texts mean a missing' in ' '.join(told.assumptions)
    with pytest.raises(ValueError, match="missing='a' must be of"):
      dpftrl.open_run(None, BLT, from_counts=path, missing='a', **given)


def test_counts_hold_no_rows_and_are_opened_with_all_that_they_lack(counted_by, tmp_path):
  path, given = counted_by(draw(0, False)), dict(noise_multiplier=2.0, num_rounds=N)
  run = dpftrl.open_run(None, BLT, from_counts=path, **given)
  with pytest.raises(refusals.LogError, match='holds counts, and no rows'):
    dpftrl.replay([run, run], delta=1e-6)
  for changes, words in (
    (dict(logs=path), 'do not go with from_counts'),
    (dict(first_round=1), 'do not go with from_counts'),
    (dict(num_rounds=None), 'from_counts needs strategy, noise_multiplier and num_rounds'),
    (dict(from_counts=None), 'logs is needed'),
  ):
    with pytest.raises(ValueError, match=words):
      dpftrl.open_run(**dict(strategy=BLT, from_counts=path, **given) | changes)


def without(kind):
  return lambda rows: [row for row in rows if row['kind'] != kind]


def times(kind, add=1, column='amount'):
  """Changes the first row of a kind."""

  def change(rows):
    first = next(row for row in rows if row['kind'] == kind)
    return [{**row, column: row[column] + add} if row is first else row for row in rows]

  return change


@made.cases(
  'change, message',
  *((without(kind), '.') for kind in ALWAYS),
  *((times(kind), '.') for kind in ALWAYS if kind not in ('exposed', 'gram')),
  *((times(kind, -1), '.') for kind in ALWAYS if kind not in ('exposed', 'gram')),
  (lambda rows: [row for row in rows if row['device_id'] is None], 'names no most exposed'),
  (lambda rows: rows + rows, 'must have one row of kind'),
  (lambda rows: [{**row, 'kind': 'others'} for row in rows], "unknown kind, 'others'"),
  (times('exposed', 10**6, 'num'), 'beyond the 40 of the run'),
  (times('gram', 1 << 20), 'gram was not loaded as it was written'),
)
def test_counts_that_do_not_fit_are_refused(change, message, tmp_path):
  with pytest.raises(refusals.LogError, match=message):
    opened(change(rows_of()), tmp_path / 'result.parquet')


def test_counts_of_another_strategy_or_text_are_refused(tmp_path, monkeypatch):
  path = tmp_path / 'result.parquet'
  with pytest.raises(refusals.LogError, match='made for another strategy, num_rounds or text'):
    opened(rows_of(), path, strategy=dpftrl.Identity())
  with pytest.raises(refusals.LogError, match='made for another strategy, num_rounds or text'):
    opened(rows_of(), path, num_rounds=N + 1)
  with monkeypatch.context() as patched:
    changed = sql_statement._TEXT.replace('SELECT MAX(square)', 'SELECT MIN(square)')
    patched.setattr(sql_statement, '_TEXT', changed)
    rows = rows_of(text=sql_statement.statement(BLT, N, 'duckdb'))
  with pytest.raises(refusals.LogError, match='num_rounds or text'):
    opened(rows, path)
  negative = dpftrl.Banded(np.array([[1.0, 0.0], *[[1.0, -0.5]] * (N - 1)]))
  with pytest.raises(ValueError, match='negative entries'):
    sql_statement.gram(negative, N)
  with pytest.raises(ValueError, match='at most 10000'):
    sql_statement.gram(BLT, 10_001)


def test_the_terms_of_a_pattern_add_up_to_its_square():
  terms = {(t['i'], t['j']): t['x'] for t in sql_statement.gram(BLT, N).to_pylist()}
  rounds = [0, 3, 11, 39]
  total = math.fsum(terms[i, j] for i in rounds for j in rounds if i <= j)
  column = BLT.strategy_matrix(N)[:, rounds].sum(axis=1)
  assert total == pytest.approx(column @ column, rel=1e-12)


def command(*words, status=0):
  done = lines.run(words)
  assert done.returncode == status, done.stderr
  return done


@pytest.mark.parametrize('suffix', ['parquet', 'csv'])
def test_commands_from_a_table_to_a_statement(tmp_path, suffix):
  """By `sql` and a database, and by `--write_counts` of a log."""
  rows, log = draw(2, suffix == 'csv'), tmp_path / 'log.parquet'
  dpftrl.write_log(log, rounds=rows[0], device_ids=rows[1], num_rounds=N)
  text, gram = tmp_path / 'replay.sql', tmp_path / f'gram.{suffix}'
  about = ['--strategy=tree_online', f'--num_rounds={N}']
  command('sql', *about, '--dialect=duckdb', f'--output={text}', f'--gram={gram}')
  result, counts = tmp_path / f'result.{suffix}', tmp_path / f'counts.{suffix}'
  with duckdb.connect() as engine:
    engine.register('participation', pa.table(dict(zip(('round', 'device_id'), rows))))
    engine.execute(f"CREATE TABLE gram AS FROM '{gram}'")
    engine.execute(f"COPY ({text.read_text()}) TO '{result}'")
  about += ['--noise_multiplier=3', '--delta=1e-6', '--json']
  about += [f'--declared_num_rounds={N}', '--declared_min_sep=9']
  given = [f'--log={log}', f'--write_counts={counts}']
  told = [json.loads(command('replay', *given, *about, status=4).stdout)]
  for path in (result, counts):
    public = tmp_path / 'public.html'
    done = command('replay', f'--from_counts={path}', f'--public_report={public}', *about, status=4)
    told.append(json.loads(done.stdout))
    assert done.stderr.splitlines()[-1].endswith('the declared schema was not kept')
    assert told[-1]['log'][0]['name'] == path.name and told[-1]['from_counts']
    said = ' '.join(told[-1]['assumptions'])
    assert 'counts were given in place of the rows' in said and 'device ids byte by byte' in said
    assert 'text of `fl-dpftrl sql` as it was written, run on all rows of a table that did' in said
    assert 'zeros before a number) or rounded to a float' in said
    assert '--from_counts=COUNTS' in public.read_text()
  assert told[0].pop('violations')['num_devices'] > 0
  first, *others = ({k: v for k, v in one.items() if k not in OF_A_LOG} for one in told)
  assert all(other == first for other in others)
  assert os.stat(counts).st_mode & 0o077 == 0


@made.cases(
  'words, message',
  ('--from_counts=r.csv --log=l.csv', '--log does not go with --from_counts'),
  ('--from_counts=r.csv --units=u.csv', '--units does not go with --from_counts'),
  ('--from_counts=r.csv --sampling=poisson', '--sampling does not go with --from_counts'),
  ('--from_counts=r.csv', '--num_rounds is needed with --from_counts'),
  ('--from_counts=r.csv --write_counts=c.csv --num_rounds=4', 'for the log of one run'),
  ('--from_counts=r.csv --num_rounds=4', 'r.csv: cannot be read'),
  ('--from_counts=r.txt --num_rounds=4', 'must end in .parquet or .csv'),
  ('--from_counts=r.csv --num_rounds=4 --evidence=e', 'counts were given in its place'),
)
def test_what_does_not_go_with_counts_is_one_line(words, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  if 'evidence' in words:
    pq.write_table(pa.Table.from_pylist(rows_of(dpftrl.TreeOnline())), 'r.parquet')
    words = words.replace('r.csv', 'r.parquet').replace('rounds=4', f'rounds={N}')
  given = ['--strategy=tree_online', '--noise_multiplier=3', '--delta=1e-6', *words.split()]
  (line,) = command('replay', *given, status=2).stderr.splitlines()
  assert message in line or 'no such file' in line.lower()


def test_counts_of_units_are_refused_in_one_line(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  dpftrl.write_log('l.parquet', rounds=[0, 1], device_ids=['d', 'e'], num_rounds=N)
  pathlib.Path('u.csv').write_text('device_id,unit_id,from_round\nd,p,0\ne,p,0\n')
  about = ['--strategy=tree_online', '--noise_multiplier=3', f'--num_rounds={N}', '--delta=1e-6']
  done = command(
    'replay', '--log=l.parquet', '--units=u.csv', '--write_counts=c.csv', *about, status=2
  )
  (line,) = done.stderr.splitlines()
  assert 'counts are of devices, and none of units; replay the log itself' in line
  assert not pathlib.Path('c.csv').exists()
  with pytest.raises(refusals.LogError, match="its column 'unit_id' is not known"):
    opened([{**row, 'unit_id': None} for row in rows_of()], 'r.parquet')


def test_groups_and_several_runs_need_the_log(tmp_path):
  run = opened(rows_of(), tmp_path / 'result.parquet')
  with pytest.raises(refusals.LogError, match='result.parquet: holds counts, and no rows'):
    replays.replay([run, run], delta=1e-6)
  with pytest.raises(ValueError, match='group_size=2 needs the losses of as many devices'):
    replays.replay(run, delta=1e-6, group_size=2)
