"""What is built, installed and run outside the checkout."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from fl_dpftrl import version

ROOT = pathlib.Path(__file__).parents[1]
# Of the checkout, what a wheel is made from.
SOURCES = 'fl_dpftrl', 'tff_inprocess', 'matrices', 'checker'
FILES = 'pyproject.toml', 'setup.py', 'README.md', 'LICENSE'


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  """Builds wheel and source distribution from a clean tree; returns their paths."""
  tree, made = tmp_path_factory.mktemp('tree'), tmp_path_factory.mktemp('built')
  for name in SOURCES:
    shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns('__pycache__'))
  for name in FILES:
    shutil.copy(ROOT / name, tree)
  program = 'import sys; from setuptools import build_meta as b; b.build_{}(sys.argv[1])'
  for kind in ('wheel', 'sdist'):
    command = [sys.executable, '-c', program.format(kind), made]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
  (wheel,), (sdist,) = made.glob('*.whl'), made.glob('*.tar.gz')
  return wheel, sdist


def _expected():
  """Returns the files that the installed package has."""
  modules = {
    str(path.relative_to(ROOT))
    for name in ('fl_dpftrl', 'tff_inprocess')
    for path in (ROOT / name).rglob('*.py')
  }
  data = {'fl_dpftrl/__init__.pyi', 'fl_dpftrl/py.typed'}
  data.add('fl_dpftrl/prove/replaying/questions.json')
  templates = (ROOT / 'fl_dpftrl' / 'prove' / 'reports' / 'templates').iterdir()
  data |= {str(path.relative_to(ROOT)) for path in templates}
  matrices = {
    f'fl_dpftrl/matrices/{path.name}'
    for path in (ROOT / 'matrices').iterdir()
    if path.suffix in ('.json', '.npz', '.py')
  }
  return modules | data | matrices | {'fl_dpftrl/checker/prove.py'}


@pytest.mark.slow
def test_a_wheel_has_the_package_and_nothing_else(built):
  wheel, _ = built
  assert wheel.name == f'fl_dpftrl-{version.__version__}-py3-none-any.whl'
  names = set(zipfile.ZipFile(wheel).namelist())
  info = f'fl_dpftrl-{version.__version__}.dist-info/'
  assert {name for name in names if not name.startswith(info)} == _expected()
  assert f'{info}licenses/LICENSE' in names


@pytest.mark.slow
def test_a_source_distribution_has_all_that_a_wheel_is_made_from(built):
  _, sdist = built
  prefix = f'fl_dpftrl-{version.__version__}/'
  with tarfile.open(sdist) as archive:
    names = {name.removeprefix(prefix) for name in archive.getnames()}
  inside = {name.replace('fl_dpftrl/matrices/', 'matrices/') for name in _expected()}
  inside = {name.replace('fl_dpftrl/checker/', 'checker/') for name in inside}
  assert inside | set(FILES) <= names


@pytest.mark.slow
def test_an_installed_wheel_works_outside_the_checkout(built, tmp_path):
  wheel, _ = built
  place, work = tmp_path / 'installed', tmp_path / 'work'
  work.mkdir()
  pip = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index']
  subprocess.run(
    [*pip, f'--find-links={wheel.parent}', f'--target={place}', 'fl_dpftrl'], check=True
  )
  shown = subprocess.run(
    [
      *(
        sys.executable,
        '-m',
        'fl_dpftrl.commands.main',
        'account',
        '--strategy=blt-b400',
        '--json',
      ),
      *('--noise_multiplier=7.379', '--num_rounds=1280', '--min_sep=300', '--delta=1e-10'),
      '--max_participations=4',
    ],
    cwd=work,
    env={**os.environ, 'PYTHONPATH': os.fspath(place)},
    check=True,
    capture_output=True,
    text=True,
  )
  assert json.loads(shown.stdout)['epsilon'] == pytest.approx(3.458, abs=5e-4)
  place_of = 'import fl_dpftrl; print(fl_dpftrl.__file__)'
  where = subprocess.run(
    [sys.executable, '-c', place_of],
    cwd=work,
    env={**os.environ, 'PYTHONPATH': os.fspath(place)},
    check=True,
    capture_output=True,
    text=True,
  )
  assert pathlib.Path(where.stdout.strip()).is_relative_to(place)
