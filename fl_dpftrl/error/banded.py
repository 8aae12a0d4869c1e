"""Errors of banded strategies, in O(n·bands²) and without a dense matrix.

A workload of SGD has an inverse with two or three bands: it undoes the momentum,
the learning rates and the sums. So the inverse of B = A C⁻¹, which is C A⁻¹, is
banded too, and the errors are norms of the rows of the inverse of that.
"""

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import dispatch
from fl_dpftrl.families import banded
from fl_dpftrl.families import bands
from fl_dpftrl.families import base as strategies


@dispatch.per_query_error.register
def _(
    strategy: banded.Banded,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  if not isinstance(workload, workloads.Workload):
    return dispatch.dense(strategy, num_rounds, workload)
  strategies.check_num_rounds(strategy, num_rounds)
  coefficients = strategy.coefficients[:num_rounds, :num_rounds]
  return bands.row_norms(
      multiply(coefficients, inverse_bands(workload, num_rounds))
  )


def inverse_bands(workload: workloads.Workload, num_rounds: int) -> np.ndarray:
  """A⁻¹ = (I − βS) diag(1/η) (I − S), with S the shift by one round.

  Returns:
    Shape [num_rounds, 2], or 3 with momentum; [t, j] is A⁻¹[t, t − j].
  """
  weights = 1.0 / workload.learning_rates(num_rounds)
  bands = _by_bands(num_rounds, 3 if workload.momentum else 2)
  bands[:, 0] = weights
  bands[1:, 1] = -weights[1:]
  if workload.momentum:
    bands[1:, 1] -= workload.momentum * weights[:-1]
    bands[2:, 2] = workload.momentum * weights[1:-1]
  return bands


def multiply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
  """The product of two banded lower-triangular matrices, in bands.

  Args:
    left: shape [num_rounds, l]; [t, j] is entry t, t − j, and 0 where t < j.
    right: shape [num_rounds, r], likewise.

  Returns:
    Shape [num_rounds, l + r − 1]; its last bands may lie outside the matrix.
  """
  num_rounds, num_bands = left.shape
  product = _by_bands(num_rounds, num_bands + right.shape[1] - 1)
  for j in range(num_bands):
    for i in range(right.shape[1]):
      product[j:, j + i] += left[j:, j] * right[: num_rounds - j, i]
  return product


def multiply_gradient(gradient: np.ndarray, right: np.ndarray) -> np.ndarray:
  """The gradient in left of what has this gradient in `multiply`'s product."""
  num_rounds, extra = right.shape
  result = _by_bands(num_rounds, gradient.shape[1] - extra + 1)
  for j in range(result.shape[1]):
    for i in range(extra):
      result[j:, j] += gradient[j:, j + i] * right[: num_rounds - j, i]
  return result


def _by_bands(num_rounds: int, num_bands: int) -> np.ndarray:
  """Zeros of shape [num_rounds, num_bands], with each band in one piece."""
  return np.zeros((num_bands, num_rounds)).T
