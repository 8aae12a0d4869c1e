"""What lets TFF run beside current packages: all of it together, and each part is still needed."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.tff, pytest.mark.slow]

# TensorFlow is imported once, and forked for each of the parts that may be missing.
PROGRAM = """
import atexit, os, sys
import tensorflow as tf, tff_compatibility as without
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
tff.jax.computation(lambda x: x)
"""
OTHERS = """for name in list(without.STUBS)[2:]: del without.STUBS[name]
del os.environ['TF_USE_LEGACY_KERAS']
atexit.unregister(without.end_worker)"""
STUB = 'del without.STUBS[list(without.STUBS)[{}]]'
PARTS = dict(nothing='', jax=STUB.format(0), estimators=STUB.format(1), others=OTHERS)


@pytest.fixture(scope='module')
def errors(tmp_path_factory):
  """What TFF prints without each of these."""
  environment = {name: v for name, v in os.environ.items() if name != 'TF_USE_LEGACY_KERAS'}
  folder = tmp_path_factory.mktemp('errors')
  program = [sys.executable, '-c', PROGRAM.format(parts=PARTS)]
  subprocess.run(program, env=environment, cwd=folder, capture_output=True, check=True)
  return {name: (folder / name).read_text() for name in PARTS}


def test_models_are_built_and_no_worker_complains_at_the_end(errors):
  assert 'jax_computation needs JAX before 0.5' in errors['nothing']
  assert 'Exception ignored' not in errors['nothing']
  assert 'Slow: []' in errors['nothing']


def test_each_stub_is_needed(errors):
  assert "cannot import name 'xla_client'" in errors['jax']
  assert "No module named 'tensorflow_estimator'" in errors['estimators']


def test_old_keras_an_end_of_the_worker_and_empty_modules_are_needed(errors):
  assert "Slow: ['keras', 'sklearn']" in errors['others']
  assert "has no attribute '_is_compiled'" in errors['others']
  # Python 3.13 takes modules away.
  assert 'Exception ignored' in errors['others'] or sys.version_info < (3, 13)
