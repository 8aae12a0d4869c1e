"""The best strategy of a mechanism for a participation."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import threadpoolctl

from fl_dpftrl.mechanisms import base, schemas, workloads
from fl_dpftrl.mechanisms.search import optimizers, search_problem
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.rules import loss_budgets
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages, progress_bars


def optimize(
  mechanism: str,
  schema: schemas.Schema | Sequence[schemas.Schema] | loss_budgets.LossBudget,
  *,
  horizons: tuple[int, int] | None = None,
  objective: str = 'max',
  workload: workloads.Workload = workloads.Workload(),
  num_bands: int | None = None,
  num_buffers: int | None = None,
  progress: Callable[[int, float], None] | None = None,
  least_gain: float = 0.0,
) -> base.Strategy:
  """Returns the best strategy of a mechanism.

  Args:
    mechanism: name of a built-in one, or of a registered family that has `optimize`.
    schema: participation schema; several if it is unknown which one will hold: the largest ratio
      to the best loss at one of them is minimised. Or the participation of a run without an end.
    horizons: of a run without an end, the first and the last number of rounds after which the error
      counts; the largest ratio to the best strategy at a horizon is minimised.
    objective: 'rms' or 'max', the loss to minimise.
    workload: linear workload whose error is minimised.
    num_bands: size of a banded mechanism; None for its default.
    num_buffers: size of a BLT, 1 to 8; None or 0 for the fewest within 0.1 % of the best of these.
    progress: called with the number of steps and the loss; None for a bar after five seconds.
    least_gain: relative gain of ten steps below which a search ends; 0 to search on.
  """
  optimizers.check_family(mechanism)
  checks.instance(workloads.Workload, workload=workload)
  optimizer, size = optimizers.find_optimizer(mechanism), {}
  if optimizer is None:
    raise ValueError(
      f'mechanism must be one of {", ".join(optimizers.OPTIMIZERS)}, got {mechanism!r}'
    )
  for name, value in (('num_bands', num_bands), ('num_buffers', num_buffers)):
    if value is not None:
      if name != optimizer.size:
        raise ValueError(f'{name}={value} is not for mechanism={mechanism}')
      size[name] = value
  is_range = isinstance(schema, Sequence)
  every: list[Any] = [*schema] if isinstance(schema, Sequence) else [schema]
  plain = (schemas.Schema, schemas.Fixed)  # As strategy files have them.
  every = [registry.resolved(one) if type(one) in plain else one for one in every]
  is_registered = all(type(one) in registry.KINDS.values() for one in every)
  budget = None if is_range or not is_registered else loss_budgets.endless_budget(every[0])
  if budget is not None:
    every, is_range = budget.horizon_schemas(horizons), True
    if optimizer.find_range is None:
      raise ValueError(
        f'mechanism={mechanism} is optimised for a last round only, and blt for a run without an'
        f' end; that also takes a strategy file of {base.ENDLESS}'
      )
    if not workload.is_toeplitz:
      raise ValueError('workload must have constant learning rates in a run without an end')
  elif horizons is not None:
    raise ValueError(f'horizons={horizons} are for a run without an end')
  if not is_registered or not all(isinstance(one, schemas.Schema) for one in every):
    raise ValueError(f'schema must be a MinSep or a list of them, got {messages.quoted(schema)}')
  if is_range and optimizer.find_range is None:
    raise ValueError(f'mechanism={mechanism} takes one schema, got {len(every)}')
  shown = progress_bars.steps(mechanism) if progress is None else contextlib.nullcontext(progress)
  # With these sizes, several threads of linear algebra wait for each other.
  with threadpoolctl.threadpool_limits(1, user_api='blas'), shown as report:
    named = None if budget is None else budget.named
    goal = objective, workload, report, named, least_gain
    problems = [search_problem.Problem(one, *goal) for one in every]
    if is_range and optimizer.find_range is not None:
      return optimizer.find_range(problems, **size)
    return optimizer.find(problems[0], **size)
