"""Compiled loops give the same bits on every machine, and need no folder that can be written."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms.families import blt, identity, lambda_cgd, tree_online
from fl_dpftrl.noise import integer_rows, normals
from fl_dpftrl.run import sums

ROOT = pathlib.Path(__file__).parents[3]
FAMILIES = {
  'identity': identity.Identity(),
  'tree_online': tree_online.TreeOnline(),
  'blt': blt.BLT((0.9999, 0.8), (0.1, 0.2)),
  'lambda_cgd': lambda_cgd.LambdaCGD(0.7),
}
# In a fresh interpreter: a loop that is compiled, and what it gives.
PROGRAM = """
import numpy as np
from fl_dpftrl.support.kernels import device_loops as seen
keys, numbers = np.zeros(8, np.uint64), np.full(8, -1, np.int32)
print(seen.number(np.array([5, 3, 5], np.uint64), keys, numbers, 0, True)[0].tolist())
"""


ROWS = {
  'identity': '923f873a8fda4330',
  'tree_online': 'db9666bb6651e4e1',
  'blt': 'e866aff72e25f8c5',
  'lambda_cgd': 'd6890cbba62578d7',
}
SUMS = {'float32': '19c372be0efafe22', 'float64': 'cea3457961cd0393'}


def digest_of_rows(family):
  size = normals.CHUNK + 1001
  maker = integer_rows.RowMaker(
    FAMILIES[family], size=size, num_rounds=20, seed=bytes(range(32)), num_threads=1
  )
  bits, row = hashlib.sha256(), np.empty(size, np.int64)
  for _ in range(20):
    maker.make(row)
    bits.update(row)
  bits.update(maker.buffers + 0.0)
  return bits.hexdigest()[:16]


def digest_of_sums(kind):
  drawn = np.random.default_rng(0).integers(-(2**20), 2**20, (7, 3001))
  updates = (drawn * np.geomspace(0.01, 2.0, 7)[:, None] / 2.0**25).astype(kind)
  total = sums.Sum(3001, unit=lattice_units.Unit.of(0.7))
  total.begin(0.9)
  assert set(total.add([updates])) == {'kept', 'clipped'}
  return hashlib.sha256(total.total).hexdigest()[:16]


@pytest.mark.parametrize('family', ROWS)
def test_rows_have_these_bits(family):
  """Whatever the processor, the release of LLVM or that of Numba."""
  assert digest_of_rows(family) == ROWS[family]


@pytest.mark.parametrize('kind', SUMS)
def test_sums_have_these_bits(kind):
  assert digest_of_sums(kind) == SUMS[kind]


@pytest.mark.slow
def test_a_processor_without_vectors_makes_the_same_bits(tmp_path):
  """Loops are compiled for no processor in particular, and NumPy leaves out what it can choose."""
  program = """
