"""The light rooms load neither TensorFlow nor JAX."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

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


def loaded_by(statement: str, packages: Sequence[str] = HEAVY) -> set[str]:
  """Those of the packages that are loaded after a statement in a fresh interpreter."""
  program = f'{statement}\nimport sys\nprint(*sys.modules)'
  done = subprocess.run(
    [sys.executable, '-c', program], cwd=ROOT, check=True, capture_output=True, text=True
  )
  return set(done.stdout.split()) & set(packages)


# Each room is imported by a fork of an interpreter that has what all of them
# use, so that none profits from what another one has imported of the package.
_FORKS = """
import importlib, json, os, sys
for name in ('dp_accounting', 'matplotlib', 'numpy', 'pyarrow.parquet', 'scipy.optimize'):
  importlib.import_module(name)
assert 'fl_dpftrl' not in sys.modules
for room, names in json.loads(sys.argv[1]).items():
  if not os.fork():
    for name in names:
      importlib.import_module(name)
    print(json.dumps([room, list(sys.modules)]), flush=True)
    os._exit(0)
  assert os.wait()[1] == 0, room
"""


@pytest.fixture(scope='module')
def loaded() -> dict[str, set[str]]:
  """Heavy packages by the room that loads them."""
  every = json.dumps({room: modules(room) for room in ROOMS})
  done = subprocess.run(
    [sys.executable, '-c', _FORKS, every], cwd=ROOT, check=True, capture_output=True, text=True
  )
  found = dict(map(json.loads, done.stdout.splitlines()))
  return {room: set(names) & set(HEAVY) for room, names in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize('room', ROOMS)
def test_light_rooms(loaded, room):
  assert len(modules(room)) > 1
  assert not loaded[room]


@pytest.mark.slow
def test_only_pages_and_figures_load_what_draws_them():
  assert not loaded_by(
    "from fl_dpftrl.commands import main\nmain.main(['--help'])", ('jinja2', 'matplotlib')
  )


@pytest.mark.slow
def test_light_modules():
  names = (
    'auditing',
    'error',
    'files.durable',
    'noise.ahead',
    'noise.cost',
    'noise.normals',
    'noise.reference',
    'noise.snapshots',
    'optimization.recipes',
    'participation.schemas',
    'strategies.files',
    'workloads',
  )
  assert not loaded_by('\n'.join(f'import fl_dpftrl.{n}' for n in names))


@pytest.mark.slow
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


_REPLAY = """
import sys
from fl_dpftrl.commands import main
main.main(sys.argv[1:])
print('loaded:', *(n for n in sys.modules if n.partition('.')[0] == 'fl_dpftrl'))
"""


@pytest.mark.slow
def test_a_replay_loads_few_modules(tmp_path):
  log = tmp_path / 'log.csv'
  log.write_text('round,device_id\n0,1\n1,2\n2,1\n')
  flags = ['--strategy=blt-b100', '--noise_multiplier=8', '--delta=1e-6', '--num_rounds=3']
  done = subprocess.run(
    [sys.executable, '-c', _REPLAY, 'replay', f'--log={log}', *flags],
    cwd=ROOT,
    check=True,
    capture_output=True,
    text=True,
  )
  loaded = done.stdout.splitlines()[-1].split()[1:]
  rooms = {name.split('.')[1] for name in loaded if '.' in name}
  assert not rooms & {'auditing', 'bundles', 'comparison', 'optimization', 'reports', 'training'}
  assert len(loaded) <= 90


@pytest.mark.slow
def test_the_flags_of_a_replay_load_no_mathematics():
  program = "from fl_dpftrl.commands import main\nmain.main(['replay', '--help'])"
  assert not loaded_by(program, ('dp_accounting', 'scipy.optimize', 'scipy.signal'))
