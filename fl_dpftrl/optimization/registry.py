"""Registry of the mechanisms that can be optimised."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import threadpoolctl

from fl_dpftrl import checks, workloads
from fl_dpftrl.families import base, identity, tree_full, tree_online
from fl_dpftrl.families import registry as families
from fl_dpftrl.optimization import banded, banded_inverse, blt, dense, search_problem, toeplitz
from fl_dpftrl.participation import schemas
from fl_dpftrl.participations import accountant, loss_budgets, sampling
from fl_dpftrl.text import messages, progress_bars

_A_DECADE = 3  # horizons
_SHARES = (1, 2, 3, 4, 8, 16, 32)  # of the bins: min-seps, or numbers of bands, to choose among


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """Functions that find the best strategy of a mechanism.

  Attributes:
    find: takes a `Problem`, and the size if the mechanism has one.
    size: keyword of the size, such as num_bands; None if there is none.
    find_range: takes a problem for each of several schemas, of which one will hold, and the size;
      finds the least of the largest ratio to the best loss at a schema. None if not supported.
    certificate: takes a strategy and a problem. It returns an upper bound on the relative excess
      of loss² over the optimum, or None. None if no bound is known.
  """

  find: Callable[..., base.Strategy]
  size: str | None = None
  find_range: Callable[..., base.Strategy] | None = None
  certificate: Callable[[base.Strategy, search_problem.Problem], float | None] | None = None


OPTIMIZERS: dict[str, Optimizer] = {
  'identity': Optimizer(lambda problem: identity.Identity()),
  'tree_online': Optimizer(lambda problem: tree_online.TreeOnline()),
  'tree_full': Optimizer(lambda problem: tree_full.TreeFull(problem.schema.num_rounds)),
  'dense': Optimizer(
    lambda problem: dense.solve(problem).strategy, certificate=dense.optimality_gap
  ),
  'multi_epoch': Optimizer(
    lambda problem: dense.solve_multi_epoch(problem).strategy, certificate=dense.optimality_gap
  ),
  'banded': Optimizer(banded.optimize, 'num_bands'),
  'banded_toeplitz': Optimizer(toeplitz.optimize, 'num_bands'),
  'banded_sqrt': Optimizer(toeplitz.square_root, 'num_bands'),
  'banded_inverse': Optimizer(banded_inverse.optimize, 'num_bands'),
  'banded_inverse_sqrt': Optimizer(banded_inverse.square_root, 'num_bands'),
  'lambda_cgd': Optimizer(banded_inverse.decayed),
  'blt': Optimizer(blt.optimize, 'num_buffers', blt.optimize_range),
}


def find_optimizer(mechanism: str) -> Optimizer | None:
  """Returns the optimiser of a mechanism: a built-in one, or that of a registered family.

  A family of a user's own may have a class method `optimize`, which takes a `Problem` and returns
  the best strategy; None for one that has none.
  """
  find = getattr(families.FAMILIES.get(mechanism), 'optimize', None)
  return OPTIMIZERS.get(mechanism) or (Optimizer(find) if find else None)


def check_family(mechanism: str) -> None:
  """Raises ValueError if the mechanism is a family that no optimiser finds parameters for."""
  if mechanism in families.FAMILIES and find_optimizer(mechanism) is None:
    raise ValueError(
      f'{mechanism!r} is a family without an optimiser; write its parameters to a strategy file'
      ' (dpftrl.save_strategy) and name that file, or give the class a method optimize'
    )


def optimize(
  mechanism: str,
  schema: schemas.MinSep | Sequence[schemas.MinSep] | loss_budgets.LossBudget,
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
    mechanism: name in OPTIMIZERS, or of a registered family that has `optimize`.
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
  check_family(mechanism)
  optimizer, size = find_optimizer(mechanism), {}
  if optimizer is None:
    raise ValueError(f'mechanism must be one of {", ".join(OPTIMIZERS)}, got {mechanism!r}')
  for name, value in (('num_bands', num_bands), ('num_buffers', num_buffers)):
    if value is not None:
      if name != optimizer.size:
        raise ValueError(f'{name}={value} is not for mechanism={mechanism}')
      size[name] = value
  budget = _budget(schema)
  if budget is not None:
    schema = horizon_schemas(budget, horizons)
    if optimizer.find_range is None:
      raise ValueError(
        f'mechanism={mechanism} is optimised for a last round only, and blt for a run without an'
        f' end; that also takes a strategy file of {base.ENDLESS}'
      )
    if not workload.is_toeplitz:
      raise ValueError('workload must have constant learning rates in a run without an end')
  elif horizons is not None:
    raise ValueError(f'horizons={horizons} are for a run without an end')
  is_range = not isinstance(schema, schemas.MinSep)
  every: Any = schema if is_range else [schema]
  if not isinstance(every, Sequence) or not all(isinstance(one, schemas.MinSep) for one in every):
    raise ValueError(f'schema must be a MinSep or a list of them, got {messages.quoted(schema)}')
  if is_range and optimizer.find_range is None:
    raise ValueError(f'mechanism={mechanism} takes one schema, got {len(every)}')
  shown = progress_bars.steps(mechanism) if progress is None else contextlib.nullcontext(progress)
  # With these sizes, several threads of linear algebra wait for each other.
  with threadpoolctl.threadpool_limits(1, user_api='blas'), shown as report:
    goal = objective, workload, report, budget, least_gain
    problems = [search_problem.Problem(one, *goal) for one in every]
    if is_range and optimizer.find_range is not None:
      return optimizer.find_range(problems, **size)
    return optimizer.find(problems[0], **size)


def _budget(participation: Any) -> loss_budgets.LossBudget | None:
  """Returns the loss budget of a run without an end, whose B is the sensitivity of its schema."""
  if isinstance(participation, schemas.MinSep) and participation.num_rounds is None:
    k, b = participation.max_participations, participation.min_sep
    return loss_budgets.LossBudget(max_participations=k, min_sep=b)
  return participation if isinstance(participation, loss_budgets.LossBudget) else None


def horizon_schemas(
  budget: loss_budgets.LossBudget, horizons: tuple[int, int] | None
) -> list[schemas.MinSep]:
  """Returns a schema for each of some horizons, from the first to the last; three a decade."""
  min_sep, max_participations = budget.named
  try:
    first, last = (checks.whole(1, budget.last_row, horizons=n) for n in horizons or ())
  except (TypeError, ValueError) as error:
    raise ValueError(f'horizons must be two numbers of rounds, got {horizons!r}') from error
  if first > last:
    raise ValueError(f'horizons={first},{last} must be the first and the last')
  points = np.geomspace(first, last, 1 + math.ceil(_A_DECADE * math.log10(last / first)))
  return [
    schemas.MinSep(n, min(n, min_sep), max_participations)
    for n in np.unique(points.round().astype(int)).tolist()
  ]


def sampled_problems(
  scheme: sampling.Sampled, size: str | None, *, is_fixed: bool = False
) -> list[tuple[schemas.MinSep, dict[str, int]]]:
  """Returns schemas and sizes to optimise for, of which one has the least noise for secret draws.

  Args:
    scheme: scheme by which batches or secret bins are drawn.
    size: keyword of the mechanism's size, as in `Optimizer`.
    is_fixed: whether the size is fixed, so that none is to be tried.

  Raises:
    ValueError: for batches and a mechanism that is not banded, which they do not amplify.
  """
  rounds, once = scheme.num_rounds, schemas.MinSep(scheme.num_rounds, max_participations=1)
  if isinstance(scheme, sampling.Batches):
    if size != 'num_bands':
      raise ValueError('only banded mechanisms are amplified by sampled batches; any is by bins')
    numbers = accountant.candidate_bands(scheme)
  else:
    numbers = tuple(sorted({-(-scheme.num_bins // share) for share in _SHARES}))
  if size != 'num_bands':
    return [(schemas.MinSep(rounds, min_sep), {}) for min_sep in numbers]
  return [(once, {})] if is_fixed else [(once, {'num_bands': bands}) for bands in numbers]
