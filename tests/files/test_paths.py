"""Addresses of other machines are refused wherever a path is taken, and leave nothing behind."""

import pathlib

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.files import durable, paths
from fl_dpftrl.logs import log

SCHEMA = dpftrl.MinSep(num_rounds=8, min_sep=2)
CLAIM = dpftrl.Claim(strategy='identity', noise_multiplier=1.0, schema=SCHEMA)
NOISE = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=2)
WRITERS = {
  'aggregator': lambda p: dpftrl.PrivateAggregator(
    'identity', template=np.zeros(2), folder=p, schema=SCHEMA, **NOISE
  ),
  'rows': lambda p: dpftrl.NoiseRows('identity', 2, folder=p),
  'guard': lambda p: dpftrl.Guard(CLAIM, 1e-6, log=f'{p}/log.parquet'),
  'writer': lambda p: dpftrl.LogWriter(f'{p}/log.parquet'),
  'log': lambda p: dpftrl.write_log(f'{p}/a.parquet', rounds=[0], device_ids=['a'], num_rounds=1),
  'strategy': lambda p: dpftrl.save_strategy(f'{p}/a.json', dpftrl.Identity(), schema=SCHEMA),
  'file': lambda p: durable.write_durably(f'{p}/a', b''),
  'evidence': lambda p: dpftrl.write_evidence(p, [], deltas=1e-6),
}
READERS = {
  'load': dpftrl.load_strategy,
  'open': lambda p: dpftrl.open_run(p, 'identity', noise_multiplier=1.0),
  'logs': lambda p: log.find([p]),
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
