"""Toeplitz matrices: the methods of a Toeplitz C, and reciprocals of polynomials.

A lower-triangular Toeplitz matrix acts as the polynomial of its coefficients, its inverse as
the reciprocal, and prefix sums as 1 / (1 − z).
"""

import abc

import numpy as np
import scipy

from fl_dpftrl.mechanisms import base, workloads

_ALWAYS_WHOLE = 2**12  # fewest terms for which a search for the limit pays
_MOST_BEFORE_LIMIT = 2**22  # most terms computed in search of the limit
_MOST_TERMS = 2**26  # 512 MiB
# Beyond both, Fourier transforms are quicker than a recurrence.
_MOST_DIRECT_BANDS, _MOST_DIRECT_PRODUCTS = 2**11, 2**26
_SETTLED = 1e-10  # relative distance from the limit, for all later terms
_MOST_SETTLING, _NEGLIGIBLE = 2**15, 1e-34  # terms; share of the squares


class Toeplitz(base.Strategy):
  """A lower-triangular Toeplitz C, and so N, given by their first columns."""

  @abc.abstractmethod
  def column(self, num_rounds: int) -> np.ndarray:
    """Returns the first column of C, shape [num_rounds]."""

  @abc.abstractmethod
  def noising_column(self, num_rounds: int) -> np.ndarray:
    """Returns the first column of N, shape [num_rounds]."""

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    return matrix(self.column(num_rounds))

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return matrix(self.noising_column(num_rounds))

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    """Computes errors in O(n) where A is Toeplitz, as A N then is."""
    if not workload.is_toeplitz:
      return super().per_query_error(num_rounds, workload)
    workloads.check_round_by_round(num_rounds)
    return np.sqrt(np.cumsum(np.square(workload.apply(self.noising_column(num_rounds)))))


def matrix(column: np.ndarray) -> np.ndarray:
  """Returns the lower-triangular Toeplitz matrix with this first column."""
  return scipy.linalg.toeplitz(column, np.zeros(column.size))


def padded(coefficients: np.ndarray, size: int) -> np.ndarray:
  """Returns the first coefficients, and zeros after the last."""
  return np.pad(coefficients[:size], (0, max(0, size - coefficients.size)))


def keep_coefficients(strategy: base.Strategy) -> None:
  """Makes coefficients read-only; ValueError unless they are finite, and the first positive."""
  first = base.keep_array(strategy, 'coefficients', 'num_bands')[0]
  if first <= 0.0:
    raise ValueError(f'coefficients must begin with a positive one, got {float(first)!r}')


def reciprocal(coefficients: np.ndarray, num_terms: int) -> np.ndarray:
  """Returns the first coefficients of 1 / Σ cᵢ zⁱ, shape [num_terms]."""
  if _is_long(coefficients, num_terms):
    return _newton(coefficients, num_terms)
  return scipy.signal.lfilter([1.0], coefficients, np.eye(1, num_terms)[0])


