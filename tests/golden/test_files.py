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
from fl_dpftrl.logs import log_tables
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


def _changed_json(path, **fields):
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _changed_facts(path, **fields):
  durable.write(path, durable.read(path) | fields)


def _changed_metadata(path):
  table = pq.read_table(path)
  stored = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
  del stored['fl_dpftrl.metadata_sha256']
  metadata = log_tables.sealed(stored | {'fl_dpftrl.log_version': '3'})
  pq.write_table(table.replace_schema_metadata(metadata), path)


def _changed_database(path):
  with contextlib.closing(sqlite3.connect(path)) as database:
    database.execute('PRAGMA user_version=1')


def _changed_header(path):
  path.write_text(path.read_text().replace('clip_norm', 'clip_norm,another', 1))


def _prove(folder):
  ended = lines.run(['prove', folder])
  assert ended.returncode == 4
  raise ValueError(ended.stdout.splitlines()[-1])


@made.cases(
  'name, change, read, words',
  (
    'strategies/blt.json',
    lambda path: _changed_json(path, version=2),
    lambda copy: dpftrl.load_strategy(copy / 'strategies' / 'blt.json'),
    'version must be 1, got 2',
  ),
  (
    'run/claim.json',
    lambda path: _changed_json(path, another=None),
    lambda copy: dpftrl.open_run(copy / 'run'),
    'a claim must have',
  ),
  (
    'logs/log.parquet',
    _changed_metadata,
    lambda copy: dpftrl.open_run(copy / 'logs' / 'log.parquet', 'identity', noise_multiplier=1.0),
    'log_version is .3., known is 2',
  ),
  (
    'open/participation.ledger',
    _changed_database,
    lambda copy: dpftrl.open_run(copy / 'open'),
    'is of format 1, of a later version',
  ),
  (
    'open/participation.ledger',
    _changed_database,
    lambda copy: dpftrl.Run(copy / 'open', files.CLAIM),
    'is of format 1, of a later version',
  ),
  (
    'fleet/population.ledger',
    _changed_database,
    lambda copy: dpftrl.replay(copy / 'fleet', delta=1e-6),
    'is of format 1, of a later version',
  ),
  (
    'fleet/population.ledger',
    _changed_database,
    lambda copy: files.population(copy, moved=True),
    'is of format 1, of a later version',
  ),
  (
    'names/names.db',
    _changed_database,
    lambda copy: files.population(copy, moved=True),
    'is of format 1, of a later version',
  ),
  (
    'evidence/certificate.json',
    lambda path: _changed_json(path, version=1000),
    lambda copy: _prove(copy / 'evidence'),
    'not a certificate of version',
  ),
  (
    'private/noise/secret.json',
    lambda path: _changed_facts(path, release='1000.1'),
    lambda copy: files.private(copy / 'private', moved=True),
    'the noise of another release: 1000.1',
  ),
  (
    'private/released.csv',
    _changed_header,
    lambda copy: files.private(copy / 'private', moved=True),
    'must have the columns',
  ),
)
def test_a_file_of_a_later_version_is_refused(name, change, read, words, copy):
  change(copy / name)
  with pytest.raises(ValueError, match=words) as error:
    read(copy)
  assert '\n' not in str(error.value)
