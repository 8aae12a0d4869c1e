import fcntl
import gc
import importlib.util
import os
import pathlib
import shutil
import signal
import tempfile

# Must be set before TensorFlow is imported: its start is loud.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')  # Several clients at a time.

import hypothesis
import pytest

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms import undoing
from fl_dpftrl.mechanisms.files import documents
from fl_dpftrl.mechanisms.sensitivities import gram_search

# Syncs take a quarter of the time of tests on a disk. What a loss of power takes away is up to the
# `Disk` of tests/run/test_protocol.py, wherever its files are.
_MEMORY = '/dev/shm'
if 'TMPDIR' not in os.environ and os.access(_MEMORY, os.W_OK):
  if shutil.disk_usage(_MEMORY).free >= 8 << 30:
    os.environ['TMPDIR'] = tempfile.tempdir = _MEMORY

# TensorFlow has a million objects: to look through them for garbage takes up to a
# tenth of the time of its tests, where it is done as often as Python does by itself.
gc.set_threshold(50_000, 20, 50)

# A shell's background job ignores interrupts, and tests send some.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Folders of tests that start training.
_TRAIN = ('experiments',)
# The cluster of this process while it is needed.
_CLUSTERS = []

# The same examples each time; with --thorough others, and many more.
hypothesis.settings.register_profile(
  'quick', deadline=None, max_examples=25, derandomize=True, database=None
)
hypothesis.settings.register_profile('thorough', deadline=None, max_examples=300, print_blob=True)


def pytest_addoption(parser):
  parser.addoption(
    '--thorough',
    action='store_true',
    help='run tests marked thorough too, and many random examples in property tests',
  )


def pytest_configure(config):
  thorough = config.getoption('--thorough')
  hypothesis.settings.load_profile('thorough' if thorough else 'quick')


def pytest_collection_modifyitems(config, items):
  marks = [] if config.getoption('--thorough') else ['thorough']
  marks += [] if importlib.util.find_spec('tensorflow_federated') else ['tff']
  left_out = [item for item in items if any(map(item.get_closest_marker, marks))]
  if left_out:
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not any(map(item.get_closest_marker, marks))]
  _put_long_modules_first(items)


def pytest_runtest_setup(item):
  # A library that an earlier test uses may have a handler of its own, which lets nothing be raised.
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session):
  gc.collect()
  gc.freeze()


def _put_long_modules_first(items):
  """Sorts modules so that no long test is left when other processes have nothing to do."""
  slow = {item.path for item in items if item.get_closest_marker('slow')}
  items.sort(
    key=lambda item: (
      'cluster' not in item.fixturenames,
      item.path.parent.name not in _TRAIN,
      item.path not in slow,
    )
  )


@pytest.fixture(autouse=True, scope='session')
def computed_once():
  """Pure functions that meet the same strategies and Gram matrices in test after test."""
  check, farthest = undoing.check_undoes, lattice_units.Unit.farthest
  worst_square, limits = gram_search.worst_square, ('_MOST_STEPS', '_MOST_VISITS', '_MOST_SIGNED')
  known = {}

  def once(compute, *key):
    if key not in known:
      known[key] = compute()
    return known[key]

  def of_strategy(compute, strategy, *of):  # Up to a second at 4096 rounds.
    each = (strategy, getattr(strategy, 'strategy', strategy))  # A stamped one has another inside.
    if not all(type(one).__module__.startswith('fl_dpftrl.') for one in each):
      return compute()
    return once(compute, documents.strategy_digest(strategy), *of)

  def check_undoes(strategy, noise, *rounds):
    of_strategy(lambda: check(strategy, noise, *rounds), strategy, *rounds)

  def farthest_of(unit, strategy):
    return of_strategy(lambda: farthest(unit, strategy), strategy, unit.shift, 'farthest')

  def worst(gram, *of):
    bounds = (getattr(gram_search, limit) for limit in limits)
    return once(lambda: worst_square(gram, *of), gram.tobytes(), *of, *bounds)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(undoing, 'check_undoes', check_undoes)
    patch.setattr(lattice_units.Unit, 'farthest', farthest_of)
    patch.setattr(gram_search, 'worst_square', worst)
    yield


@pytest.fixture
def path(tmp_path):
  """Path of a log in a folder of the test."""
  return tmp_path / 'log.parquet'


@pytest.fixture(scope='module')
def cluster():
  """A Ray cluster of two machines, which both are this one."""
  return _CLUSTERS[0] if _CLUSTERS else _started_cluster()


def _started_cluster():
  cluster_utils = pytest.importorskip('ray.cluster_utils')
  # On a machine that is busy, its processes take their time.
  os.environ.setdefault('RAY_raylet_start_wait_time_s', '300')
  # Ray gives its workers low priority: on a busy machine, tests would wait for them.
  os.environ.setdefault('RAY_worker_niceness', '0')
  node = dict(num_cpus=1, object_store_memory=100_000_000)
  # Ray gives a node 30 seconds to start, which two clusters at a time may both exceed.
  with open(pathlib.Path(tempfile.gettempdir()) / 'fl_dpftrl-cluster.lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    for attempts_left in (2, 1, 0):
      made = cluster_utils.Cluster()
      try:
        made.add_node(**node, include_dashboard=False)
        made.add_node(**node)
        break
      except Exception:
        made.shutdown()
        if not attempts_left:
          raise
  _CLUSTERS.append(made)
  return made


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
  """Ends the cluster after the last of its tests, which come first: its idle processes compute."""
  if _CLUSTERS and (nextitem is None or 'cluster' not in nextitem.fixturenames):
    import ray

    ray.shutdown()
    _CLUSTERS.pop().shutdown()  # By its processes: `ray stop` ends every cluster of this machine.
