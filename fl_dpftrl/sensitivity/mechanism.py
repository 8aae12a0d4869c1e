"""The one function that gives the sensitivity of any family."""

import functools

from fl_dpftrl import participation
from fl_dpftrl.families import base as strategies
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import gram


@functools.singledispatch
def sensitivity(
    strategy: strategies.Strategy, schema: participation.MinSep
) -> base.Sensitivity:
  """The sensitivity of a strategy under a participation schema.

  Exact for identity, BLT and trees, for banded strategies with num_bands at
  most min_sep, and for any C where a search over patterns ends in time;
  otherwise an upper bound.

  Raises:
    ValueError: where the schema has more rounds than the strategy can run.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
  section 4 and algorithm VecSens; see `gram_sensitivity`.
  """
  return gram.gram_sensitivity(
      gram.gram_matrix(strategy, schema.num_rounds), schema
  )
