"""Per-query, RMS and max error of a strategy, per unit of noise multiplier."""

from typing import NamedTuple, Protocol

import numpy as np

from fl_dpftrl.mechanisms import schemas, workloads

_PREFIX_SUMS = workloads.Workload()


class Error(NamedTuple):
  """Root mean square and maximum of the queries' standard deviations where that of Z is 1."""

  rms: float
  max: float


OBJECTIVES = Error._fields
"""The errors that an optimiser may minimise, times the sensitivity."""


def check_objective(objective: str) -> None:
  """Raises ValueError unless it is one of OBJECTIVES."""
  if objective not in OBJECTIVES:
    raise ValueError(f'objective must be {" or ".join(OBJECTIVES)}, got {objective!r}')


class HasError(schemas.Limited, Protocol):
  """The errors of a mechanism; `mechanisms.base.Strategy` has defaults for both."""

  def error(self, num_rounds: int, workload: workloads.Workload) -> Error: ...

  def per_query_error(self, num_rounds: int, workload: workloads.Workload) -> np.ndarray: ...


def error(
  strategy: HasError, num_rounds: int, workload: workloads.Workload = _PREFIX_SUMS
) -> Error:
  """Returns RMS and max error of a strategy; times the sensitivity they are the losses."""
  schemas.check_num_rounds(strategy, num_rounds)
  return strategy.error(num_rounds, workload)


def per_query_error(
  strategy: HasError, num_rounds: int, workload: workloads.Workload = _PREFIX_SUMS
) -> np.ndarray:
  """Returns the standard deviation of each query's noise where Z has 1: row norms of B = A N."""
  schemas.check_num_rounds(strategy, num_rounds)
  return strategy.per_query_error(num_rounds, workload)


def summary(per_query: np.ndarray) -> Error:
  """Returns RMS and largest of the standard deviations of single queries."""
  return Error(float(np.sqrt(np.mean(np.square(per_query)))), float(per_query.max()))


def row_norms(noising: np.ndarray, workload: workloads.Workload) -> np.ndarray:
  """Returns row norms of B = A N for a noising matrix N that is written out."""
  decoder = workload.apply(noising)
  return np.sqrt(np.einsum('ij,ij->i', decoder, decoder))