def divide(values: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
  """Returns the first coefficients of Σ vᵢ zⁱ / Σ cᵢ zⁱ, as many as values."""
  if _is_long(coefficients, values.size):
    return _product(_newton(coefficients, values.size), values, values.size)
  return scipy.signal.lfilter([1.0], coefficients, values)


def settled_reciprocal(coefficients: np.ndarray) -> tuple[np.ndarray, float]:
  """Returns the first coefficients h of 1 / Σ cᵢ zⁱ, and a bound on the squares of the rest.

  Let e be the largest of the last terms, as many as there are bands but one. Later terms are at
  most g e, with g the largest of Gₜ of `step_response`. Where G ends below ½, every later window is
  at most half of the one before, so the squares of the rest add up to at most 4/3 · size · (g e)².

  Raises:
    ValueError: if the bound does not become as small as the rounding of float64.
  """
  coefficients = np.trim_zeros(np.asarray(coefficients, np.float64), 'b')
  order, size = coefficients.size - 1, max(256, 4 * coefficients.size)
  if not order:
    return 1.0 / coefficients, 0.0
  sums = np.cumsum(np.abs(coefficients[:0:-1]))[::-1]  # Σ of |cⱼ| over j > s.
  while size <= _MOST_SETTLING:
    head = reciprocal(coefficients, size)
    if not np.isfinite(head).all():
      break
    growth = scipy.signal.lfilter(sums, [1.0], np.abs(head))
    if growth[-order:].max() < 0.5:
      farthest = float(growth.max() * np.abs(head[-order:]).max())
      tail = 4.0 / 3.0 * size * farthest**2
      if tail <= _NEGLIGIBLE * float(head @ head):
        return head, tail
    size *= 2
  raise ValueError(
    'coefficients: their inverse does not fall off, so that a device has no bound without a last'
    ' round'
  )


def _is_long(coefficients: np.ndarray, num_terms: int) -> bool:
  return (
    coefficients.size > _MOST_DIRECT_BANDS and coefficients.size * num_terms > _MOST_DIRECT_PRODUCTS
  )


def _newton(coefficients: np.ndarray, num_terms: int) -> np.ndarray:
  """`reciprocal` by Newton's iteration; its error is relative to the largest coefficient."""
  size = min(num_terms, max(1, _MOST_DIRECT_PRODUCTS // coefficients.size))
  inverse = reciprocal(coefficients, size)
  while size < num_terms:
    size = min(2 * size, num_terms)
    rest = -_product(_product(coefficients[:size], inverse, size), inverse, size)
    rest[: inverse.size] += 2.0 * inverse
    inverse = rest
  return inverse


def _product(first: np.ndarray, second: np.ndarray, num_terms: int) -> np.ndarray:
  """The first coefficients of a product of two polynomials."""
  size = scipy.fft.next_fast_len(first.size + second.size - 1, real=True)
  product = scipy.fft.irfft(scipy.fft.rfft(first, size) * scipy.fft.rfft(second, size), size)
  return product[:num_terms]


def step_response(coefficients: np.ndarray, num_terms: int) -> tuple[np.ndarray, float | None]:
  """Returns the coefficients of 1 / ((1 − z) Σ cᵢ zⁱ), running sums of the reciprocal.

  They tend to 1 / Σ cᵢ if every zero of the polynomial is outside the unit disc. If that limit
  is reached before num_terms, and is proven to hold from there on, the rest is left out. The
  proof: let e be the distance of the last num_bands terms from the limit. Later terms are at
  most g e away, with g the largest of Gₜ = Σ |hₜ₋ₛ| Σ_{j>s} |cⱼ|, and h the reciprocal. If G
  stays below ½ over num_bands terms, every later distance is at most half of an earlier one, so
  g is only needed up to there. The proof needs no zero of the polynomial.

  Args:
    coefficients: c, shape [num_bands]; c₀ is not 0.
    num_terms: at least 1.

  Returns:
    The first terms, as many as needed or all, and the limit from there on, with a relative
    error below 1e-10; None if all terms are given.

  Source: for the limit, Choquette-Choo et al. 2024 (scaling up banded matrix factorisation),
  appendix I, where it is used unproven from num_bands² on.
  """
  coefficients = np.trim_zeros(np.asarray(coefficients, np.float64), 'b')
  size = max(_ALWAYS_WHOLE, 8 * coefficients.size)
  while size < min(num_terms, _MOST_BEFORE_LIMIT):
    head = divide(np.ones(size), coefficients)
    if not np.isfinite(head[-1]):
      break
    if _has_settled(coefficients, head):
      return head, 1.0 / float(np.sum(coefficients))
    size *= 2
  if num_terms > _MOST_TERMS:
    raise ValueError(
      f'num_rounds={num_terms} is too many for this strategy: its errors do'
      ' not settle, because a zero of its coefficients lies on or near the'
      ' unit circle, and going through all rounds would take too long'
    )
  return divide(np.ones(num_terms), coefficients), None


def _has_settled(coefficients: np.ndarray, head: np.ndarray) -> bool:
  """Returns whether all later terms are within 1e-10 of the limit, relative."""
  order = coefficients.size - 1
  if not order:
    return True
  limit = 1.0 / float(np.sum(coefficients))
  distance = float(np.max(np.abs(head[-order:] / limit - 1.0)))
  if not distance <= _SETTLED:
    return False
  steps = np.abs(np.diff(head, prepend=0.0))
  beyond = np.cumsum(np.abs(coefficients[:0:-1]))[::-1]  # Σ_{j>s} |cⱼ|
  gain = scipy.signal.fftconvolve(steps, beyond)[: head.size]
  return bool(gain[-order:].max() <= 0.5 and gain.max() * distance <= _SETTLED)
