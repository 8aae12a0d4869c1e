"""The best dense strategy where a device takes part at fixed intervals."""

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.families import dense
from fl_dpftrl.optimization import dense as dense_lib
from fl_dpftrl.optimization import factorization


def optimize(
    schema: participation.MinSep,
    *,
    objective: str,
    workload: workloads.Queries = workloads.Workload(),
    equal_norms: bool = False,
    tolerance: float = 1e-6,
    progress: factorization.Progress | None = None,
) -> dense.Dense:
  """The strategy of least loss under (k, b)-participation, of sensitivity 1.

  Where a device may come back until the end (k = ⌈n / b⌉), or takes part once,
  it is the best of all strategies, whatever the signs of X. Otherwise it is the
  best of those with equal column norms and orthogonal columns in every pattern.

  Args:
    schema: n, b and k, taken as of `FixedSeparation`; under min-sep patterns
      the strategy can be used too, and is not the best.
    objective: 'rms' or 'max'.
    workload: what the noise is to be small in; of full column rank.
    equal_norms: whether all columns are to have the same norm.
    tolerance: as of `dense.optimize`.
    progress: called with the steps so far and the loss.

  Raises:
    ValueError: where the objective or the workload will not do.

  Source: Choquette-Choo et al. 2023 (multi-epoch matrix factorization), for the
  problem; `factorization` for the proof that its sign constraints hold by
  themselves.
  """
  return solve(
      schema, objective=objective, workload=workload, equal_norms=equal_norms,
      tolerance=tolerance, progress=progress,
  ).strategy


def solve(
    schema: participation.MinSep,
    *,
    objective: str,
    workload: workloads.Queries = workloads.Workload(),
    equal_norms: bool = False,
    tolerance: float = 1e-6,
    progress: factorization.Progress | None = None,
) -> factorization.Solution:
  """`optimize`, with the loss and the bound that proves it."""
  workloads.check_dense(schema.num_rounds)
  groups = factorization.chains(schema)
  alike = equal_norms or groups.reach < groups.rounds.shape[1]
  return dense_lib.solve_groups(
      groups,
      1.0 / schema.participations if alike else None,
      objective,
      workload,
      tolerance,
      progress,
  )
