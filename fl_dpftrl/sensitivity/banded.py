"""Sensitivity of banded strategies."""

import math

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.families import banded
from fl_dpftrl.families import base as strategies
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch
from fl_dpftrl.sensitivity import gram
from fl_dpftrl.sensitivity import patterns


@dispatch.sensitivity.register
def _(
    strategy: banded.Banded, schema: participation.MinSep
) -> base.Sensitivity:
  if strategy.num_bands > schema.min_sep and schema.participations > 1:
    return gram.gram_sensitivity(
        gram.gram_matrix(strategy, schema.num_rounds), schema
    )
  squares = column_squares(strategy, schema.num_rounds)
  return base.Sensitivity(math.sqrt(patterns.worst_sum(squares, schema)), base.EXACT)


@gram.gram_matrix.register
def _(strategy: banded.Banded, num_rounds: int) -> np.ndarray:
  strategies.check_num_rounds(strategy, num_rounds)
  workloads.check_dense(num_rounds)
  total = np.zeros((num_rounds, num_rounds))
  for start in range(0, num_rounds, strategy.num_bands):
    rows = strategy.coefficients[start : start + strategy.num_bands]
    rows = banded.dense_rows(rows[: num_rounds - start])
    stop = min(start + strategy.num_bands, num_rounds)
    first = max(stop - rows.shape[1], 0)
    rows = rows[:, rows.shape[1] - (stop - first) :]
    total[first:stop, first:stop] += rows.T @ rows
  return total


def column_squares(strategy: banded.Banded, num_rounds: int) -> np.ndarray:
  """Squared column norms of a banded C, shape [num_rounds]."""
  strategies.check_num_rounds(strategy, num_rounds)
  squares = np.zeros(num_rounds)
  for j in range(min(strategy.num_bands, num_rounds)):
    squares[: num_rounds - j] += strategy.coefficients[j:num_rounds, j] ** 2
  return squares
