"""Losses of banded Toeplitz strategies with their gradients in c.

Every loss is the logarithm of its square, so that sensitivity and error add up. With M the
diagonal matrix of column norms, B T = A M. The adjoint of a change of T is thus one more filter
by the reciprocal of c, run backwards.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_dpftrl.mechanisms import schemas, toeplitz, workloads
from fl_dpftrl.mechanisms.families import banded_toeplitz
from fl_dpftrl.mechanisms.sensitivities import toeplitz_columns as sensitivities

# Maps coefficients to ln of a square and its gradient.
LogSquare = Callable[[np.ndarray], tuple[float, np.ndarray]]

_MOST_PRODUCTS = 1 << 24  # limit of correlations without a Fourier transform


def sensitivity(schema: schemas.Schema) -> LogSquare:
  """Returns the earliest pattern's loss: exact for monotone c, min_sep bands, or k = 1."""

  def log_square(coefficients):
    square, grad = sensitivities.earliest_square(coefficients, schema)
    return math.log(square), grad / square

  return log_square


def response_error(
  num_rounds: int, objective: str, workload: workloads.Workload, num_terms: int
) -> LogSquare:
  """Returns the error for a Toeplitz A by the first column of B, at its limit after num_terms."""
  weights, tail = np.ones(num_terms), float(num_rounds - num_terms)
  if objective == 'rms':
    weights = np.arange(num_rounds, num_rounds - num_terms, -1.0) / num_rounds
    tail *= 0.5 * (tail + 1.0) / num_rounds

  def log_square(coefficients):
    response = _response(coefficients, num_terms, workload)
    weighted = weights * response
    with np.errstate(over='ignore', invalid='ignore'):  # checked below
      square = float(weighted @ response)
    total = float(coefficients.sum())
    limit = 1.0 / ((1.0 - workload.momentum) * total)
    square += tail * limit**2
    if not math.isfinite(square):
      return math.inf, coefficients
    grad = _through_inverse(coefficients, 2.0 * weighted, response)
    grad -= 2.0 * tail * limit**2 / total
    return math.log(square), grad / square

  return log_square


def _response(coefficients: np.ndarray, num_terms: int, workload: workloads.Workload) -> np.ndarray:
  """Returns the first column of A T⁻¹."""
  polynomial = np.convolve(coefficients, [1.0, -workload.momentum])
  return toeplitz.divide(np.ones(num_terms), polynomial)


def rows_error(
  num_rounds: int, power: int, workload: workloads.Workload, *, normalized: bool
) -> LogSquare:
  """Returns the error for any A by the rows of B; power 1 for the mean, larger for the largest."""

  def log_square(coefficients):
    strategy = banded_toeplitz.BandedToeplitz(coefficients, num_rounds if normalized else None)
    response = np.zeros(num_rounds)
    if workload.is_toeplitz:
      response = _response(coefficients, num_rounds, workload)
    # The limit is far from overflow, even when squared, summed or filtered.
    if not np.abs(response).max() < 1e100:
      return math.inf, coefficients
    late = banded_toeplitz.late_rows(strategy.columns(num_rounds), num_rounds, workload, response)
    early = num_rounds - late.scales.size
    squares = late.base**2 * np.cumsum(np.square(response[:early]))
    squares = np.concatenate([squares, late.squares()])
    largest = float(squares.max())
    if not math.isfinite(largest):
      return math.inf, coefficients
    shares = (squares / largest) ** (power - 1)
    mean = float(np.mean(shares * squares / largest))
    grad = _rows_gradient(strategy, late, shares / (largest * mean * num_rounds))
    return math.log(largest) + math.log(mean) / power, grad

  return log_square


def _rows_gradient(
  strategy: banded_toeplitz.BandedToeplitz, late: banded_toeplitz.LateRows, d_squares: np.ndarray
) -> np.ndarray:
  """Returns the gradient in c from that in the squared norms of B's rows."""
  coefficients, response = strategy.coefficients, late.response
  early, size = d_squares.size - late.scales.size, response.size
  # Early rows are sums of squares of base · w.
  onwards = np.cumsum(d_squares[:early][::-1])[::-1]
  early_pull = 2.0 * onwards * response[:early]
  d_base = late.base * float(early_pull @ response[:early])
  d_scales = np.zeros(late.scales.size)
  padding = max(late.scales.size - 1, 0)
  lags = np.zeros((2, size + padding))  # of response and inverse, padded
  for columns, rows, decoder in late.chunks():
    pull = 2.0 * d_squares[early:, None] * decoder
    if late.base:
      window = late.windows(response)[columns].T
      d_base += float(np.einsum('ij,ij->', pull, window))
      _add_along_lags(lags[0], columns, late.base * pull)
    pull = late.workload.apply_transpose(pull)
    d_scales += np.einsum('ij,ij->i', pull, rows)
    _add_along_lags(lags[1], columns, late.scales[:, None] * pull)
  d_response, d_inverse = lags[:, padding:]
  d_response[:early] += late.base**2 * early_pull
  # Scales are the norms relative to the common one.
  d_common = d_base - float(d_scales.sum()) if late.base else 0.0
  grad = _norms_gradient(strategy, d_scales, d_common)
  if late.base:
    grad += _through_inverse(coefficients, d_response, response)
  if late.scales.size:
    grad += _through_inverse(coefficients, d_inverse, late.inverse)
  return grad


def _add_along_lags(total: np.ndarray, columns: slice, values: np.ndarray) -> None:
  for row, entries in enumerate(values):
    total[columns.start + row : columns.stop + row] += entries


def _norms_gradient(
  strategy: banded_toeplitz.BandedToeplitz, d_scales: np.ndarray, d_common: float
) -> np.ndarray:
  """Returns the gradient in c through the norms of late and other columns."""
  bands = strategy.num_bands
  if strategy.max_rounds is None:
    return np.zeros(bands)
  d_norms = np.zeros(bands)  # by remaining rounds; the last is for all others
  remaining = np.minimum(np.arange(d_scales.size), bands - 1)
  np.add.at(d_norms, remaining, d_scales[::-1])
  d_norms[-1] += d_common
  onwards = np.cumsum((d_norms / strategy.late_norms())[::-1])[::-1]
  return strategy.coefficients * onwards


def _through_inverse(
  coefficients: np.ndarray, d_column: np.ndarray, column: np.ndarray
) -> np.ndarray:
  """Returns the gradient in c through T⁻¹ a, given that column."""
  adjoint = toeplitz.divide(d_column[::-1], coefficients)[::-1]
  bands, size = coefficients.size, column.size
  if bands * size > _MOST_PRODUCTS:
    products = scipy.signal.fftconvolve(adjoint, column[::-1])[size - 1 :]
    return -np.pad(products, (0, max(0, bands - size)))[:bands]
  return -np.array([adjoint[j:] @ column[: size - j] if j < size else 0.0 for j in range(bands)])
