"""The page on production: its container, by namespaces in its place, and what it says of a run."""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.noise import integer_rows
from fl_dpftrl.support.files import mark
from tests import made, pages
from tests.commands import lines
from tests.docs import container

ROOT = pages.DOCS.parent
TEXT = (pages.DOCS / 'production.md').read_text()
PROBE = """
import json, os, socket
def refused(path):
  try:
    open(path, 'w')
  except OSError as error:
    return error.strerror
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
paths = '/x', '/etc/x', os.path.expanduser('~/x'), '/tmp/data/x'
try:
  socket.create_connection(('10.0.0.1', 80), 1)
  network = None
except OSError as error:
  network = error.strerror
print(json.dumps({
  'user': os.getuid(), 'home': os.environ.get('HOME'), 'rights': int(status['CapEff'], 16),
  'writes': [refused(path) for path in paths], 'network': network,
  'remounts': os.system('mount -o remount,rw / 2> /dev/null') == 0,
}))
"""


def contained(data, *command) -> subprocess.CompletedProcess:
  """Runs a command of this Python's environment in a container, which sees `data` as /tmp/data."""
  if sys.platform != 'linux':
    pytest.skip('namespaces are of Linux')
  words = [sys.executable, container.__file__, data, *command]
  done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
  if done.returncode == container.FORBIDDEN:
    pytest.skip(done.stderr.strip())
  return done


def test_a_contained_process_is_nobody_and_writes_only_its_volume(tmp_path):
  done = contained(tmp_path, sys.executable, '-c', PROBE)
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout) == {
    'user': 10001,
    'home': None,
    'rights': 0,
    'writes': 2 * ['Read-only file system'] + ['No such file or directory', None],
    'network': 'Network is unreachable',
    'remounts': False,
  }
  assert (tmp_path / 'x').exists()


@pytest.mark.slow
def test_a_contained_run_and_its_evidence_need_only_the_volume(tmp_path):
  program = pathlib.Path(sys.executable).parent / 'fl-dpftrl'
  # Twelve rounds: each device is turned away once, and no file of the run comes later.
  text = (ROOT / 'examples/any_loop.py').read_text()
  (tmp_path / 'loop.py').write_text(text.replace(', 20, 60\n', ', 20, 12\n'))
  flags = '--delta=1e-6 --evidence=/tmp/data/evidence --report=/tmp/data/privacy.html'
  script = (
    f'{sys.executable} /tmp/data/loop.py /tmp/data/run\n{program} replay /tmp/data/run {flags}'
  )
  done = contained(tmp_path, '/bin/sh', '-ec', script)
  assert done.returncode == 0, done.stderr
  (line,) = done.stderr.splitlines()  # No warning that a folder cannot be written.
  assert line.startswith('fl-dpftrl: digest of /tmp/data/evidence')
  assert 'round 12: ' in done.stdout and 'round 13: ' not in done.stdout
  assert dpftrl.verify(tmp_path / 'evidence').passed and (tmp_path / 'privacy.html').exists()


def test_the_page_starts_the_image_with_the_restrictions_of_these_tests():
  assert re.search(r'^USER 10001:10001$', container.IMAGE, re.MULTILINE)
  assert 'HOME' not in container.IMAGE
  folders = [container.VARIABLES[n] for n in ('TMPDIR', 'NUMBA_CACHE_DIR', 'MPLCONFIGDIR')]
  assert {folder.split('/')[1] for folder in folders} == {'tmp'}
  (command,) = re.findall(r'^docker run (.*?)^```$', TEXT, re.DOTALL | re.MULTILINE)
  flags = ['--read-only', '--tmpfs=/tmp', '--cap-drop=ALL', '--network=none', '--init']
  assert [flag for flag in flags if flag not in command] == []


def opened(folder, **arguments):
  budget = dict(max_epsilon=50.0, delta=1e-6, participation=made.SCHEMA)
  return made.aggregator(folder, metrics={'loss': 1.0}, **budget, **arguments)


