"""Every family in every command, from a strategy file written from Python."""

import pytest

from fl_dpftrl.logs import noise_record, writer
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from tests import every_family

N = 6
SCHEMA = schemas.MinSep(num_rounds=N, min_sep=2, max_participations=2)
FLAGS = f'--num_rounds={N} --min_sep=2 --max_participations=2'


@pytest.fixture(params=every_family.NAMES)
def path(request, tmp_path):
  path = tmp_path / 'strategy.json'
  files.save_strategy(path, every_family.example(request.param, N), schema=SCHEMA, objective='max')
  return path


def test_account_calibrate_describe_compare(path, result_beside_warnings):
  account = result_beside_warnings(
    f'account --strategy={path} --noise_multiplier=3 --delta=1e-6 {FLAGS}'
  )
  back = result_beside_warnings(
    f'calibrate --strategy={path} --epsilon={account["epsilon"]!r} --delta=1e-6 {FLAGS}'
  )
  assert back['noise_multiplier'] == pytest.approx(3.0, rel=1e-4)
  described = result_beside_warnings(f'describe {path}')
  assert described['sensitivity'] == account['sensitivity']
  compared = result_beside_warnings(f'compare --mechanisms={path} {FLAGS}')
  assert compared


def test_replay_with_the_digest_in_the_log(path, tmp_path, result_beside_warnings):
  strategy = files.load_strategy(path)
  log = writer.LogWriter(
    tmp_path / 'log.parquet', metadata=noise_record.run_metadata(strategy, 3.0, clip_norm=1.0)
  )
  for t in range(N):
    log.append(t, ['a'] if t % 3 == 0 else ['b', f'c{t}'], 86400 + t)
  replayed = result_beside_warnings(f'replay --log={log.path} --strategy={path} --delta=1e-6')
  assert replayed['void_reason'] is None and replayed['observed']['epsilon'] > 0
