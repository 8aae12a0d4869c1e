"""Addresses of other machines are refused wherever a path is taken, and leave nothing behind."""

import gzip
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from experiments.stackoverflow.datasets import texts
from fl_dpftrl.logs import participation_log
from fl_dpftrl.planning.simulation import trace_tables
from fl_dpftrl.run import guards
from fl_dpftrl.support.files import durable, paths
from tests import made
from tests.commands import lines
from tests.logs import files

SCHEMA = dpftrl.MinSep(num_rounds=8, min_sep=2)
CLAIM = dpftrl.Claim(strategy='identity', noise_multiplier=1.0, participation=SCHEMA)
WRITERS = {
  'aggregator': lambda p: made.aggregator(p, 'identity', participation=SCHEMA),
  'rows': lambda p: dpftrl.NoiseRows('identity', 2, folder=p),
  'guard': lambda p: guards.Guard(CLAIM, 1e-6, log=f'{p}/log.parquet'),
  'writer': lambda p: dpftrl.LogWriter(f'{p}/log.parquet'),
  'log': lambda p: made.log(f'{p}/a.parquet', [['a']]),
  'strategy': lambda p: dpftrl.save_strategy(f'{p}/a.json', dpftrl.Identity(), schema=SCHEMA),
  'file': lambda p: durable.write_durably(f'{p}/a', b''),
  'evidence': lambda p: dpftrl.write_evidence(p, [], delta=1e-6),
}
READERS = {
  'load': dpftrl.load_strategy,
  'open': lambda p: dpftrl.open_run(p, 'identity', noise_multiplier=1.0),
  'logs': lambda p: participation_log.find([p]),
  'verify': dpftrl.verify,
}


@pytest.mark.parametrize('name', [*WRITERS, *READERS])
@pytest.mark.parametrize(
  'address', ['gs://bucket/run', pathlib.Path('s3://bucket/run'), 'file:///a']
)
def test_an_address_is_no_path(name, address, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=r'is an address.*docs/production\.md') as error:
    {**WRITERS, **READERS}[name](address)
  assert '\n' not in str(error.value) and len(str(error.value)) <= 300
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'path', ['a:b/c', 'c:/a', './gs:/a', '/gs://a', 'gs/a', 'a', pathlib.Path('a')]
)
def test_other_paths_stay(path):
  assert paths.local(path) == pathlib.Path(path)


# Names that a library of file systems, a shell or an engine of queries would interpret.
NAMES = ('~/run', '~', 'run:1', 'exp:base/seed:0', 'lr=0.1,seed=[1]', 'a*b?', '%41 #é', 'ram:x')


@pytest.fixture(name='at_home')
def fixture_at_home(tmp_path, monkeypatch):
  """A home folder of which a path in the current folder must not speak."""
  (tmp_path / 'home' / 'run').mkdir(parents=True)
  (tmp_path / 'work').mkdir()
  monkeypatch.setenv('HOME', str(tmp_path / 'home'))
  monkeypatch.chdir(tmp_path / 'work')
  return tmp_path / 'home'


@pytest.mark.parametrize('name', NAMES)
def test_a_path_is_the_file_of_that_name(name, at_home):
  folder = pathlib.Path(name)
  for t in range(4):  # Continued each second round.
    if t % 2 == 0:
      aggregator = made.aggregator(name, 'identity', participation=SCHEMA)
    made.release(aggregator, ['a', 'b'] if t % 2 else ['c', 'd'])
    if t % 2:
      aggregator.close()
  log_path = folder / 'participation.parquet'
  assert len(files.rows(log_path)) == 8 and len(pq.read_table(log_path.open('rb'))) == 8
  assert log_path.stat().st_mode & 0o777 == 0o600
  aggregator.report(folder / 'report.html', 1e-6)
  done = lines.run(['replay', name, '--delta=1e-6', f'--evidence={name}-evidence', '--json'])
  assert done.returncode == 0 and dpftrl.verify(f'{name}-evidence').passed
  assert not [*at_home.rglob('participation*'), *at_home.parent.rglob('.writing-*')]


@pytest.mark.parametrize('name', NAMES)
def test_a_table_is_read_from_the_file_of_that_name(name, at_home):
  folder = pathlib.Path(name)
  folder.mkdir(parents=True)
  times = pa.array([0, 3600], pa.timestamp('s', 'UTC'))
  with (folder / 'times.parquet').open('wb') as file:
    pq.write_table(pa.table({'device': [1], 'start': times[:1], 'end': times[1:]}), file)
  assert trace_tables.read_traces(folder / 'times.parquet').owners.size == 1
  rows = [{'client': f'c{i}', 'text': 'two words'} for i in range(3)]
  (folder / 'a.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  (folder / 'a.csv').write_text('client,text\n' + ''.join(f'c{i},two words\n' for i in range(3)))
  for suffix in ('jsonl', 'csv'):
    content = (folder / f'a.{suffix}').read_bytes()
    (folder / f'a.{suffix}.gz').write_bytes(gzip.compress(content))
  with (folder / 'a.parquet').open('wb') as file:
    pq.write_table(pa.Table.from_pylist(rows), file)
  paths_of_texts = sorted(folder.glob('a.*'))
  assert len({texts.load(path).digest for path in paths_of_texts}) == 1 and len(paths_of_texts) == 5
