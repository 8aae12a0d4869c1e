"""Sensitivity of dense strategies."""

import math

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.families import dense
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch
from fl_dpftrl.sensitivity import gram as gram_lib
from fl_dpftrl.sensitivity import patterns

_ROUNDING = 1e-12


@dispatch.sensitivity.register
def _(strategy: dense.Dense, schema: participation.MinSep) -> base.Sensitivity:
  """As of any X; exact also where entries are zero but for rounding.

  Updates at right angles to each other reach the sum of a pattern's diagonal of
  X, and equal ones the sum of all its entries. Where the bound is no more than
  that it is exact.
  """
  gram = gram_lib.gram_matrix(strategy, schema.num_rounds)
  bound = gram_lib.gram_sensitivity(gram, schema)
  if bound.kind == base.EXACT:
    return bound
  reached = patterns.worst_sum(np.diagonal(gram), schema)
  if bound.value <= math.sqrt(reached) * (1.0 + _ROUNDING):
    return base.Sensitivity(bound.value, base.EXACT)
  return bound
