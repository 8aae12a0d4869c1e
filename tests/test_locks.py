"""The locks, and what `make env` says where no Python serves."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize('lock', sorted(path.name for path in ROOT.glob('requirements*.lock')))
def test_each_pin_has_a_digest(lock):
  text = (ROOT / lock).read_text()
  entries = re.findall(r'^[\w.-]+==[^\s;]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+$', text, re.M)
  assert '\n'.join(entries) + '\n' == text


@pytest.mark.parametrize('version', ['3.10', '3.14'])
def test_make_says_in_a_line_which_python_to_install(tmp_path, version):
  """The stand-in answers as a Python of another version does."""
  python = tmp_path / 'python'
  python.write_text(
    f'#!{sys.executable}\nimport sys\nsys.version_info = (3, {version[2:]})\nexec(sys.argv[2])\n'
  )
  python.chmod(0o755)
  outer = ('MAKEFLAGS', 'MAKELEVEL', 'MFLAGS')  # Of the make that runs the tests.
  run = subprocess.run(
    [shutil.which('make'), 'env', f'PYTHON={python}', f'VENV={tmp_path / "environment"}'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    env={name: value for name, value in os.environ.items() if name not in outer},
  )
  line, _ = run.stderr.splitlines()  # The other one is make's own.
  assert run.returncode == 2 and len(line) <= 300
  for words in ('Python 3.11 to 3.13', '3.14 is not final', 'Debian: apt', 'Ubuntu: ', 'macOS, '):
    assert words in line
  assert not (tmp_path / 'environment').exists()


# Makes an environment of itself, once another process waits for it; pip has nothing to do.
STAND_IN = f"""#!/bin/sh
case "$*" in
  *" venv "*)
    until grep -q waiting *.said; do sleep 0.1; done
    mkdir -p env/bin
    cp "$0" env/bin/python;;
  *" /dev/stdin"*) cat >> pins-$$;;
  *" pip "*|*" compileall "*) ;;
  *) exec {sys.executable} "$@";;
esac
"""


def test_of_two_makes_one_sets_up_the_environment(tmp_path):
  python = tmp_path / 'python'
  python.write_text(STAND_IN)
  python.chmod(0o755)
  (tmp_path / 'pins.txt').write_text('')
  script = str(ROOT / '.ci' / 'environment.py')
  command = [sys.executable, script, 'env', 'pins.txt', f'--python={python}']

  def start(name, *more):
    with open(tmp_path / f'{name}.said', 'w') as said:
      return subprocess.Popen([*command, *more], cwd=tmp_path, stderr=said)

  def said(*names):
    return ''.join((tmp_path / f'{name}.said').read_text() for name in names)

  assert [process.wait(60) for process in [start(1), start(2)]] == [0, 0]
  assert said(1, 2).count('Setting up') == said(1, 2).count('waiting') == 1
  assert start(3).wait(60) == 0 and not said(3)  # It is there.
  (tmp_path / 'pins.txt').write_text('# changed')
  assert start(4, '--', 'false').wait(60) == 1 and 'Setting up' in said(4)


def test_each_pin_of_a_lock_is_installed_once(tmp_path):
  python = tmp_path / 'python'
  python.write_text(STAND_IN)
  python.chmod(0o755)
  pins = [
    f'package{i}==1.{i} \\\n    --hash=sha256:{i}a \\\n    --hash=sha256:{i}b' for i in range(5)
  ]
  (tmp_path / '1.said').write_text('waiting')  # The stand-in looks for another process.
  (tmp_path / 'pins.lock').write_text('# comment\n' + '\n'.join(pins) + '\n')
  script = str(ROOT / '.ci' / 'environment.py')
  command = [sys.executable, script, 'env', 'pins.lock', f'--python={python}']
  subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
  parts = [path.read_text() for path in tmp_path.glob('pins-*')]
  assert sorted(re.split('\n(?=p)', '\n'.join(parts))) == pins and len(parts) == 2
  python.write_text(STAND_IN.replace('cat >> pins-$$', 'exit 1'))
  (tmp_path / 'env' / 'installed').unlink()
  failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
  assert failed.returncode == 1 and 'Traceback' not in failed.stderr
  assert not (tmp_path / 'env' / 'installed').exists()


def test_a_linked_environment_is_not_emptied(tmp_path):
  """`venv --clear` follows a link: it would empty the environment of another checkout."""
  (tmp_path / 'other').mkdir()
  (tmp_path / '.venv').symlink_to(tmp_path / 'other')
  command = [
    sys.executable,
    str(ROOT / '.ci' / 'environment.py'),
    '.venv',
    '--',
    'touch',
    '.venv/made',
  ]
  run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
  assert run.returncode == 2
  assert run.stderr.startswith('.venv is a link to ') and run.stderr.count('\n') == 1
  assert not [*(tmp_path / 'other').iterdir()]
