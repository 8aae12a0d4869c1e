"""Errors of BLT strategies."""

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import base
from fl_dpftrl.error import dispatch
from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import blt
from fl_dpftrl.families import blt_schedule
from fl_dpftrl.families import blt_sums
from fl_dpftrl.families import interlaced


@dispatch.error.register
def _(
    strategy: blt.BLT,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> base.Error:
  if not _is_sgd(workload) or not workload.is_toeplitz:
    return base.from_queries(
        dispatch.per_query_error(strategy, num_rounds, workload)
    )
  strategies.check_num_rounds(strategy, num_rounds)
  chain = interlaced.chain(strategy.gaps)
  rms, most = (
      blt_sums.SquaredError(num_rounds, objective, workload.momentum)(
          chain.below_one[0::2], chain.sum_scales
      )[0]
      for objective in ('rms', 'max')
  )
  return base.Error(float(np.sqrt(rms)), float(np.sqrt(most)))


@dispatch.per_query_error.register
def _(
    strategy: blt.BLT,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  if not _is_sgd(workload):
    return dispatch.dense(strategy, num_rounds, workload)
  strategies.check_num_rounds(strategy, num_rounds)
  if workload.is_toeplitz:
    # B is Toeplitz too: its first column is A's times N's first column.
    column = workload.apply(strategy.inverse_coefficients(num_rounds))
    return np.sqrt(np.cumsum(np.square(column)))
  blt_schedule.check_num_rounds(num_rounds)
  chain = interlaced.chain(strategy.gaps)
  return np.sqrt(blt_schedule.squared_errors(
      chain.below_one[0::2],
      chain.sum_scales,
      workload.learning_rates(num_rounds),
      workload.momentum,
  ))


def _is_sgd(workload: workloads.Queries) -> bool:
  return isinstance(workload, workloads.Workload)