def modes(folder):
  """Returns the modes of a run's files by the names on the page; those in a folder are one."""
  found = {}
  for path in [folder, *folder.rglob('*')]:
    name = path.relative_to(folder).parts[:1] or (folder.name,)
    mode = f'{stat.S_IMODE(path.stat().st_mode):o}'
    is_inside = path.parent not in (folder, folder.parent)
    name = name[0] + '/' * (path.is_dir() or is_inside)
    found[name, 'in it ' * is_inside + mode] = None
  return found


@pytest.mark.slow
def test_modes_of_files_are_those_of_the_page(tmp_path):
  stated = {
    (name, mode)
    for names, _, cell in pages.rows('production.md', 'file of any loop')
    for name in re.findall('`(.*?)`', names)
    for mode in cell.split('; ')
  }
  folder, previous = tmp_path / 'run', os.umask(0o022)
  try:
    folder.mkdir()
    watching = [
      dpftrl.observers.JsonLines(folder / 'events.jsonl'),
      dpftrl.observers.OpenMetrics(folder / 'run.prom'),
    ]
    with opened(folder, observers=watching) as aggregator:
      for t in range(4):
        made.release(aggregator, [f'a{t % 2}', f'b{t % 2}'])
      found = modes(folder)
      aggregator.report(folder / 'privacy.html')
    words = ['replay', folder, '--delta=1e-6', f'--evidence={folder}/evidence']
    done = lines.run([*map(str, words), f'--public_report={folder}/public.html'])
    assert done.returncode == 0, done.stderr
  finally:
    os.umask(previous)
  assert {*found, *modes(folder)} == stated


def test_an_upgrade_is_rehearsed_on_a_copy_that_is_thrown_away(tmp_path, monkeypatch):
  with opened(tmp_path / 'run') as aggregator:
    made.release(aggregator, ['a', 'b'])
  shutil.copytree(tmp_path / 'run', tmp_path / 'copy')
  with pytest.raises(mark.LostStateError, match='is a copy'):
    opened(tmp_path / 'copy')
  with opened(tmp_path / 'copy', moved=True) as aggregator:
    made.release(aggregator, ['made-up 1', 'made-up 2'])
  shutil.copytree(tmp_path / 'run', tmp_path / 'other')
  with monkeypatch.context() as patched:
    patched.setattr(integer_rows, 'VERSION', integer_rows.VERSION + 1)
    with pytest.raises(ValueError, match='has the noise of another release'):
      opened(tmp_path / 'other', moved=True)
  with opened(tmp_path / 'run') as aggregator:  # Untouched by all of it.
    made.release(aggregator, ['c', 'd'])
    assert aggregator.next_round == 2


def test_alerts_name_figures_that_a_run_writes(tmp_path):
  path = tmp_path / 'run.prom'
  with opened(tmp_path / 'run', observers=[dpftrl.observers.OpenMetrics(path)]) as aggregator:
    made.release(aggregator, ['a', 'b'])
  written = set(re.findall(r'^(fl_dpftrl_\w+)\{', path.read_text(), re.MULTILINE))
  rules = re.findall(r"^ *- \{alert: \w+, expr: '(.*)'\}$", TEXT, re.MULTILINE)
  assert len(rules) == 6
  named = {name for rule in rules for name in re.findall(r'fl_dpftrl_\w+', rule)}
  # Only a run with a loss budget has the share of devices: tests/run/observers has it.
  assert named - {'fl_dpftrl_devices_with_budget'} <= written


def test_coordinators_that_share_devices_share_a_budget(tmp_path):
  """The page: S coordinators with √S times the noise spend together what one spends."""
  cohorts = [[f'a{t % 2}', f'b{t % 2}'] for t in range(20)]
  logs = [made.log(tmp_path / f'{name}.parquet', cohorts) for name in ('first', 'second')]
  runs = [dpftrl.open_run(log, made.BLT, noise_multiplier=5.0 * 2.0**0.5) for log in logs]
  together = dpftrl.replay(runs, delta=1e-6).worst_case
  single = dpftrl.account(made.BLT, dpftrl.MinSep(20, 2), noise_multiplier=5.0, delta=1e-6)
  assert together.epsilon() == pytest.approx(single.epsilon(), rel=1e-9)
