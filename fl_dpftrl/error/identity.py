"""Errors of independent noise."""

import math

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import base
from fl_dpftrl.error import dispatch
from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import identity


@dispatch.error.register
def _(
    strategy: identity.Identity,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> base.Error:
  if not dispatch.is_prefix_sums(workload):
    return base.from_queries(dispatch.dense(strategy, num_rounds, workload))
  strategies.check_num_rounds(strategy, num_rounds)
  return base.Error(
      math.sqrt((num_rounds + 1) / 2), math.sqrt(num_rounds)
  )


@dispatch.per_query_error.register
def _(
    strategy: identity.Identity,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  if not dispatch.is_prefix_sums(workload):
    return dispatch.dense(strategy, num_rounds, workload)
  strategies.check_num_rounds(strategy, num_rounds)
  return np.sqrt(np.arange(1.0, num_rounds + 1.0))
