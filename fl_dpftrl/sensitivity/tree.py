"""Sensitivity of tree strategies."""

import math

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch
from fl_dpftrl.sensitivity import gram
from fl_dpftrl.strategies import base as strategies
from fl_dpftrl.strategies import tree
from fl_dpftrl.strategies import tree_patterns


_MOST_TREE_PARTICIPATIONS = 256  # beyond, the exact value takes too long


@dispatch.sensitivity.register
def _(
    strategy: tree.TreeOnline, schema: participation.MinSep
) -> base.Sensitivity:
  if (
      isinstance(schema, participation.FixedSeparation)
      or schema.participations > _MOST_TREE_PARTICIPATIONS
  ):
    return gram.gram_sensitivity(
        gram.gram_matrix(strategy, schema.num_rounds), schema
    )
  square = tree_patterns.worst_square(
      schema.num_rounds, schema.min_sep, schema.participations
  )
  return base.Sensitivity(math.sqrt(square), base.EXACT)


@gram.gram_matrix.register
def _(strategy: tree.TreeOnline, num_rounds: int) -> np.ndarray:
  # Two rounds meet in every complete node that holds both.
  strategies.check_num_rounds(strategy, num_rounds)
  workloads.check_dense(num_rounds)
  total = np.zeros((num_rounds, num_rounds))
  for height in range(num_rounds.bit_length()):
    size = 2**height
    for start in range(0, num_rounds - size + 1, size):
      total[start : start + size, start : start + size] += 1.0
  return total
