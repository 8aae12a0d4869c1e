"""Optimal banded strategies (BandMF), for prefix sums or momentum.

The problem is convex in X = CᵀC, with X[i, j] = 0 outside the bands and a unit
diagonal: minimise the error of A C⁻¹. Every matrix is handled in blocks of at
least num_bands rows, in which C has only a diagonal and a subdiagonal block.
"""

import math

import numpy as np
import scipy.linalg
from scipy import optimize as optimize_lib
from scipy import signal

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.optimization import solver
from fl_dpftrl.strategies import banded

_SMALLEST_BLOCK = 64
# Power means of the squared errors, with the tolerance and iterations of each:
# the mean itself, or ever higher powers on the way to the maximum.
_STAGES = {
    'rms': ((1, 1e-6, 300),),
    'max': ((4, 1e-5, 100), (32, 1e-5, 100), (256, 1e-5, 200)),
}


def most_bands(schema: participation.MinSep) -> int:
  """The most bands whose sensitivity is exact: num_rounds where k is 1."""
  if schema.participations == 1:
    return schema.num_rounds
  return min(schema.min_sep, schema.num_rounds)


def optimize(
    schema: participation.MinSep,
    *,
    objective: str,
    num_bands: int | None = None,
    workload: workloads.Workload = workloads.Workload(),
    progress: solver.Progress | None = None,
) -> banded.Banded:
  """The banded strategy with columns of norm 1 and least loss.

  Args:
    schema: n, b and k.
    objective: 'rms' or 'max'.
    num_bands: at most min_sep where a device may take part twice, so that the
      sensitivity is exact; None for the most.
    workload: what the noise is to be small in.
    progress: called with the steps so far and the loss.

  Raises:
    ValueError: where num_bands or the objective is outside its range.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
  section 4.1 (the problem) and appendix on its optimisation.
  """
  most = most_bands(schema)
  num_bands = most if num_bands is None else num_bands
  if not 1 <= num_bands <= most:
    raise ValueError(
        f'num_bands must be 1 to {most} for these participations, got'
        f' {num_bands!r}'
    )
  if objective not in _STAGES:
    raise ValueError(f'objective must be rms or max, got {objective!r}')
  gram = _start(schema.num_rounds, num_bands)
  if num_bands == 1:
    return banded.Banded(gram)
  problem = _Problem(workload.matrix(schema.num_rounds), num_bands)
  scale, steps = math.sqrt(schema.participations), 0

  def report(_, value):
    nonlocal steps
    steps += 1
    if progress is not None:
      progress(steps, scale * math.exp(0.5 * value))

  for power, tolerance, max_iterations in _STAGES[objective]:
    gram[problem.inside] = solver.minimize(
        lambda x: problem.value_and_grad(x, power),
        gram[problem.inside],
        progress=report,
        tolerance=tolerance,
        max_iterations=max_iterations,
    ).point
  return banded.Banded(_cholesky(gram))


def _start(num_rounds: int, num_bands: int) -> np.ndarray:
  """X of a banded Toeplitz C near the best for prefix sums, columns scaled.

  C's coefficients are those of the square root of prefix sums, cut to the bands
  and raised by a constant, which makes up for what is cut.

  Returns:
    Shape [num_rounds, num_bands], [t, j] being X[t, t − j].

  Source: Fichtenberger, Henzinger, Upadhyay 2023, for the square root.
  """
  root = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1.0, num_bands)))
  counts = np.arange(num_rounds, 0.0, -1.0)

  def log_loss(log_shift):
    column = signal.lfilter(
        [1.0], root + math.exp(log_shift), np.ones(num_rounds)
    )
    return math.log(np.sum(counts * column**2) * np.sum(
        (root + math.exp(log_shift)) ** 2
    ))

  shift = optimize_lib.minimize_scalar(
      log_loss, bounds=(-12.0, 1.0), method='bounded'
  ).x
  root += math.exp(shift)
  gram = np.zeros((num_rounds, num_bands))
  for j in range(num_bands):
    products = np.cumsum(root[j:] * root[: num_bands - j])
    # Column t − j and column t share the rows from t on, bands permitting.
    rows = np.arange(j, num_rounds)
    gram[rows, j] = products[np.minimum(num_rounds - rows, num_bands - j) - 1]
  norms = np.sqrt(gram[:, 0].copy())
  for j in range(num_bands):
    gram[j:, j] /= norms[j:] * norms[: num_rounds - j]
  return gram


