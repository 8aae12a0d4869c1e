"""The best dense strategy where a device takes part once, and its proof."""

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.families import dense
from fl_dpftrl.optimization import factorization

OBJECTIVES = ('rms', 'max')


def optimize(
    schema: participation.MinSep,
    *,
    objective: str,
    workload: workloads.Queries = workloads.Workload(),
    tolerance: float = 2e-7,
    progress: factorization.Progress | None = None,
) -> dense.Dense:
  """The strategy of least loss among all, where a device takes part once.

  Its columns have norm 1. It is optimal for num_rounds rounds of one
  participation, whatever else the schema allows; `multi_epoch` is for more.

  Args:
    schema: n.
    objective: 'rms' or 'max'.
    workload: what the noise is to be small in; of full column rank.
    tolerance: stops where the squared loss is proven to be at most this much,
      relatively, above the smallest possible.
    progress: called with the steps so far and the loss.

  Raises:
    ValueError: where the objective or the workload will not do.

  Source: Denisov et al. 2022, section 3.
  """
  return solve(
      schema, objective=objective, workload=workload, tolerance=tolerance,
      progress=progress,
  ).strategy


def solve(
    schema: participation.MinSep,
    *,
    objective: str,
    workload: workloads.Queries = workloads.Workload(),
    tolerance: float = 2e-7,
    progress: factorization.Progress | None = None,
) -> factorization.Solution:
  """`optimize`, with the loss and the bound that proves it."""
  workloads.check_dense(schema.num_rounds)
  once = participation.MinSep(
      num_rounds=schema.num_rounds, max_participations=1
  )
  return solve_groups(
      factorization.chains(once), None, objective, workload, tolerance, progress
  )


def solve_groups(
    groups: factorization.Groups,
    equal_norms: float | None,
    objective: str,
    workload: workloads.Queries,
    tolerance: float,
    progress: factorization.Progress | None,
) -> factorization.Solution:
  """The best strategy for any groups; see `factorization`.

  Raises:
    ValueError: where an argument is outside its range.
  """
  if objective not in OBJECTIVES:
    raise ValueError(f'objective must be rms or max, got {objective!r}')
  if not tolerance > 0.0:
    raise ValueError(f'tolerance must be positive, got {tolerance!r}')
  matrix = workload.matrix(groups.num_rounds)
  dual = factorization.Dual(
      matrix, groups, equal_norms=equal_norms, worst_query=objective == 'max'
  )
  return factorization.solve(
      matrix, dual, tolerance=tolerance, progress=progress
  )
