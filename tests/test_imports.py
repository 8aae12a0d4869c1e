"""The light rooms load neither TensorFlow nor JAX."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
HEAVY = ('jax', 'jaxlib', 'tensorflow', 'tensorflow_federated')
ROOMS = (
  'accounting',
  'centralized',
  'commands',
  'comparison',
  'families',
  'logs',
  'noise/engine',
  'optimization',
  'planning',
  'replaying',
  'reports',
  'sensitivity',
  'simulation',
)


def modules(room: str) -> list[str]:
  return [
    f'fl_dpftrl.{room.replace("/", ".")}.{path.stem}'.removesuffix('.__init__')
    for path in sorted((ROOT / 'fl_dpftrl' / room).glob('*.py'))
  ]


def loaded_by(statement: str) -> set[str]:
  """Heavy packages that are loaded after a statement in a fresh interpreter."""
  program = f'{statement}\nimport sys\nprint(*sys.modules)'
  done = subprocess.run(
    [sys.executable, '-c', program], cwd=ROOT, check=True, capture_output=True, text=True
  )
  return set(done.stdout.split()) & set(HEAVY)


@pytest.mark.parametrize('room', ROOMS)
def test_light_rooms(room):
  names = modules(room)
  assert len(names) > 1
  assert not loaded_by('\n'.join(f'import {name}' for name in names))


def test_light_modules():
  names = (
    'addresses',
    'auditing',
    'catalogue',
    'digests',
    'error',
    'files',
    'participation',
    'recipes',
    'schedules',
    'workloads',
    'worker_program',
    'noise.base',
    'noise.reference',
  )
  assert not loaded_by('\n'.join(f'import fl_dpftrl.{n}' for n in names))


def test_light_names_of_the_package():
  assert not loaded_by(
    'import fl_dpftrl\n'
    'strategy = fl_dpftrl.load_strategy("blt-b400")\n'
    'schema = fl_dpftrl.MinSep(num_rounds=2052, min_sep=342)\n'
    'fl_dpftrl.account(strategy, schema, noise_multiplier=7.0, delta=1e-6)'
  )


def test_the_package_itself_loads_nothing():
  program = 'import sys, fl_dpftrl; print(*sys.modules)'
  done = subprocess.run(
    [sys.executable, '-c', program], cwd=ROOT, check=True, capture_output=True, text=True
  )
  assert 'numpy' not in done.stdout.split()


def test_the_guard_sees_what_is_loaded():
  assert loaded_by('import sys; sys.modules["jax"] = sys') == {'jax'}
