"""Runs every TFF computation in this process, on the installed TensorFlow."""

import contextlib
import gc
from collections.abc import Iterator

import tensorflow_federated as tff

from fl_dpftrl.runtime.analysis import UnsupportedComputationError as UnsupportedComputationError
from fl_dpftrl.runtime.context import AsyncInProcessContext as AsyncInProcessContext
from fl_dpftrl.runtime.context import InProcessContext as InProcessContext
from fl_dpftrl.runtime.data_sets import batches as batches


def use_in_process(
  *,
  seed: int | None = None,
  max_concurrent_clients: int | None = None,
  default_num_clients: int = 0,
) -> InProcessContext:
  """Makes every TFF computation run in this process from now on.

  Args:
    seed: of random numbers that clients draw; None for a secret one.
    max_concurrent_clients: None for as many as processors and memory allow.
    default_num_clients: where a computation's argument does not say.

  Returns:
    The context; see `InProcessContext`.
  """
  context = InProcessContext(
    seed=seed,
    max_concurrent_clients=max_concurrent_clients,
    default_num_clients=default_num_clients,
  )
  tff.framework.set_default_context(context)
  gc.collect()  # TFF's own context complains where it is left to the exit.
  return context


@contextlib.contextmanager
def in_process(
  *,
  seed: int | None = None,
  max_concurrent_clients: int | None = None,
  default_num_clients: int = 0,
) -> Iterator[InProcessContext]:
  """Makes every TFF computation of this thread run in this process within the block.

  The context from before is back afterwards, also where the block raises. Computations of the
  block that are still under way then end with a RuntimeError.

  Args:
    seed, max_concurrent_clients, default_num_clients: see `use_in_process`.

  Yields:
    The context.
  """
  context = InProcessContext(
    seed=seed,
    max_concurrent_clients=max_concurrent_clients,
    default_num_clients=default_num_clients,
  )
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    context.stop()
