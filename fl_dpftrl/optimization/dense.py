"""Optimal dense strategy for one participation, with its certificate."""

from typing import Any

from fl_dpftrl import error, participation, workloads
from fl_dpftrl.families import dense
from fl_dpftrl.optimization import factorization


def optimize(schema: participation.MinSep, **options: Any) -> dense.Dense:
  """Returns the strategy of `solve`, which takes the same arguments."""
  return solve(schema, **options).strategy


def solve(
  schema: participation.MinSep,
  *,
  objective: str,
  workload: workloads.Queries = workloads.Workload(),
  tolerance: float = 2e-7,
  progress: factorization.Progress | None = None,
) -> factorization.Solution:
  """Finds the strategy with the smallest loss for one participation.

  Its columns have norm 1. It is optimal over all strategies for num_rounds rounds with one
  participation, whatever else the schema allows. For more participations see `multi_epoch`.

  Args:
    schema, objective, progress: see `registry.optimize`.
    workload: linear workload whose error is minimised; of full column rank.
    tolerance: stops when the squared loss is proven to be at most this much, relatively, above
      the optimum.

  Raises:
    ValueError: if the objective or the workload is not supported.

  Source: Denisov et al. 2022, section 3.
  """
  once = participation.MinSep(num_rounds=schema.num_rounds, max_participations=1)
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
