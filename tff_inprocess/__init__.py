"""Runs every TFF computation in this process, on the installed TensorFlow; see README.md here."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tff_inprocess import contexts
from tff_inprocess.analysis import UnsupportedComputationError as UnsupportedComputationError
from tff_inprocess.clients import Later as Later
from tff_inprocess.contexts import AsyncInProcessContext as AsyncInProcessContext
from tff_inprocess.contexts import InProcessContext as InProcessContext
from tff_inprocess.data_sets import batches as batches

if TYPE_CHECKING:
  from tff_inprocess.machines import on_machines as on_machines
  from tff_inprocess.machines import use_machines as use_machines
  from tff_inprocess.ray_actors import Actors as Actors


def __getattr__(name: str) -> Any:
  """Loads what needs Ray when it is first used.

  Raises:
    AttributeError: for a name that is not here.
    ImportError: if Ray is not installed, saying what to do.
  """
  if name not in ('Actors', 'on_machines', 'use_machines'):
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  try:
    from tff_inprocess import machines, ray_actors
  except ImportError as error:
    if not (error.name or '').startswith('ray'):
      raise
    raise ImportError(f'tff_inprocess.{name} needs Ray: install ray>=2.60', name='ray') from error
  return getattr(ray_actors if name == 'Actors' else machines, name)


def use(
  *,
  seed: int | None = None,
  max_concurrent_clients: int | None = None,
  default_num_clients: int = 0,
  show_client_errors: bool = False,
) -> InProcessContext:
  """Makes every TFF computation run in this process from now on.

  Args:
    seed: of random numbers that clients draw; None for a secret one.
    max_concurrent_clients: None for as many as processors and memory allow.
    default_num_clients: where a computation's argument does not say.
    show_client_errors: see `InProcessContext`.

  Returns:
    The context; see `InProcessContext`.
  """
  context = InProcessContext(
    seed=seed,
    max_concurrent_clients=max_concurrent_clients,
    default_num_clients=default_num_clients,
    show_client_errors=show_client_errors,
  )
  contexts.use(context)
  return context


@contextlib.contextmanager
def within(**settings: Any) -> Iterator[InProcessContext]:
  """Makes every TFF computation of this thread run in this process within the block.

  The context from before is back afterwards, also where the block raises. Computations of the
  block that are still under way then end with a RuntimeError.

  Args:
    **settings: see `use`.

  Yields:
    The context.
  """
  with contexts.within(InProcessContext(**settings)) as context:
    yield context
