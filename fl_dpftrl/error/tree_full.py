"""Errors of the full tree estimator."""

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import dispatch
from fl_dpftrl.strategies import tree_full


@dispatch.per_query_error.register
def _(
    strategy: tree_full.TreeFull,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  """In O(n): the variances of a tree's prefix sums are nearly its halves'."""
  planned = strategy.planned_rounds(num_rounds)
  if not dispatch.is_prefix_sums(workload):
    return dispatch.dense(strategy, num_rounds, workload)
  workloads.check_round_by_round(planned)
  heights = [
      height
      for height in reversed(range(planned.bit_length()))
      if planned >> height & 1
  ]
  totals, _ = tree_full.node_moments(planned.bit_length())
  within = _prefix_variances(heights[0])
  variances, before = [], 0.0
  for height in heights:
    variances.append(before + within[height])
    before += totals[height]
  return np.sqrt(np.concatenate(variances)[:num_rounds])


def _prefix_variances(height: int) -> list[np.ndarray]:
  """For trees of each height, the variances of their prefix sums."""
  totals, _ = tree_full.node_moments(height + 1)
  variances = [np.ones(1)]
  for h in range(height):
    half = variances[-1]
    apart = np.concatenate([half, totals[h] + half])
    # The node over both halves: of the prefix and the whole, the covariance is
    # in proportion to the rounds that they share.
    covariance = totals[h] / 2.0**h * np.arange(1, 2 * half.size + 1)
    variances.append(apart - covariance**2 / (1.0 + 2.0 * totals[h]))
  return variances
