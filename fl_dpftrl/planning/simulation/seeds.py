"""Random generators keyed by a seed and a purpose, not by the order of draws."""

import math
import operator

import numpy as np

from fl_dpftrl.support import checks


def generator(seed: int, *key: int) -> np.random.Generator:
  """Returns a new generator for one purpose, determined by the seed and key."""
  checks.whole(0, math.inf, seed=seed)
  sequence = np.random.SeedSequence(operator.index(seed), spawn_key=key)
  return np.random.Generator(np.random.Philox(sequence))
