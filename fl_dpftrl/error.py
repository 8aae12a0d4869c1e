"""Per-query, RMS and max error of a strategy, per unit of noise multiplier."""

import functools
from typing import NamedTuple

import numpy as np

from fl_dpftrl import workloads as workloads_lib
from fl_dpftrl.strategies import base
from fl_dpftrl.strategies import blt
from fl_dpftrl.strategies import identity
from fl_dpftrl.strategies import tree


class Error(NamedTuple):
  """Standard deviations of the queries' noise where Z has standard deviation 1.

  Attributes:
    rms: root of the mean square over the queries.
    max: the largest.
  """

  rms: float
  max: float


def error(
    strategy: base.Strategy,
    num_rounds: int,
    workload: np.ndarray | None = None,
) -> Error:
  """RMS and max error of a strategy; times the sensitivity they are the losses.

  Args and errors as of `per_query_error`.
  """
  queries = per_query_error(strategy, num_rounds, workload)
  return Error(
      float(np.sqrt(np.mean(np.square(queries)))), float(queries.max())
  )


def per_query_error(
    strategy: base.Strategy,
    num_rounds: int,
    workload: np.ndarray | None = None,
) -> np.ndarray:
  """Standard deviation of the noise in each query: row norms of B = A N.

  Args:
    strategy: C with its noising matrix N.
    num_rounds: n.
    workload: A, shape [queries, num_rounds]; None for prefix sums, which are
      faster.

  Returns:
    Shape [queries], for Z with standard deviation 1.

  Raises:
    ValueError: where the strategy cannot run so many rounds, the workload has
      another number of columns, or a matrix would be too large.
  """
  base.check_num_rounds(strategy, num_rounds)
  if workload is None:
    return _prefix_error(strategy, num_rounds)
  workload = np.asarray(workload, dtype=np.float64)
  workloads_lib.check_dense(num_rounds)
  if workload.ndim != 2 or workload.shape[1] != num_rounds:
    raise ValueError(
        f'workload must have {num_rounds} columns, got shape {workload.shape}'
    )
  return _row_norms(workload @ strategy.noising_matrix(num_rounds))


def _row_norms(matrix: np.ndarray) -> np.ndarray:
  return np.sqrt(np.einsum('ij,ij->i', matrix, matrix))


@functools.singledispatch
def _prefix_error(strategy: base.Strategy, num_rounds: int) -> np.ndarray:
  workloads_lib.check_dense(num_rounds)
  decoder = strategy.noising_matrix(num_rounds)
  return _row_norms(np.cumsum(decoder, axis=0, out=decoder))


@_prefix_error.register
def _(strategy: identity.Identity, num_rounds: int) -> np.ndarray:
  del strategy
  return np.sqrt(np.arange(1.0, num_rounds + 1.0))


@_prefix_error.register
def _(strategy: blt.BLT, num_rounds: int) -> np.ndarray:
  # B is Toeplitz too: its first column is the running sum of N's.
  column = np.cumsum(strategy.inverse_coefficients(num_rounds))
  return np.sqrt(np.cumsum(np.square(column)))


@_prefix_error.register
def _(strategy: tree.TreeOnline, num_rounds: int) -> np.ndarray:
  # A prefix is tiled by a complete node for each bit of its length, and the
  # variance of a node's estimate is the weight of its own noise.
  del strategy
  lengths, variance = np.arange(1, num_rounds + 1), np.zeros(num_rounds)
  for height in range(num_rounds.bit_length()):
    variance += (lengths >> height & 1) * tree.own_weight(height)
  return np.sqrt(variance)
