"""Sensitivity of banded strategies."""

import math

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch
from fl_dpftrl.sensitivity import gram
from fl_dpftrl.sensitivity import patterns
from fl_dpftrl.strategies import base as strategies
from fl_dpftrl.strategies import banded


@dispatch.sensitivity.register
def _(
    strategy: banded.Banded, schema: participation.MinSep
) -> base.Sensitivity:
  if strategy.num_bands > schema.min_sep:
    return gram.gram_sensitivity(
        gram.gram_matrix(strategy, schema.num_rounds), schema
    )
  squares = column_squares(strategy, schema.num_rounds)
  return base.Sensitivity(math.sqrt(patterns.worst_sum(squares, schema)), base.EXACT)


def column_squares(strategy: banded.Banded, num_rounds: int) -> np.ndarray:
  """Squared column norms of a banded C, shape [num_rounds]."""
  strategies.check_num_rounds(strategy, num_rounds)
  squares = np.zeros(num_rounds)
  for j in range(min(strategy.num_bands, num_rounds)):
    squares[: num_rounds - j] += strategy.coefficients[j:num_rounds, j] ** 2
  return squares
