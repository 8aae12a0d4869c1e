import contextlib

import pytest
import tensorflow_federated as tff

import tff_inprocess


@pytest.fixture
def in_process():
  """Runs within it are in process; takes the arguments of the context."""

  @contextlib.contextmanager
  def use(**arguments):
    context = tff_inprocess.InProcessContext(**{'seed': 7, **arguments})
    with tff.framework.get_context_stack().install(context):
      yield context

  return use
