"""Errors of BLT strategies."""

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import dispatch
from fl_dpftrl.strategies import base as strategies
from fl_dpftrl.strategies import blt


@dispatch.per_query_error.register
def _(
    strategy: blt.BLT,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  if not workload.is_toeplitz:
    return dispatch.dense(strategy, num_rounds, workload)
  strategies.check_num_rounds(strategy, num_rounds)
  # B is Toeplitz too: its first column is the workload's, of N's first column.
  column = workload.apply(strategy.inverse_coefficients(num_rounds))
  return np.sqrt(np.cumsum(np.square(column)))
