"""Initial points for the search of a banded strategy.

Banded matrices are held by columns: [j, u] is C[u + j, u], and 0 beyond.
"""

import math

import numpy as np
from scipy import optimize as optimize_lib
from scipy import signal


def root_coefficients(num_rounds: int, num_bands: int, momentum: float = 0.0) -> np.ndarray:
  """Returns coefficients, shape [num_bands], of a near-optimal Toeplitz C.

  The coefficients are those of the square root of the workload, truncated to the bands. A
  constant is added to make up for the truncation.

  Source: Fichtenberger, Henzinger, Upadhyay 2023, for the square root of prefix sums; with
  momentum it is the product of the roots of two geometric series.
  """
  root = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1.0, num_bands)))
  counts, column = np.arange(num_rounds, 0.0, -1.0), np.ones(num_rounds)
  if momentum:
    decaying = root * momentum ** np.arange(num_bands)
    root = np.convolve(root, decaying)[:num_bands]
    column = signal.lfilter([1.0], [1.0, -momentum], column)

  def log_loss(log_shift):
    raised = root + math.exp(log_shift)
    with np.errstate(over='ignore', invalid='ignore'):
      response = signal.lfilter([1.0], raised, column)
      loss = np.sum(counts * response**2) * np.sum(raised**2)
    return math.log(loss) if np.isfinite(loss) else math.inf

  found = optimize_lib.minimize_scalar(
    log_loss, bounds=(-12.0, 1.0), method='bounded', options={'xatol': 1e-2}
  )
  return root + math.exp(found.x)


def toeplitz(coefficients: np.ndarray, num_rounds: int) -> np.ndarray:
  """Returns a Toeplitz matrix by columns, shape [num_bands, num_rounds]."""
  lags, columns = np.arange(coefficients.size)[:, None], np.arange(num_rounds)
  return np.where(lags + columns < num_rounds, coefficients[:, None], 0.0)


def refine(ratios: np.ndarray, num_bands: int, num_rounds: int) -> np.ndarray:
  """Interpolates factors of a larger matrix's entries from a smaller matrix.

  Args:
    ratios: factors of the smaller matrix by columns, [j, u], positive within it.
    num_bands: number of bands of the larger matrix.
    num_rounds: number of rounds of the larger matrix.

  Returns:
    Shape [num_bands, num_rounds], with factors beyond the matrix too.
  """
  bands, rounds = ratios.shape
  within = np.minimum(np.arange(rounds), rounds - 1 - np.arange(bands)[:, None])
  ratios = np.take_along_axis(ratios, within, axis=1)
  centres = (np.arange(num_rounds) + 0.5) * (rounds / num_rounds) - 0.5
  lags = np.arange(num_bands) * ((bands - 1) / max(num_bands - 1, 1))
  return _interpolate(_interpolate(ratios.T, centres).T, lags)


def _interpolate(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
  """Interpolates between rows; beyond them the first or last row applies."""
  positions = np.clip(positions, 0.0, len(values) - 1.0)
  before = np.minimum(positions.astype(int), max(len(values) - 2, 0))
  after = np.minimum(before + 1, len(values) - 1)
  part = (positions - before)[:, None]
  return (1.0 - part) * values[before] + part * values[after]
