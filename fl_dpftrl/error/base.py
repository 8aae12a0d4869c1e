"""What an error is."""

from typing import NamedTuple

import numpy as np


class Error(NamedTuple):
  """Standard deviations of the queries' noise where Z has standard deviation 1.

  Attributes:
    rms: root of the mean square over the queries.
    max: the largest.
  """

  rms: float
  max: float


def from_queries(per_query: np.ndarray) -> Error:
  """The summary of the standard deviations of single queries."""
  return Error(
      float(np.sqrt(np.mean(np.square(per_query)))), float(per_query.max())
  )
