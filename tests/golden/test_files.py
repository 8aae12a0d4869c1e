"""Files of earlier versions are read for ever, and those of later ones refused in one line."""

import contextlib
import json
import pathlib
import shutil
import sqlite3

import numpy as np
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import log_tables, population_ledger
from fl_dpftrl.support.files import durable
from tests import made
from tests.commands import lines
from tests.golden import commands, files

RECORDED = {
  path.parent.name: json.loads(path.read_text()) for path in files.FOLDER.glob(f'*/{files.FIGURES}')
}


@pytest.fixture(name='copies', scope='module')
def fixture_copies(tmp_path_factory):
  """Folders of all versions, at another place, as in any checkout."""
  return pathlib.Path(shutil.copytree(files.FOLDER, tmp_path_factory.mktemp('copies') / 'files'))


@pytest.fixture(name='copy', params=RECORDED)
def fixture_copy(request, tmp_path):
  """The folder of a version, which a test may change."""
  return pathlib.Path(shutil.copytree(files.FOLDER / request.param, tmp_path / 'copy'))


@pytest.mark.parametrize(
  'version, name', [(version, name) for version, names in RECORDED.items() for name in names]
)
def test_a_file_gives_its_figures(version, name, copies):
  figures = files.READERS[name](copies / version / name)
  assert not commands.differences(figures, RECORDED[version][name])


def test_this_version_has_its_folder():
  newest = max(RECORDED, key=lambda version: [*map(int, version.split('.'))])
  assert newest.split('.')[:2] == dpftrl.__version__.split('.')[:2]
  assert set(RECORDED[newest]) <= set(files.READERS)


def test_runs_go_on(copy):
  with dpftrl.Run(copy / 'open', files.CLAIM, delta=files.DELTA) as run:
    with run.round(['gil']) as round_:
      assert round_.row == len(files.COHORTS)
      round_.released()
  assert dpftrl.replay(copy / 'open', delta=files.DELTA).num_rounds == len(files.COHORTS) + 1
  with files.private(copy / 'private', moved=True) as aggregator:
    made.release(aggregator, ['gil', 'hal'])
    assert aggregator.next_round == 3 and aggregator.metrics()['loss'].num_rounds == 3
  with files.canaries(copy / 'canaries', moved=True) as aggregator:
    made.release(aggregator, ['gil', 'hal'], np.full(64, 0.01, np.float32))
  assert dpftrl.audit_run(copy / 'canaries', delta=files.DELTA).num_released == 3


def test_a_population_goes_on(copy):
  fleet = files.population(copy, moved=True)
  assert fleet.status()['num_rounds'] == 2 * len(files.COHORTS)
  with dpftrl.Run(copy / 'words', files.WORDS, population=fleet) as run:
    assert list(run.admissible(['ann', 'bob', 'eve', 'gil'])) == ['ann', 'gil']
  with dpftrl.Run(copy / 'ranking', files.WORDS, population=fleet) as run:
    with pytest.raises(dpftrl.BudgetSpentError, match='over for ever'):
      run.admissible(['ann'])


def _json(**fields):
  return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _metadata(path):
  table = pq.read_table(path)
  stored = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
  del stored['fl_dpftrl.metadata_sha256']
  metadata = log_tables.sealed(stored | {'fl_dpftrl.log_version': '3'})
  pq.write_table(table.replace_schema_metadata(metadata), path)


def _database(path):
  with contextlib.closing(sqlite3.connect(path)) as database:
    database.execute('PRAGMA user_version=1')


def _record(kind):
  """Appends a record that this version does not know, with the digest that it would have."""

  def append(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
      query = 'SELECT position, chain FROM records ORDER BY position DESC LIMIT 1'
      ((last, head),) = database.execute(query)
      chain = population_ledger.next_head(head, last + 1, kind, '{}')
      values = last + 1, kind, '{}', chain
      database.execute('INSERT INTO records VALUES (?, ?, ?, ?)', values)

  return append


def _header(path):
  path.write_text(path.read_text().replace('clip_norm', 'clip_norm,another', 1))


def _release(path):
  durable.write(path, durable.read(path) | {'release': '1000.1'})


def _prove(copy):
  ended = lines.run(['prove', copy / 'evidence'])
  assert ended.returncode == 4
  raise ValueError(ended.stdout.splitlines()[-1])


def _log(copy):
  dpftrl.open_run(copy / 'logs' / 'log.parquet', 'identity', noise_multiplier=1.0)


_run = lambda copy: dpftrl.open_run(copy / 'run')
_open = lambda copy: dpftrl.open_run(copy / 'open')
_go_on = lambda copy: dpftrl.Run(copy / 'open', files.CLAIM)
_replay = lambda copy: dpftrl.replay(copy / 'fleet', delta=1e-6)
_population = lambda copy: files.population(copy, moved=True)
_private = lambda copy: files.private(copy / 'private', moved=True)
_load = lambda copy: dpftrl.load_strategy(copy / 'strategies' / 'blt.json')
_audit = lambda copy: dpftrl.audit_run(copy / 'canaries', delta=1e-6)
_LATER = 'is of format 1, of a later version'


@made.cases(
  'name, change, read, words',
  ('strategies/blt.json', _json(version=2), _load, 'version must be 1, got 2'),
  ('run/claim.json', _json(another=None), _run, 'a claim must have'),
  ('logs/log.parquet', _metadata, _log, 'log_version is .3., known is 2'),
  ('open/participation.ledger', _database, _open, _LATER),
  ('open/participation.ledger', _database, _go_on, _LATER),
  ('fleet/population.ledger', _database, _replay, _LATER),
  ('fleet/population.ledger', _database, _population, _LATER),
  ('fleet/population.ledger', _record('pause'), _replay, 'is none of a population'),
  ('fleet/population.ledger', _record('run'), _replay, 'is none of a population'),
  ('fleet/population.ledger', _record('pause'), _population, 'is none of a population'),
  ('names/names.db', _database, _population, _LATER),
  ('evidence/certificate.json', _json(version=1000), _prove, 'not a certificate of version'),
  ('private/noise/secret.json', _release, _private, 'the noise of another release: 1000.1'),
  ('private/released.csv', _header, _private, 'must have the columns'),
  ('canaries/canaries/secret.json', _release, _audit, 'is of a later version'),
)
def test_a_file_of_a_later_version_is_refused(name, change, read, words, copy):
  change(copy / name)
  with pytest.raises(ValueError, match=words) as error:
    read(copy)
  assert '\n' not in str(error.value)
