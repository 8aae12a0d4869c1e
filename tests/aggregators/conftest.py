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
