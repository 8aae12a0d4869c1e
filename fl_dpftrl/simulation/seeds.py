"""Generators whose draws are named by a seed and a key, not by their order."""

import operator

import numpy as np


def generator(seed: int, *key: int) -> np.random.Generator:
  """A fresh generator for one purpose: the same for the same seed and key.

  Args:
    seed: at least 0.
    *key: whole numbers of at least 0, the first naming the purpose.

  Raises:
    ValueError: for a seed that is not a whole number of at least 0.
  """
  check_seed(seed)
  sequence = np.random.SeedSequence(operator.index(seed), spawn_key=key)
  return np.random.Generator(np.random.Philox(sequence))


def check_seed(seed: int) -> None:
  """Raises ValueError unless the seed is a whole number of at least 0."""
  try:
    negative = operator.index(seed) < 0
  except TypeError:
    negative = True
  if negative or isinstance(seed, bool):
    raise ValueError(f'seed must be a whole number of at least 0, got {seed!r}')
