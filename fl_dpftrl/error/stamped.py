"""Errors of stamped strategies."""

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import dispatch
from fl_dpftrl.families import stamped


@dispatch.per_query_error.register
def _(
    strategy: stamped.Stamped,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  """Blocks are independent, so their variances add up."""
  blocks = strategy.blocks(num_rounds)
  if dispatch.is_prefix_sums(workload):
    # Of a block that is over, a prefix sum holds the whole.
    within = np.square(
        dispatch.per_query_error(strategy.strategy, blocks[0], workload)
    )
    over = np.repeat(np.arange(len(blocks)), blocks) * within[-1]
    return np.sqrt(over + np.resize(within, num_rounds))
  workloads.check_dense(num_rounds)
  total, start = 0.0, 0
  for size in blocks:
    noising = strategy.strategy.noising_matrix(size)
    values = np.zeros((num_rounds, noising.shape[1]))
    values[start : start + size] = noising
    decoder = workload.apply(values)
    total = total + np.einsum('ij,ij->i', decoder, decoder)
    start += size
  return np.sqrt(total)
