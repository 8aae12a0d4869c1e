import contextlib

import pytest
import tensorflow_federated as tff

from fl_dpftrl import runtime
from fl_dpftrl.learning import workers


@pytest.fixture(scope='session')
def worker():
  """Runs within it are by TFF's worker, with secure sums made plain."""
  local_worker = workers.LocalWorker(deterministic=False)

  def compiled(comp):
    plain = tff.backends.test.replace_secure_intrinsics_with_bodies(comp)
    return tff.backends.native.desugar_and_transform_to_native(plain)

  context = tff.framework.SyncExecutionContext(
    executor_fn=local_worker.context().executor_factory,
    compiler_fn=compiled,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )
  yield lambda: tff.framework.get_context_stack().install(context)
  local_worker.stop()


@pytest.fixture
def in_process():
  """Runs within it are in process; takes the arguments of the context."""

  @contextlib.contextmanager
  def use(**arguments):
    context = runtime.InProcessContext(**{'seed': 7, **arguments})
    with tff.framework.get_context_stack().install(context):
      yield context

  return use
