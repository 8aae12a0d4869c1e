"""Both locks of the environment agree, and Python 3.12 gets its own with what TFF needs there."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'decisions' / 'locked-environment.md'


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


def test_a_linked_environment_is_not_emptied(tmp_path):
  """`venv --clear` follows a link: it would empty the environment of another checkout."""
  (tmp_path / 'other').mkdir()
  (tmp_path / '.venv').symlink_to(tmp_path / 'other')
  command = [sys.executable, str(ROOT / '.ci' / 'locked.py'), '.venv.lock', 'touch', '.venv/made']
  run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
  assert run.returncode == 2
  assert run.stderr.startswith('.venv is a link to ') and run.stderr.count('\n') == 1
  assert not [*(tmp_path / 'other').iterdir()]
