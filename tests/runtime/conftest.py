import contextlib
import os

import pytest
import tensorflow_federated as tff

from fl_dpftrl import runtime


@pytest.fixture
def in_process():
  """Runs within it are in process; takes the arguments of the context."""

  @contextlib.contextmanager
  def use(**arguments):
    context = runtime.InProcessContext(**{'seed': 7, **arguments})
    with tff.framework.get_context_stack().install(context):
      yield context

  return use


@pytest.fixture(scope='session')
def cluster():
  """A Ray cluster of two machines, which both are this one."""
  cluster_utils = pytest.importorskip('ray.cluster_utils')
  # On a machine that is busy, its processes take their time.
  os.environ.setdefault('RAY_raylet_start_wait_time_s', '300')
  node = dict(num_cpus=1, object_store_memory=100_000_000)
  made = cluster_utils.Cluster(
    initialize_head=True, head_node_args={**node, 'include_dashboard': False}
  )
  made.add_node(**node)
  yield made
  import ray

  ray.shutdown()
  made.shutdown()  # By its processes: `ray stop` ends every cluster of this machine.
