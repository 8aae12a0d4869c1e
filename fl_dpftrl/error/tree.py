"""Errors of trees."""

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import dispatch
from fl_dpftrl.strategies import base as strategies
from fl_dpftrl.strategies import tree


@dispatch.per_query_error.register
def _(
    strategy: tree.TreeOnline,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  if not dispatch.is_prefix_sums(workload):
    return dispatch.dense(strategy, num_rounds, workload)
  strategies.check_num_rounds(strategy, num_rounds)
  workloads.check_round_by_round(num_rounds)
  # A prefix is tiled by a complete node for each bit of its length, and the
  # variance of a node's estimate is the weight of its own noise.
  lengths, variance = np.arange(1, num_rounds + 1), np.zeros(num_rounds)
  for height in range(num_rounds.bit_length()):
    variance += (lengths >> height & 1) * tree.own_weight(height)
  if num_rounds == strategy.completed_after:
    last = num_rounds - 1
    root = tree.own_weights(last, strategy.nodes_completed(last))[-1]
    variance[last] = root
  return np.sqrt(variance)
