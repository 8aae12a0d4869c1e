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


def uniform(seed: int, purpose: int, *keys: np.ndarray) -> np.ndarray:
  """Returns uniform draws in 0 to 1 by their keys (SplitMix64: Steele, Lea, Flood 2014)."""
  state = np.uint64((seed * 0x9E3779B97F4A7C15 + purpose) % 2**64)
  with np.errstate(over='ignore'):
    mixed = _mix(np.atleast_1d(state))
    for key in keys:
      mixed = _mix(mixed ^ np.asarray(key).astype(np.uint64))
  return (mixed >> np.uint64(11)) * 2.0**-53


def _mix(values: np.ndarray) -> np.ndarray:
  values = values + np.uint64(0x9E3779B97F4A7C15)
  values ^= values >> np.uint64(30)
  values *= np.uint64(0xBF58476D1CE4E5B9)
  values ^= values >> np.uint64(27)
  values *= np.uint64(0x94D049BB133111EB)
  values ^= values >> np.uint64(31)
  return values
