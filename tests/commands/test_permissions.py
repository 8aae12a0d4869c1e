"""Permissions of the files that commands write."""

import os
import stat

import pytest

from fl_dpftrl.commands import main
from fl_dpftrl.logs import schema
from fl_dpftrl.logs import writer as writer_lib

POPULATION = ['--population=200', '--report_goal=10', '--num_rounds=6', '--timer_rounds=3']


@pytest.fixture(name='umask', params=[0o022, 0o077])
def fixture_umask(request):
  old = os.umask(request.param)
  yield request.param
  os.umask(old)


def modes(folder):
  """Permissions of all files in a folder, by name."""
  return {
    str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
    for path in folder.rglob('*')
    if path.is_file()
  }


def test_replay(tmp_path, umask, capsys):
  log = tmp_path / 'log.parquet'
  schema.write_log(log, rounds=[0, 2], device_ids=['a', 'b'], num_rounds=4)
  main.main(
    [
      'replay',
      f'--log={log}',
      '--strategy=identity',
      '--noise_multiplier=3',
      '--delta=1e-6',
      f'--report={tmp_path / "privacy.html"}',
      f'--public_report={tmp_path / "public.html"}',
    ]
  )
  capsys.readouterr()
  assert modes(tmp_path) == {
    'log.parquet': 0o600,
    'privacy.html': 0o600,
    'public.html': 0o666 & ~umask,
  }


def test_a_log_that_grows(tmp_path, umask):
  del umask
  path = tmp_path / 'log.parquet'
  writer = writer_lib.LogWriter(path, metadata={})
  writer.append(0, ['a', 'b'], 1_700_000_000)
  assert modes(tmp_path) == {'log.parquet.journal': 0o600}
  writer.close()
  assert modes(tmp_path) == {'log.parquet': 0o600}


def test_simulate(tmp_path, umask, capsys):
  main.main(
    [
      'simulate',
      *POPULATION,
      f'--output={tmp_path / "log.parquet"}',
      f'--report={tmp_path / "page.html"}',
    ]
  )
  capsys.readouterr()
  assert modes(tmp_path) == {'log.parquet': 0o600, 'page.html': 0o666 & ~umask}


@pytest.mark.slow
def test_strategies_plans_and_comparisons(tmp_path, umask, capsys):
  main.main(
    [
      'optimize',
      '--mechanism=banded',
      '--num_rounds=8',
      '--min_sep=4',
      f'--output={tmp_path / "banded.json"}',
    ]
  )
  main.main(
    [
      'plan',
      *POPULATION,
      '--delta=1e-6',
      '--epsilon=4',
      '--strategies=identity,tree_online',
      '--num_simulations=1',
      '--report_goals=20',
      f'--output={tmp_path / "plan.json"}',
      f'--report={tmp_path / "plan.html"}',
    ]
  )
  main.main(
    ['compare', '--mechanisms=identity', '--num_rounds=8', f'--output={tmp_path / "compared"}']
  )
  main.main(
    [
      'extrapolate',
      '--strategies=identity',
      '--noise_multiplier=3',
      '--report_goal=10',
      '--report_goals=10,20',
      '--population=200',
      '--num_rounds=8',
      '--delta=1e-6',
      f'--output={tmp_path / "predicted"}',
    ]
  )
  capsys.readouterr()
  found = modes(tmp_path)
  assert len(found) >= 7
  assert set(found.values()) == {0o666 & ~umask}
