"""The two functions that give the errors of any family."""

import functools

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import base
from fl_dpftrl.families import base as strategies


@functools.singledispatch
def error(
    strategy: strategies.Strategy,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> base.Error:
  """RMS and max error of a strategy; times the sensitivity they are the losses.

  Args and errors as of `per_query_error`.
  """
  return base.from_queries(per_query_error(strategy, num_rounds, workload))


@functools.singledispatch
def per_query_error(
    strategy: strategies.Strategy,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  """Standard deviation of the noise in each query: row norms of B = A N.

  Args:
    strategy: C with its noising matrix N.
    num_rounds: n.
    workload: A.

  Returns:
    Shape [queries], for Z with standard deviation 1.

  Raises:
    ValueError: where the strategy cannot run so many rounds, the workload is
      for another number of rounds, or a matrix would be too large.
  """
  return dense(strategy, num_rounds, workload)


def dense(
    strategy: strategies.Strategy, num_rounds: int, workload: workloads.Queries
) -> np.ndarray:
  """`per_query_error` by the whole of N."""
  strategies.check_num_rounds(strategy, num_rounds)
  workloads.check_dense(num_rounds)
  decoder = workload.apply(strategy.noising_matrix(num_rounds))
  return np.sqrt(np.einsum('ij,ij->i', decoder, decoder))


def is_prefix_sums(workload: workloads.Queries) -> bool:
  """Whether A is the prefix sums, for which families know shorter ways."""
  return isinstance(workload, workloads.Workload) and workload.is_prefix_sums
