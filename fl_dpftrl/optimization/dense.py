"""Optimal dense strategies: for one participation with a certificate, and at fixed intervals."""

from typing import Any

from fl_dpftrl import error, workloads
from fl_dpftrl.families import dense
from fl_dpftrl.optimization import factorization
from fl_dpftrl.participation import schemas


def optimize(schema: schemas.MinSep, **options: Any) -> dense.Dense:
  """Returns the strategy of `solve`, which takes the same arguments."""
  return solve(schema, **options).strategy


def solve(
  schema: schemas.MinSep,
  *,
  objective: str,
  workload: workloads.Queries = workloads.Workload(),
  tolerance: float = 2e-7,
  progress: factorization.Progress | None = None,
) -> factorization.Solution:
  """Finds the strategy with the smallest loss for one participation.

  Its columns have norm 1. It is optimal over all strategies for num_rounds rounds with one
  participation, whatever else the schema allows. For more participations see `solve_multi_epoch`.

  Args:
    schema, objective, progress: see `registry.optimize`.
    workload: linear workload whose error is minimised; of full column rank.
    tolerance: stops when the squared loss is proven to be at most this much, relatively, above
      the optimum.

  Raises:
    ValueError: if the objective or the workload is not supported.

  Source: Denisov et al. 2022, section 3.
  """
  once = schemas.MinSep(num_rounds=schema.num_rounds, max_participations=1)
  return solve_groups(factorization.chains(once), None, objective, workload, tolerance, progress)


def solve_groups(
  groups: factorization.Groups,
  equal_norms: float | None,
  objective: str,
  workload: workloads.Queries,
  tolerance: float,
  progress: factorization.Progress | None,
) -> factorization.Solution:
  """Returns the best strategy for any groups; see `factorization`.

  Raises:
    ValueError: if the objective or the tolerance is out of range.
  """
  error.check_objective(objective)
  if not tolerance > 0.0:
    raise ValueError(f'tolerance must be positive, got {tolerance!r}')
  matrix = workload.matrix(groups.num_rounds)
  dual = factorization.Dual(matrix, groups, equal_norms=equal_norms, worst_query=objective == 'max')
  return factorization.solve(matrix, dual, tolerance=tolerance, progress=progress)


def optimize_multi_epoch(schema: schemas.MinSep, **options: Any) -> dense.Dense:
  """Returns the strategy of `solve_multi_epoch`, which takes the same arguments."""
  return solve_multi_epoch(schema, **options).strategy


def solve_multi_epoch(
  schema: schemas.MinSep,
  *,
  objective: str,
  workload: workloads.Queries = workloads.Workload(),
  equal_norms: bool = False,
  tolerance: float = 1e-6,
  progress: factorization.Progress | None = None,
) -> factorization.Solution:
  """Finds the best strategy under (k, b)-participation, with sensitivity 1.

  If a device may return until the end (k = ⌈n / b⌉), or participates once, it is the best of
  all strategies, whatever the signs of X. Otherwise it is the best of those with equal column
  norms and orthogonal columns in every pattern.

  Args:
    schema: n, b and k, interpreted as `FixedSeparation`. Under min-sep patterns the strategy is
      valid but not optimal.
    objective, workload, tolerance, progress: see `solve`.
    equal_norms: True if all columns must have the same norm.

  Raises:
    ValueError: if the objective or the workload is not supported.

  Source: Choquette-Choo et al. 2023 (multi-epoch matrix factorization), for the problem;
  `factorization` for the proof that its sign constraints hold by themselves.
  """
  groups = factorization.chains(schema)
  alike = equal_norms or groups.reach < groups.rounds.shape[1]
  norms = 1.0 / schema.participations if alike else None
  return solve_groups(groups, norms, objective, workload, tolerance, progress)
