"""Sums over patterns of rounds, and their largest value under a schema."""

import numpy as np

from fl_dpftrl.participation import schemas


def repeated(values: np.ndarray, step: int, count: int) -> np.ndarray:
  """For each i, Σ over a < count of values[i − a·step], 0 before the first.

  For the first column of a Toeplitz C, the sum of the columns of the pattern 0, step, …, (count
  − 1)·step.
  """
  blocks = -(-values.size // step)
  padded = np.zeros((blocks, step))
  padded.reshape(-1)[: values.size] = values
  total = np.cumsum(padded, axis=0)
  if count < blocks:
    total[count:] -= total[:-count].copy()
  return total.reshape(-1)[: values.size]


def max_min_sep_sum(
  values: np.ndarray, min_sep: int, max_participations: int | None = None
) -> np.ndarray:
  """For each row, the largest sum over at most k entries at least b apart.

  F[i, m] = max(vᵢ + F[i + b, m − 1], F[i + 1, m]), 0 beyond the rounds, for all rows at once.
  If k is None, the number of entries is not limited, and the index m is dropped.

  Args:
    values: shape [rows, num_rounds], at least 0.
    min_sep: b.
    max_participations: k; None for as many as fit.

  Returns:
    Shape [rows].

  Source: Choquette-Choo et al. 2023, algorithm VecSens, without its root.
  """
  num_rows, num_rounds = values.shape
  counted, depth = False, 1
  if max_participations is not None and max_participations < -(-num_rounds // min_sep):
    counted, depth = True, max_participations
  # recent[i % b] holds F[i + b, 1:] until F[i, 1:] is written there.
  recent = np.zeros((min_sep, depth, num_rows))
  after, nothing = np.zeros((depth, num_rows)), np.zeros((1, num_rows))
  columns = np.ascontiguousarray(values.T)
  for i in reversed(range(num_rounds)):
    earlier = recent[i % min_sep]
    if counted:
      earlier = np.concatenate([nothing, earlier[:-1]])
    after = np.maximum(columns[i] + earlier, after)
    recent[i % min_sep] = after
  return after[-1]


def worst_sum(values: np.ndarray, schema: schemas.MinSep) -> float:
  """Returns the largest sum of values, at least 0, over one allowed pattern."""
  if isinstance(schema, schemas.FixedSeparation):
    return float(repeated(values, schema.min_sep, schema.participations).max())
  return float(max_min_sep_sum(values[None], schema.min_sep, schema.participations)[0])
