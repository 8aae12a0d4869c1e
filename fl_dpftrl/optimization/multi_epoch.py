"""Optimal dense strategy for participation at fixed intervals."""

from fl_dpftrl import participation, workloads
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
  """Returns the best strategy under (k, b)-participation, with sensitivity 1.

  If a device may return until the end (k = ⌈n / b⌉), or participates once, it is
  the best of all strategies, whatever the signs of X. Otherwise it is the best
  of those with equal column norms and orthogonal columns in every pattern.

  Args:
    schema: n, b and k, interpreted as `FixedSeparation`. Under min-sep patterns
      the strategy is valid but not optimal.
    objective: 'rms' or 'max'.
    workload: linear workload whose error is minimised; of full column rank.
    equal_norms: True if all columns must have the same norm.
    tolerance: see `dense.optimize`.
    progress: called with the number of steps and the loss.

  Raises:
    ValueError: if the objective or the workload is not supported.

  Source: Choquette-Choo et al. 2023 (multi-epoch matrix factorization), for the
  problem; `factorization` for the proof that its sign constraints hold by
  themselves.
  """
  return solve(
    schema,
    objective=objective,
    workload=workload,
    equal_norms=equal_norms,
    tolerance=tolerance,
    progress=progress,
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
  """Returns the result of `optimize` with its loss and the lower bound."""
  workloads.check_dense(schema.num_rounds)
  groups = factorization.chains(schema)
  alike = equal_norms or groups.reach < groups.rounds.shape[1]
  return dense_lib.solve_groups(
    groups, 1.0 / schema.participations if alike else None, objective, workload, tolerance, progress
  )
