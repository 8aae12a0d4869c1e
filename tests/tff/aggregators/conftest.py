import pytest
import tensorflow_federated as tff

import tff_inprocess


@pytest.fixture(autouse=True)
def in_process(context):
  with tff.framework.get_context_stack().install(context):
    yield


@pytest.fixture(scope='session')
def context():
  return tff_inprocess.InProcessContext()
