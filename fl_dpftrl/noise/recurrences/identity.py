"""The recurrence of identity strategies."""

import tensorflow as tf

from fl_dpftrl.families import identity
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: identity.Identity, specs) -> dispatch.Recurrence:
  del strategy, specs
  one = lambda: tf.constant(1.0, tf.float64)
  return dispatch.Recurrence(lambda: (), lambda z, t, buffers: (z(t), one(), buffers))
