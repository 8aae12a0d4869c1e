"""Sensitivity of blt strategies."""

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch
from fl_dpftrl.sensitivity import patterns
from fl_dpftrl.strategies import blt


@dispatch.sensitivity.register
def _(strategy: blt.BLT, schema: participation.MinSep) -> base.Sensitivity:
  # Coefficients of a BLT are non-negative and non-increasing, so the first
  # rounds, as close as the schema allows, are the worst pattern of both schemas
  # (McMahan, Xu, Zhang 2024, theorem on min-sep sensitivity of Toeplitz C).
  column = patterns.repeated(
      strategy.coefficients(schema.num_rounds),
      schema.min_sep,
      schema.participations,
  )
  return base.Sensitivity(float(np.linalg.norm(column)), base.EXACT)
