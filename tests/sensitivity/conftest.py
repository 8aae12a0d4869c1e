"""Brute force over every pattern and over vectors."""

import itertools
import math
import types

import numpy as np
import pytest

from fl_dpftrl import participation


def patterns(schema: participation.MinSep) -> list[tuple[int, ...]]:
  """Every pattern that a schema allows, by its definition."""
  fixed = isinstance(schema, participation.FixedSeparation)
  most = schema.max_participations or schema.num_rounds
  found = []
  for size in range(1, min(most, schema.num_rounds) + 1):
    for pattern in itertools.combinations(range(schema.num_rounds), size):
      gaps = [j - i for i, j in zip(pattern, pattern[1:])]
      if all(g == schema.min_sep if fixed else g >= schema.min_sep for g in gaps):
        found.append(pattern)
  return found


def worst(matrix: np.ndarray, schema: participation.MinSep) -> float:
  """Largest norm of a sum of columns: all there is where X is not negative."""
  return max(float(np.linalg.norm(matrix[:, list(p)].sum(axis=1))) for p in patterns(schema))


def ascent(gram: np.ndarray, starts: int = 2) -> float:
  """Largest Σ X[i, j] ⟨uᵢ, uⱼ⟩ that ascent over unit vectors finds."""
  if (gram >= 0.0).all():
    return float(gram.sum())
  best, generator = 0.0, np.random.default_rng(0)
  for _ in range(starts):
    updates = generator.normal(size=gram.shape)
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    for _ in range(5000):
      before = updates.copy()
      for i in range(len(gram)):
        pull = gram[i] @ updates - gram[i, i] * updates[i]
        if np.linalg.norm(pull) > 0:
          updates[i] = pull / np.linalg.norm(pull)
      if np.abs(updates - before).max() < 1e-6:
        break
    best = max(best, float(np.sum(gram * (updates @ updates.T))))
  return best


def worst_of_vectors(matrix: np.ndarray, schema: participation.MinSep) -> float:
  """Largest norm over patterns and unit vectors, found from below.

  Patterns are tried from the largest bound on, until none is left that could
  be worse.
  """
  gram, best = matrix.T @ matrix, 0.0
  blocks = [gram[np.ix_(p, p)] for p in patterns(schema)]
  blocks.sort(key=lambda block: -np.abs(block).sum())
  for block in blocks:
    if np.abs(block).sum() <= best:
      break
    best = max(best, ascent(block))
  return math.sqrt(best)


@pytest.fixture(scope='session')
def brute():
  """The brute force of this folder."""
  return types.SimpleNamespace(
    patterns=patterns, worst=worst, ascent=ascent, worst_of_vectors=worst_of_vectors
  )
