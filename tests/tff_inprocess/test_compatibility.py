"""What lets TFF run beside current packages: all of it together, and each part is still needed.

In the process that has all of it, a program runs that has nothing of fl_dpftrl.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tff_inprocess import memory

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = [pytest.mark.tff, pytest.mark.slow]

# TensorFlow is imported once, and forked for each of the parts that may be missing.
PROGRAM = """
import atexit, os, runpy, sys
import tensorflow as tf, tff_compatibility as without
print(runpy.run_path({memory!r})['uses_one_dnn'](), flush=True)
for name, part in {parts}.items():
  if not os.fork():
    os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), 2)
    break
  os.wait()
else:
  os._exit(0)
exec(part)
import tensorflow_federated as tff
print('Slow:', sorted({{'keras', 'sklearn'}} & set(sys.modules)), file=sys.stderr)
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
loss = tf.keras.losses.MeanSquaredError()
tff.learning.models.from_keras_model(model, loss=loss, input_spec=spec)
runpy.run_path('in_process.py', run_name='__main__')  # Only where nothing is missing.
sys.stdout.flush()
tff.jax.computation(lambda x: x)
"""
OTHERS = """for name in list(without.STUBS)[2:]: del without.STUBS[name]
del os.environ['TF_USE_LEGACY_KERAS']
atexit.unregister(without.end_worker)"""
STUB = 'del without.STUBS[list(without.STUBS)[{}]]'
PARTS = dict(nothing='', jax=STUB.format(0), estimators=STUB.format(1), others=OTHERS)


@pytest.fixture(name='streams', scope='module')
def fixture_streams(tmp_path_factory, request):
  """What TFF prints without each of these, and the output of the program.

  That a part is still needed depends on no code of this repository, and is seen by --thorough.
  """
  parts = PARTS if request.config.getoption('--thorough') else {'nothing': ''}
  folder = tmp_path_factory.mktemp('errors')
  shutil.copytree(ROOT / 'tff_inprocess', folder / 'tff_inprocess')
  shutil.copy(ROOT / 'examples/in_process.py', folder)
  package = folder / 'fl_dpftrl'  # Of it, no more than the room that imports no other.
  shutil.copytree(ROOT / 'fl_dpftrl/support', package / 'support')
  (package / '__init__.py').touch()
  environment = {name: v for name, v in os.environ.items() if name != 'TF_USE_LEGACY_KERAS'}
  environment |= {'PYTHONPATH': str(folder), 'TF_ENABLE_ONEDNN_OPTS': '1'}  # Of these tests: 0.
  program = PROGRAM.format(parts=parts, memory=str(folder / 'tff_inprocess' / 'memory.py'))
  done = subprocess.run(
    [sys.executable, '-c', program], env=environment, cwd=folder, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  return {name: (folder / name).read_text() for name in parts}, done.stdout.splitlines()


@pytest.fixture(name='errors', scope='module')
def fixture_errors(streams):
  return streams[0]


def test_a_program_that_knows_no_privacy_runs_in_process(streams):
  losses = [float(line.split()[-1]) for line in streams[1][1:]]
  assert len(losses) == 10 and losses[-1] < 0.01 < losses[0]


def test_a_process_that_uses_onednn_is_seen(streams):
  """Its clients train one at a time; see test_clients.py."""
  errors, lines = streams
  assert lines[0] == 'True' and not memory.uses_one_dnn()
  assert 'clients train one at a time' in errors['nothing']


def test_models_are_built_and_no_worker_complains_at_the_end(errors):
  assert 'jax_computation needs JAX before 0.5' in errors['nothing']
  assert 'Exception ignored' not in errors['nothing']
  assert 'Slow: []' in errors['nothing']


@pytest.mark.thorough
def test_each_stub_is_needed(errors):
  assert "cannot import name 'xla_client'" in errors['jax']
  assert "No module named 'tensorflow_estimator'" in errors['estimators']


@pytest.mark.thorough
def test_old_keras_an_end_of_the_worker_and_empty_modules_are_needed(errors):
  assert "Slow: ['keras', 'sklearn']" in errors['others']
  assert "has no attribute '_is_compiled'" in errors['others']
  # Python 3.13 takes modules away.
  assert 'Exception ignored' in errors['others'] or sys.version_info < (3, 13)