import json
import numpy as np
from numba.core import registry
from tests.support.kernels import test_compiled as these
found = {name: these.digest_of_rows(name) for name in these.ROWS}
found |= {kind: these.digest_of_sums(kind) for kind in these.SUMS}
features = np._core._multiarray_umath
chosen = [one for one in features.__cpu_dispatch__ if features.__cpu_features__[one]]
_, name, has = registry.cpu_target.target_context.codegen().magic_tuple()
print(json.dumps([found, chosen, name, has]))"""
  features = ' '.join(np._core._multiarray_umath.__cpu_dispatch__)
  variables = {'NUMBA_CPU_NAME': 'generic', 'NUMBA_CPU_FEATURES': ''}
  variables |= {'NPY_DISABLE_CPU_FEATURES': features, 'NUMBA_CACHE_DIR': str(tmp_path)}
  command = [sys.executable, '-W', 'ignore', '-c', program]
  environment = os.environ | variables | {'PYTHONPATH': str(ROOT)}
  done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
  assert not done.returncode, done.stderr
  assert json.loads(done.stdout) == [ROWS | SUMS, [], 'generic', '']


def started(folder, *before, **variables):
  """Starts the program with the room alone, from a folder."""
  environment = {name: os.environ[name] for name in ('PATH', 'LANG') if name in os.environ}
  return subprocess.Popen(
    [*before, sys.executable, '-c', PROGRAM],
    cwd=folder,
    env=environment | {'PYTHONPATH': '.'} | variables,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.fixture
def room(tmp_path):
  """Copies the room to a folder, without what is compiled."""
  shutil.copytree(
    ROOT / 'fl_dpftrl/support/kernels',
    tmp_path / 'fl_dpftrl/support/kernels',
    ignore=shutil.ignore_patterns('__pycache__'),
  )
  for place in ('fl_dpftrl', 'fl_dpftrl/support'):  # Before a package that is installed.
    (tmp_path / place / '__init__.py').touch()
  return tmp_path


def test_two_processes_at_once_fill_one_cache(room):
  """Without HOME, too."""
  for program in [started(room) for _ in range(2)]:
    assert program.communicate() == ('[0, 1, 0]\n', '')
  cache = {path: path.stat().st_mtime_ns for path in room.rglob('*.nbc')}
  assert cache and not program.returncode
  assert started(room).communicate() == ('[0, 1, 0]\n', '')
  assert {path: path.stat().st_mtime_ns for path in room.rglob('*.nbc')} == cache


def test_loops_are_compiled_where_nothing_can_be_written(room):
  (
    room / 'fl_dpftrl/support/kernels/__pycache__'
  ).touch()  # Not a folder, which root could write to.
  variables = {'HOME': os.devnull, 'XDG_CACHE_HOME': os.devnull, 'PYTHONDONTWRITEBYTECODE': '1'}
  out, err = started(room, **variables).communicate()
  assert out == '[0, 1, 0]\n'
  (line,) = err.splitlines()
  assert line.startswith('no folder for compiled loops can be written') and len(line) <= 300


@pytest.mark.skipif(
  os.geteuid() != 0 or shutil.which('setpriv') is None, reason='becomes a user without a name'
)
@pytest.mark.parametrize('is_writable', [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_user_without_a_name_and_a_home_leaves_nothing_behind(room, is_writable):
  """Also where the current folder can be written, by all."""
  room.chmod(0o777 if is_writable else 0o755)
  can_read = [f'--{kind}-caps=+dac_read_search' for kind in ('inh', 'ambient')]
  user = ['setpriv', '--reuid=54321', '--regid=54321', '--clear-groups', *can_read]
  out, err = started(room, *user).communicate()
  assert out == '[0, 1, 0]\n' and err.startswith('no folder for compiled loops can be written')
  assert [path.name for path in room.iterdir()] == ['fl_dpftrl'] and len(err.splitlines()) == 1


@pytest.mark.slow
def test_make_env_compiles_what_a_first_round_needs(tmp_path):
  environment = os.environ | {'NUMBA_CACHE_DIR': str(tmp_path / 'cache'), 'PYTHONPATH': str(ROOT)}
  program = f"""
import numpy as np
import fl_dpftrl as dpftrl
for name, kind in (('blt-b400', np.float32), ('identity', np.float64)):
  with dpftrl.PrivateAggregator(name, template=np.zeros(2000, kind), noise_multiplier=1.0,
      clip_norm=1.0, report_goal=1, folder={str(tmp_path)!r} + '/' + name) as aggregator:
    with aggregator.round(['a']) as round_:
      round_.add(np.ones(2000, kind))"""
  counts = []
  for arguments in ([str(ROOT / '.ci/warm.py')], ['-c', program]):
    subprocess.run([sys.executable, *arguments], env=environment, cwd=tmp_path, check=True)
    counts.append(len([*(tmp_path / 'cache').rglob('*.nbc')]))
  assert counts[0] == counts[1] > 8
