"""Files that commands write: their permissions, and what is told where they cannot be written."""

import errno
import json
import os
import stat
import subprocess
import sys

import pytest

import fl_dpftrl
from fl_dpftrl.commands import output
from tests import made

POPULATION = '--population=200 --report_goal=10 --num_rounds=6 --timer_rounds=3'
REPLAY = 'replay --log={log} --strategy=identity --noise_multiplier=3 --delta=1e-6'
SIMULATE = f'simulate {POPULATION}'
PLAN = f'plan {POPULATION} --delta=1e-6 --epsilon=4 --strategies=identity --num_simulations=1'
OPTIMIZE = 'optimize --mechanism=banded --num_rounds=8 --min_sep=4'
COMPARE = 'compare --mechanisms=identity --num_rounds=4'


@pytest.fixture(name='log')
def _log(tmp_path):
  return made.log(tmp_path / 'log.parquet', ['a', 'b', 'c'])


ASCII = {'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0', 'LC_ALL': 'C'}
LATIN = {'PYTHONIOENCODING': 'latin-1'}


def program(line, *, shell='', **environment):
  """Runs a command line as a program of its own."""
  command = f'"{sys.executable}" -m fl_dpftrl.commands.main {line} {shell}'
  environment = {**os.environ, **environment}
  return subprocess.run(command, shell=True, capture_output=True, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
  'line, environment',
  [(REPLAY, ASCII), (f'{REPLAY} --json', LATIN), (PLAN, ASCII), ('account --help', LATIN)],
)
def test_a_stream_of_any_encoding_takes_the_figures(run, path, line, environment):
  made.log(path, ['é', 'b', ''])
  status, out, _ = run(line.format(log=path))
  done = program(line.format(log=path), **environment)
  assert (done.returncode, status) == (0, 0)
  assert b'Traceback' not in done.stderr
  if '--json' in line:
    assert json.loads(done.stdout.decode('latin-1')) == json.loads(out)
  else:
    text = out.replace('ε', 'epsilon').replace('δ', 'delta').replace('−', '-')
    known = lambda text: [part for part in text.split() if part.isascii() and '\\' not in part]
    assert set(known(text)) - set(known(done.stdout.decode('latin-1'))) == set()


@pytest.mark.slow
@made.cases(
  'line, shells',
  (REPLAY, ('>&-', '<&- >&- 2>&-')),
  ('verify {log}', ('<&- >&-',)),
  ('--help', ('>&-',)),
  ('describe identity', ('<&- >&- 2>&-',)),
)
def test_a_stream_that_is_closed_takes_nothing_away(run, log, tmp_path, line, shells):
  line = line.format(log=log)
  report = f' --report={tmp_path}/report.html' if 'replay' in line else ''
  status, _, err = run(line + report)
  for shell in shells:
    (tmp_path / 'report.html').unlink(missing_ok=True)
    done = program(line + report, shell=shell)
    assert done.returncode == status and done.stdout == b''
    assert done.stderr.decode() == ('' if '2>' in shell else err)
    assert not report or (tmp_path / 'report.html').exists()


@pytest.fixture(name='umask')
def fixture_umask():
  old = os.umask(0o022)
  yield
  os.umask(old)


def modes(folder):
  """Permissions of all files in a folder, by name."""
  return {
    str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
    for path in folder.rglob('*')
    if path.is_file()
  }


@pytest.mark.slow
@pytest.mark.usefixtures('umask')
def test_what_tells_of_devices_is_for_the_operator_alone(run, log, tmp_path):
  log.chmod(0o600)
  for line in (
    f'{REPLAY} --report={tmp_path}/privacy.html --public_report={tmp_path}/public.html',
    f'{SIMULATE} --output={tmp_path}/simulated.parquet',
    f'{PLAN} --report_goals=20 --output={tmp_path}/plan.json',
    f'{OPTIMIZE} --output={tmp_path}/banded.json',
    f'{COMPARE} --output={tmp_path}/compared',
  ):
    assert run(line.format(log=log))[0] == 0
  found = modes(tmp_path)
  private = {'log.parquet', 'privacy.html', 'simulated.parquet'}
  assert {name: found.pop(name) for name in private} == dict.fromkeys(private, 0o600)
  assert len(found) == 6 and set(found.values()) == {0o644}


@made.cases(
  'line, flag',
  (REPLAY, 'report={folder}/page.html'),
  (REPLAY, 'public_report={folder}/page.html'),
  (REPLAY, 'evidence={folder}/evidence'),
  (REPLAY, 'registry={folder}/entry.json'),
  (SIMULATE, 'output={folder}/log.parquet'),
  (SIMULATE, 'output_scenario={folder}/scenario.json'),
  (PLAN, 'output={folder}/strategy.json'),
  (OPTIMIZE, 'output={folder}/strategy.json'),
  (COMPARE, 'output={folder}'),
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


@made.cases(
  'line, words',
  (f'{REPLAY} --report={{page}}', 'ε'),
  (f'{REPLAY} --json --public_report={{page}}', '"epsilon"'),
)
def test_figures_are_printed_before_a_page_fails(run, log, tmp_path, monkeypatch, line, words):
  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  page = tmp_path / 'page.html'
  status, out, err = run(line.format(log=log, page=page))
  assert status == 2 and words in out
  assert err.splitlines()[-1].endswith(f'{page}: No space left on device')
  assert os.listdir(tmp_path) == ['log.parquet']


def test_a_refused_log_is_named_by_its_own_path_and_not_by_its_copy(tmp_path):
  log = tmp_path / 'log.csv'
  log.write_text('round,device_id\n0,a\n0,a\n')
  run = fl_dpftrl.open_run(log, 'identity', noise_multiplier=2.0)
  with pytest.raises(ValueError) as error:
    fl_dpftrl.write_evidence(tmp_path / 'evidence', run, delta=1e-6)
  assert str(error.value) == f"{log}, row 2: device 'a' is twice in round 0"
  assert os.listdir(tmp_path) == ['log.csv']


@pytest.mark.slow
def test_a_file_that_cannot_be_replaced_is_named_and_nothing_is_half_written(run, tmp_path):
  (tmp_path / 'comparison.csv').mkdir()
  status, out, err = run(f'{COMPARE} --output={tmp_path}')
  assert (status, out, err.count('\n')) == (2, '', 1) and 'comparison.csv: ' in err
  assert os.listdir(tmp_path) == ['comparison.csv']


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
