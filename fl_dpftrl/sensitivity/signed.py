"""The worst updates of a given pattern if X has negative entries.

Updates are unit vectors, so Σ X[i, j] ⟨uᵢ, uⱼ⟩ is linear in the matrix of inner products, which
is any positive semidefinite one with a diagonal of ones. The largest value is that of a
semidefinite programme. Its dual minimises Σ λᵢ subject to diag(λ) − X ⪰ 0. Every such λ proves
a bound, and the best one proves the exact value.
"""

import numpy as np

_RELATIVE_GAP = 1e-10  # between the value reached and the proven bound
_SWEEPS_BETWEEN = 25


def worst_squares(grams: np.ndarray, sweeps: int = 2000) -> tuple[np.ndarray, np.ndarray]:
  """Largest Σ X[i, j] ⟨uᵢ, uⱼ⟩ over unit vectors, for each of several X.

  Args:
    grams: shape [patterns, k, k], each symmetric.
    sweeps: sweeps over all updates, after which a bound is left as it is.

  Returns:
    Bounds that are never below the largest values, shape [patterns]; and which of them are
    exact, to a relative 1e-10.
  """
  grams = np.asarray(grams, dtype=np.float64)
  bounds = np.abs(grams).sum(axis=(1, 2))
  size = grams.shape[1]
  # Two vectors can always be turned to each other, or away.
  exact = (grams >= 0.0).all(axis=(1, 2)) | (size <= 2)
  open_ = np.flatnonzero(~exact)
  updates = np.random.default_rng(0).normal(size=(open_.size, size, size))
  updates /= np.linalg.norm(updates, axis=2, keepdims=True)
  for sweep in range(sweeps):
    if not open_.size:
      break
    part = grams[open_]
    _ascend(part, updates)
    if (sweep + 1) % _SWEEPS_BETWEEN:
      continue
    reached = np.einsum('pij,pic,pjc->p', part, updates, updates)
    bounds[open_] = np.minimum(bounds[open_], _dual(part, updates))
    closed = bounds[open_] <= reached * (1.0 + _RELATIVE_GAP)
    exact[open_[closed]] = True
    open_, updates = open_[~closed], updates[~closed]
  return bounds, exact


def _ascend(grams: np.ndarray, updates: np.ndarray):
  """Turns each update, in place, in the direction that the others favour."""
  for i in range(grams.shape[1]):
    entries = grams[:, i].copy()
    entries[:, i] = 0.0
    pull = np.einsum('pj,pjc->pc', entries, updates)
    norms = np.linalg.norm(pull, axis=1)
    pulled = norms > 0.0
    updates[pulled, i] = pull[pulled] / norms[pulled, None]


def _dual(grams: np.ndarray, updates: np.ndarray) -> np.ndarray:
  """Returns a proven bound: λ as the updates suggest, raised until valid."""
  size = grams.shape[1]
  pulls = np.einsum('pij,pjc->pic', grams, updates)
  diagonal = np.einsum('pic,pic->pi', pulls, updates)
  slack = diagonal[:, :, None] * np.eye(size) - grams
  lowest = np.linalg.eigvalsh(slack)[:, 0]
  # Adds the largest error that rounding can cause in the lowest eigenvalue.
  hidden = 1e-15 * size * (np.abs(grams).sum(axis=2).max(axis=1))
  return diagonal.sum(axis=1) + size * np.maximum(0.0, hidden - lowest)
