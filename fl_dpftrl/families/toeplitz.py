"""Methods that the families with a Toeplitz C share."""

import abc

import numpy as np
import scipy.linalg

from fl_dpftrl import workloads
from fl_dpftrl.families import base


class Toeplitz(base.Strategy):
  """A lower-triangular Toeplitz C, and so N, given by their first columns."""

  @abc.abstractmethod
  def column(self, num_rounds: int) -> np.ndarray:
    """Returns the first column of C, shape [num_rounds]."""

  @abc.abstractmethod
  def noising_column(self, num_rounds: int) -> np.ndarray:
    """Returns the first column of N, shape [num_rounds]."""

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    return scipy.linalg.toeplitz(self.column(num_rounds), np.zeros(num_rounds))

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return scipy.linalg.toeplitz(self.noising_column(num_rounds), np.zeros(num_rounds))

  def per_query_error(
    self, num_rounds: int, workload: workloads.Queries = workloads.Workload()
  ) -> np.ndarray:
    """Computes errors in O(n) where A is Toeplitz, as A N then is."""
    if not workload.is_toeplitz:
      return super().per_query_error(num_rounds, workload)
    workloads.check_round_by_round(num_rounds)
    return np.sqrt(np.cumsum(np.square(workload.apply(self.noising_column(num_rounds)))))


def keep_coefficients(strategy: base.Strategy) -> None:
  """Makes the coefficients of a new strategy a read-only array of shape [num_bands].

  Raises:
    ValueError: if they have another shape, are not finite, or do not begin with a positive one.
  """
  first = base.keep_array(strategy, 'coefficients', 'num_bands')[0]
  if first <= 0.0:
    raise ValueError(f'coefficients must begin with a positive one, got {float(first)!r}')
