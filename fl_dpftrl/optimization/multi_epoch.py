"""Optimal dense strategy for participation at fixed intervals."""

from typing import Any

from fl_dpftrl import participation, workloads
from fl_dpftrl.families import dense
from fl_dpftrl.optimization import dense as dense_lib
from fl_dpftrl.optimization import factorization


def optimize(schema: participation.MinSep, **options: Any) -> dense.Dense:
  """Returns the strategy of `solve`, which takes the same arguments."""
  return solve(schema, **options).strategy


def solve(
  schema: participation.MinSep,
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
    objective, workload, tolerance, progress: see `dense.solve`.
    equal_norms: True if all columns must have the same norm.

  Raises:
    ValueError: if the objective or the workload is not supported.

  Source: Choquette-Choo et al. 2023 (multi-epoch matrix factorization), for the problem;
  `factorization` for the proof that its sign constraints hold by themselves.
  """
  groups = factorization.chains(schema)
  alike = equal_norms or groups.reach < groups.rounds.shape[1]
  norms = 1.0 / schema.participations if alike else None
  return dense_lib.solve_groups(groups, norms, objective, workload, tolerance, progress)
