"""Both locks of the environment agree, and Python 3.12 gets its own with what TFF needs there."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'decisions' / 'locked-environment.md'
SHIM = ROOT / '.ci' / 'tff_on_python312.py'


def pins(name):
  """The version of each package in a lock, every one of which has a digest."""
  entries = re.findall(
    r'^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$', (ROOT / name).read_text(), re.M
  )
  found = {package: version for package, version, _ in entries}
  assert len(found) == len(re.findall('==', (ROOT / name).read_text()))
  return found


def test_versions_differ_only_where_the_page_says_so():
  older, newer = pins('requirements.lock'), pins('requirements-py312.lock')
  rows = re.findall(r'^\| `([\w-]+)` \| (\S+) \| (\S+) \|', PAGE.read_text(), re.M)
  told = {package: tuple(None if v == '–' else v for v in versions) for package, *versions in rows}
  differing = {
    package: (older.get(package), newer.get(package))
    for package in {*older, *newer}
    if older.get(package) != newer.get(package)
  }
  assert told == differing


@pytest.mark.parametrize('version', ['3.10', '3.11', '3.12'])
def test_make_takes_the_lock_of_the_version(tmp_path, version):
  python = tmp_path / 'python'
  python.write_text(f'#!/bin/sh\necho {version}\n')
  python.chmod(0o755)
  outer = ('MAKEFLAGS', 'MAKELEVEL', 'MFLAGS')  # Of the make that runs the tests.
  said = subprocess.run(
    [
      shutil.which('make'), '--dry-run', 'env', 'LOCKED=1', f'PYTHON={python}',
      f'VENV={tmp_path / "environment"}',
    ],
    cwd=ROOT, check=True, capture_output=True, text=True,
    env={name: value for name, value in os.environ.items() if name not in outer},
  ).stdout  # fmt: skip
  is_newer = version == '3.12'
  assert ('-r requirements-py312.lock\n' in said) == is_newer
  assert ('-r requirements.lock\n' in said) != is_newer
  assert (SHIM.name in said) == is_newer


def test_stub_has_classes_that_nothing_can_be_made_of():
  program = """
import tff_on_python312
from tensorflow_estimator.python.estimator import estimator
from tensorflow_estimator.python.estimator.canned import head as head_lib
head_lib._DEFAULT_SERVING_KEY
class Classifier(estimator.Estimator): pass
try:
  Classifier(1)
except NotImplementedError as error:
  print(error)
"""
  # Without site-packages, in which the estimators of older TensorFlow may be.
  said = subprocess.run(
    [sys.executable, '-S', '-c', program],
    env={'PYTHONPATH': str(SHIM.parent)},
    check=True,
    capture_output=True,
    text=True,
  ).stdout
  assert 'use Python 3.11' in said


def test_a_linked_environment_is_not_emptied(tmp_path):
  """`venv --clear` follows a link: it would empty the environment of another checkout."""
  (tmp_path / 'other').mkdir()
  (tmp_path / '.venv').symlink_to(tmp_path / 'other')
  command = [sys.executable, str(ROOT / '.ci' / 'locked.py'), '.venv.lock', 'touch', '.venv/made']
  run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
  assert run.returncode == 2
  assert run.stderr.startswith('.venv is a link to ') and run.stderr.count('\n') == 1
  assert not [*(tmp_path / 'other').iterdir()]
