"""Sensitivity of identity strategies."""

import math

from fl_dpftrl import participation
from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import identity
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch


@dispatch.sensitivity.register
def _(
    strategy: identity.Identity, schema: participation.MinSep
) -> base.Sensitivity:
  strategies.check_num_rounds(strategy, schema.num_rounds)
  return base.Sensitivity(math.sqrt(schema.participations), base.EXACT)