def _cholesky(gram: np.ndarray) -> np.ndarray:
  """Coefficients of the lower-triangular C with CᵀC = X.

  C = J chol(J X J)ᵀ J, with J the reversal of the rounds.

  Raises:
    LinAlgError: where X is not positive definite.
  """
  factor = scipy.linalg.cholesky_banded(gram[::-1].T, lower=True)
  coefficients = factor.T[::-1].copy()
  outside = np.arange(gram.shape[0])[:, None] < np.arange(gram.shape[1])
  coefficients[outside] = 0.0
  return coefficients


class _Problem:
  """ln of the mean power of squared errors, with its gradient in X.

  Attributes:
    inside: [t, j], true for the entries of X that are free.
  """

  def __init__(self, workload: np.ndarray, num_bands: int):
    num_rounds = workload.shape[0]
    self.inside = np.arange(num_rounds)[:, None] >= np.arange(num_bands)
    self.inside[:, 0] = False
    self._workload = workload
    self._num_bands = num_bands
    size = max(num_bands, _SMALLEST_BLOCK)
    self._blocks = [
        slice(start, min(start + size, num_rounds))
        for start in range(0, num_rounds, size)
    ]

  def value_and_grad(
      self, free: np.ndarray, power: int
  ) -> tuple[float, np.ndarray]:
    gram = np.zeros(self.inside.shape)
    gram[:, 0] = 1.0
    gram[self.inside] = free
    try:
      coefficients = _cholesky(gram)
    except np.linalg.LinAlgError:
      return math.inf, free
    blocks = [self._parts(coefficients, k) for k in range(len(self._blocks))]
    decoder = self._decoder(blocks)
    squares = np.einsum('ij,ij->j', decoder, decoder)
    largest = squares.max()
    shares = (squares / largest) ** (power - 1)
    mean = float(np.mean(shares * squares / largest))
    value = math.log(largest) + math.log(mean) / power
    half = self._half_gradient(blocks, decoder)
    half *= np.sqrt(shares / (largest * mean * squares.size))
    return value, -2.0 * self._in_band_products(half)[self.inside]

  def _parts(
      self, coefficients: np.ndarray, k: int
  ) -> tuple[np.ndarray, np.ndarray | None]:
    """The inverse of diagonal block k of C, and the block left of it."""
    block = self._blocks[k]
    diagonal = self._dense(coefficients, block, block)
    inverse = scipy.linalg.solve_triangular(
        diagonal, np.eye(diagonal.shape[0]), lower=True, check_finite=False
    )
    if not k:
      return inverse, None
    return inverse, self._dense(coefficients, block, self._blocks[k - 1])

  def _dense(
      self, coefficients: np.ndarray, rows: slice, columns: slice
  ) -> np.ndarray:
    row = np.arange(rows.start, rows.stop)[:, None]
    lag = row - np.arange(columns.start, columns.stop)
    inside = (lag >= 0) & (lag < self._num_bands)
    return np.where(inside, coefficients[row, np.where(inside, lag, 0)], 0.0)

  def _decoder(
      self, parts: list[tuple[np.ndarray, np.ndarray | None]]
  ) -> np.ndarray:
    """Bᵀ with B C = A, from the last block of columns to the first."""
    decoder = self._workload.T.copy()
    for k in reversed(range(len(parts))):
      block, (inverse, _) = self._blocks[k], parts[k]
      right = decoder[block, block.start :]
      if k + 1 < len(parts):
        after, left = self._blocks[k + 1], parts[k + 1][1]
        size = block.stop - block.start
        right[:, size:] -= left.T @ decoder[after, after.start :]
      right[:] = inverse.T @ right
    return decoder

  def _half_gradient(
      self,
      parts: list[tuple[np.ndarray, np.ndarray | None]],
      decoder: np.ndarray,
  ) -> np.ndarray:
    """Yᵀ with Y Cᵀ = B: the gradient of ‖B‖² in X is −YᵀY."""
    half = decoder
    for k, (inverse, left) in enumerate(parts):
      block = self._blocks[k]
      if k:
        half[block] -= left @ half[self._blocks[k - 1]]
      half[block] = inverse @ half[block]
    return half

  def _in_band_products(self, half: np.ndarray) -> np.ndarray:
    """[t, j]: column t of Y times column t − j."""
    products = np.zeros(self.inside.shape)
    for k, block in enumerate(self._blocks):
      first = self._blocks[max(k - 1, 0)].start
      dense = half[block] @ half[first : block.stop].T
      rows = np.arange(block.start, block.stop)[:, None]
      columns = rows - np.arange(self._num_bands)
      entries = dense[rows - block.start, np.maximum(columns - first, 0)]
      products[block] = np.where(columns >= 0, entries, 0.0)
    return products
