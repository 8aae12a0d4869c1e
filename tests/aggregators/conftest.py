import os

# Must be set before TensorFlow is imported: its start is loud.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
import pytest
import tensorflow_federated as tff

from fl_dpftrl import runtime


@pytest.fixture(autouse=True)
def in_process(context):
  with tff.framework.get_context_stack().install(context):
    yield


@pytest.fixture(scope='session')
def context():
  return runtime.InProcessContext()
