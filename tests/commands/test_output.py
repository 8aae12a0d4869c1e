"""Files that cannot be written are found before the work, and figures are printed all the same."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

import fl_dpftrl
from fl_dpftrl.commands import output
from fl_dpftrl.files import durable
from fl_dpftrl.logs import schema

POPULATION = '--population=200 --report_goal=10 --num_rounds=6 --timer_rounds=3'
REPLAY = 'replay --log={log} --strategy=identity --noise_multiplier=3 --delta=1e-6'
PLAN = f'plan {POPULATION} --delta=1e-6 --epsilon=4 --strategies=identity --num_simulations=1'


def no_room(name=None, other=None):
  return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name, None, other)


@pytest.fixture(name='log')
def _log(tmp_path):
  path = tmp_path / 'log.parquet'
  schema.write_log(path, rounds=[0, 1, 2], device_ids=['a', 'b', 'c'], num_rounds=3)
  return path


@pytest.mark.parametrize(
  'line, flag',
  [
    (REPLAY, 'report={folder}/page.html'),
    (REPLAY, 'public_report={folder}/page.html'),
    (REPLAY, 'bundle={folder}/bundle'),
    (REPLAY + ' --bundle={log}.bundle', 'public_bundle={folder}/bundle'),
    ('verify {log}', 'public_bundle={folder}/bundle'),
    (f'simulate {POPULATION}', 'output={folder}/log.parquet'),
    (f'simulate {POPULATION}', 'report={folder}/page.html'),
    (PLAN, 'output={folder}/strategy.json'),
    (PLAN, 'report={folder}/page.html'),
    ('optimize --mechanism=identity --num_rounds=4', 'output={folder}/strategy.json'),
    ('compare --mechanisms=identity --num_rounds=4', 'output={folder}'),
    (
      'extrapolate --strategies=identity --noise_multiplier=3 --report_goal=10 --population=200'
      ' --report_goals=10,20 --num_rounds=8 --delta=1e-6',
      'output={folder}',
    ),
  ],
)
def test_before_the_work(run, log, tmp_path, monkeypatch, line, flag):
  folder = tmp_path / 'folder'
  folder.mkdir()
  original = output.tempfile.TemporaryFile

  def read_only(*, dir):
    if str(dir).startswith(str(folder)):
      raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))
    return original(dir=dir)

  monkeypatch.setattr(output.tempfile, 'TemporaryFile', read_only)
  flag = '--' + flag.format(folder=folder)
  status, out, err = run(f'{line} {flag}'.format(log=log))
  assert (status, out, err.count('\n')) == (2, '', 1)
  assert f'{flag} cannot be written: Read-only file system' in err
  assert set(os.listdir(tmp_path)) == {'log.parquet', 'folder'} and not os.listdir(folder)


def test_a_folder_in_place_of_a_file(run, log, tmp_path):
  status, out, err = run(f'{REPLAY} --report={tmp_path}'.format(log=log))
  assert (status, out) == (2, '') and f'--report={tmp_path} is a folder; name a file' in err


@pytest.mark.parametrize(
  'line, words',
  [
    (f'{REPLAY} --report={{page}}', 'ε'),
    (f'{REPLAY} --json --public_report={{page}}', '"epsilon"'),
    (f'{PLAN} --report={{page}}', 'ε'),
    (f'simulate {POPULATION} --report={{page}}', 'min_sep'),
  ],
)
def test_figures_are_printed_before_a_page_fails(run, log, tmp_path, monkeypatch, line, words):
  def full(*_):
    raise no_room()

  monkeypatch.setattr(os, 'fsync', full)
  page = tmp_path / 'page.html'
  status, out, err = run(line.format(log=log, page=page))
  assert status == 2 and words in out
  assert err.splitlines()[-1].endswith(f'{page}: No space left on device')
  assert os.listdir(tmp_path) == ['log.parquet']


def test_a_bundle_without_room_is_named(run, log, tmp_path, monkeypatch):
  def full(source, target):
    raise no_room(str(source), str(target))

  monkeypatch.setattr(shutil, 'copyfile', full)
  status, out, err = run(f'{REPLAY} --bundle={tmp_path / "bundle"}'.format(log=log))
  assert status == 2 and 'ε' in out
  name = tmp_path / 'bundle' / 'log-1-1.parquet'
  assert err == f'fl-dpftrl replay: {name}: No space left on device\n'


def test_a_refused_log_is_named_by_its_own_path_and_not_by_its_copy(tmp_path):
  log = tmp_path / 'log.csv'
  log.write_text('round,device_id\n0,a\n0,a\n')
  run = fl_dpftrl.open_run(log, 'identity', noise_multiplier=2.0)
  with pytest.raises(ValueError) as error:
    fl_dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=1e-6)
  assert str(error.value) == f"{log}, row 2: device 'a' is twice in round 0"
  assert os.listdir(tmp_path) == ['log.csv']


def test_a_missing_folder_is_named_by_the_file_in_it(tmp_path):
  for path in (tmp_path / 'none' / 'file', tmp_path / 'file' / 'file'):
    (tmp_path / 'file').touch()
    with pytest.raises(OSError) as error:
      durable.write_durably(path, b'content')
    assert error.value.filename == str(path)


@pytest.mark.slow
def test_a_full_standard_output_is_one_line():
  with open('/dev/full', 'w') as full:
    line = ['describe', 'identity', '--num_rounds=4']
    done = subprocess.run(
      [sys.executable, '-m', 'fl_dpftrl.commands.main', *line],
      stdout=full,
      stderr=subprocess.PIPE,
      text=True,
    )
  assert done.returncode == 2
  assert done.stderr == 'fl-dpftrl describe: standard output: No space left on device\n'
