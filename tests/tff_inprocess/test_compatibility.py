"""What lets TFF run beside current packages: all of it together, and each part is still needed."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.tff, pytest.mark.slow]

PROGRAM = """
import tensorflow as tf
import tensorflow_federated as tff
print('Slow:', sorted({'keras', 'sklearn'} & set(sys.modules)), file=sys.stderr)
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
loss = tf.keras.losses.MeanSquaredError()
tff.learning.models.from_keras_model(model, loss=loss, input_spec=spec)
tff.jax.computation(lambda x: x)
"""


def errors_without(part: str) -> str:
  environment = {name: v for name, v in os.environ.items() if name != 'TF_USE_LEGACY_KERAS'}
  program = f'import atexit, os, sys, tff_compatibility as without\n{part}\n{PROGRAM}'
  return subprocess.run(
    [sys.executable, '-c', program], env=environment, capture_output=True, text=True
  ).stderr


def test_models_are_built_and_no_worker_complains_at_the_end():
  errors = errors_without('')
  assert 'jax_computation needs JAX before 0.5' in errors
  assert 'Exception ignored' not in errors
  assert 'Slow: []' in errors


@pytest.mark.parametrize(
  ('part', 'error'),
  [
    ('del without.STUBS[list(without.STUBS)[0]]', "cannot import name 'xla_client'"),
    ('del without.STUBS[list(without.STUBS)[1]]', "No module named 'tensorflow_estimator'"),
  ],
)
def test_each_stub_is_needed(part, error):
  assert error in errors_without(part)


def test_old_keras_an_end_of_the_worker_and_empty_modules_are_needed():
  part = 'for name in list(without.STUBS)[2:]: del without.STUBS[name]\n'
  part += "del os.environ['TF_USE_LEGACY_KERAS']\natexit.unregister(without.end_worker)"
  errors = errors_without(part)
  assert "Slow: ['keras', 'sklearn']" in errors
  assert "has no attribute '_is_compiled'" in errors
  # Python 3.13 takes modules away.
  assert 'Exception ignored' in errors or sys.version_info < (3, 13)
