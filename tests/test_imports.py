"""The light rooms and names load neither TensorFlow nor JAX, and commands load what they need."""

import pathlib
import subprocess
import sys

import pytest

import fl_dpftrl
from tests import made

ROOT = pathlib.Path(__file__).parent.parent
HEAVY = ('jax', 'jaxlib', 'tensorflow', 'tensorflow_federated')
# Statements and simulations load no Numba, though rounds do.
COMPILE_NOTHING = 'claims logs mechanisms/files participation planning prove/replaying'
ROOMS = 'commands mechanisms prove/reports run study'
MODULES = (
  'prove.auditing support.files.durable noise.ahead noise.recurrence noise.normals'
  ' noise.integer_rows noise.snapshots'
)
NEED_TENSORFLOW = ('tff',)


def printed(program: str, *arguments: str) -> str:
  """Runs a program in a fresh interpreter, and returns what it prints."""
  done = subprocess.run(
    [sys.executable, '-c', program, *arguments], cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def loaded_by(statement: str, packages: tuple[str, ...] = HEAVY) -> set[str]:
  """Those of the packages that are loaded after a statement in a fresh interpreter."""
  return set(printed(f'{statement}\nimport sys\nprint(*sys.modules)').split()) & set(packages)


# Ends with the first of its arguments that loads a heavy package, or Numba before '--'.
_EACH = f"""
import importlib, sys
import fl_dpftrl
heavy = [*{HEAVY}, 'numba']
for name in sys.argv[1:]:
  if name == '--':
    heavy.remove('numba')
    continue
  if name.startswith('fl_dpftrl.'):
    importlib.import_module(name)
  else:
    getattr(fl_dpftrl, name)
  loaded = [package for package in heavy if package in sys.modules]
  if loaded:
    sys.exit(f'{{name}} loads {{loaded}}')
"""


def test_accounts_rounds_and_statements_load_neither_plots_nor_statistics(tmp_path):
  program = f"""
import numpy as np
import fl_dpftrl as dpftrl
with dpftrl.PrivateAggregator('identity', template=np.zeros(2), noise_multiplier=1.0, clip_norm=1.0,
                              report_goal=1, folder={str(tmp_path)!r}) as aggregator:
  with aggregator.round(['a']) as round_:
    round_.add(np.ones(2))
  aggregator.statement(1e-6)
schema = dpftrl.MinSep(num_rounds=2052, min_sep=342)
dpftrl.account('blt-b400', schema, noise_multiplier=7.0, delta=1e-6)"""
  assert not loaded_by(program, ('matplotlib', 'scipy.signal', 'scipy.stats', *HEAVY))


@pytest.mark.slow
def test_light_rooms_modules_and_names():
  modules = []
  for room in (*COMPILE_NOTHING.split(), '--', *ROOMS.split()):
    files = sorted((ROOT / 'fl_dpftrl' / room).rglob('*.py'))
    assert len(files) > 1 or room == '--'
    names = ['.'.join(path.relative_to(ROOT).with_suffix('').parts) for path in files]
    modules += [name.removesuffix('.__init__') for name in names] or ['--']
  modules += [f'fl_dpftrl.{name}' for name in MODULES.split()]
  home = lambda name: fl_dpftrl._HOMES.get(name, name).removeprefix('fl_dpftrl.').split('.')[0]
  names = [name for name in fl_dpftrl.__all__ if home(name) not in NEED_TENSORFLOW]
  printed(_EACH, *modules, *names)


@pytest.mark.slow
@made.cases(
  'arguments, packages',
  (['--help'], ('jinja2', 'matplotlib')),
  (['replay', '--help'], ('dp_accounting', 'scipy.optimize', 'scipy.signal')),
)
def test_help_loads_what_it_needs_alone(arguments, packages):
  program = f'from fl_dpftrl.commands import main\nmain.main({arguments})'
  assert not loaded_by(program, packages)


def test_the_package_itself_loads_nothing():
  assert 'numpy' not in printed('import sys, fl_dpftrl; print(*sys.modules)').split()


def test_the_guard_sees_what_is_loaded():
  assert loaded_by('import sys; sys.modules["jax"] = sys') == {'jax'}
  with pytest.raises(AssertionError, match="run.sums loads .'numba'"):
    printed(_EACH, 'fl_dpftrl.run.sums')


def test_a_name_of_tff_says_how_to_get_it():
  program = """
import sys
sys.modules |= {'tensorflow': None, 'tensorflow_federated': None}
import fl_dpftrl
try:
  fl_dpftrl.train
except ImportError as error:
  print(error)
"""
  assert printed(program).startswith('fl_dpftrl.train needs TensorFlow Federated: run `make env`')


def test_without_tff_all_names_can_be_looked_at():
  program = """
import inspect, sys
sys.modules |= {'tensorflow': None, 'tensorflow_federated': None}
import fl_dpftrl
from fl_dpftrl import *
names = dict(inspect.getmembers(fl_dpftrl))
print('Run' in names, 'train' in names)
"""
  assert printed(program).strip() == 'True False'
