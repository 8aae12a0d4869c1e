"""The reference stream of identity strategies."""

import numpy as np

from fl_dpftrl.families import identity
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: identity.Identity, z: np.ndarray) -> base.NoiseStream:
  del strategy
  return base.NoiseStream(lambda: 0, lambda t: (dispatch.row_of(z, t), t + 1))
