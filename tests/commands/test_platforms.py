"""A system without the modules of POSIX: commands work, and what needs locks says so."""

import os
import pathlib
import subprocess
import sys

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.support.files import durable
from tests import made

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import os, shutil, signal, sys
for name in ('fcntl', 'resource'):
  sys.modules[name] = None
for module, names in (
  (os, ('register_at_fork', 'fork', 'O_NONBLOCK', 'O_CLOEXEC')),
  (signal, ('SIGHUP', 'SIGXCPU', 'SIGKILL')),
):
  for name in names:
    delattr(module, name)
shutil._use_fd_functions = False  # As elsewhere, where no folder can be opened.
shutil._rmtree_impl = shutil._rmtree_unsafe  # Python 3.14 has chosen by then.
from fl_dpftrl.commands import main
run = sys.argv[1]
for words in (
  ['--help'],
  ['account', '--strategy=blt-b100', '--num_rounds=9', '--min_sep=3', '--noise_multiplier=2',
   '--delta=1e-6'],
  ['optimize', '--mechanism=banded_sqrt', '--num_rounds=9', '--min_sep=3', '--output=own.json'],
  ['describe', 'own.json'],
  ['simulate', '--population=50', '--report_goal=2', '--num_rounds=4', '--timer_rounds=2',
   '--output=log.parquet'],
  ['replay', '--log=log.parquet', '--strategy=own.json', '--noise_multiplier=2', '--delta=1e-6'],
):
  try:
    main.main(words)
  except SystemExit as end:
    assert not end.code, (words, end.code)
import numpy as np
import fl_dpftrl as dpftrl
try:
  dpftrl.PrivateAggregator(
    'identity', template=np.zeros(3), noise_multiplier=1.0, clip_norm=1.0, report_goal=1,
    folder='new',
  )
except OSError as error:
  print('REFUSED', error)
sys.argv = ['fl-dpftrl', 'replay', run, '--delta=1e-6']
main.main()
"""


def test_files_are_written_without_locks_and_what_must_be_held_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(durable, 'fcntl', None)
  path = tmp_path / 'own.json'
  schema = dpftrl.MinSep(num_rounds=9, min_sep=3)
  dpftrl.save_strategy(path, 'blt-b100', schema=schema)
  assert dpftrl.load_strategy(path).parameters() == dpftrl.load_strategy('blt-b100').parameters()
  with pytest.raises(OSError, match='needs locks between processes: use Linux'):
    with durable.locked(tmp_path / 'lock'):
      pass
  assert [file.name for file in tmp_path.iterdir()] == ['own.json']


@pytest.mark.slow
def test_what_needs_no_locks_works_and_what_does_says_so(tmp_path):
  folder = tmp_path / 'run'
  with made.aggregator(folder, 'identity', report_goal=1) as aggregator:
    made.release(aggregator, ['a'])
  environment = os.environ | {'PYTHONPATH': str(ROOT)}
  words = [sys.executable, '-c', PROGRAM, str(folder)]
  done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
  assert done.returncode == 0, done.stderr
  (refusal,) = [line for line in done.stdout.splitlines() if line.startswith('REFUSED')]
  assert 'needs locks between processes: use Linux or macOS' in refusal
  assert len(refusal) <= 300 and done.stdout.count('observed') >= 2
