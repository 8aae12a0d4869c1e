"""Reciprocals of polynomials as power series: what undoes a Toeplitz matrix.

A lower-triangular Toeplitz matrix acts as the polynomial of its coefficients,
its inverse as the reciprocal, and prefix sums as 1 / (1 − z).
"""

import numpy as np
from scipy import signal

_ALWAYS_WHOLE = 2**12  # terms: fewer are not worth asking for the limit
_MOST_BEFORE_LIMIT = 2**22  # terms gone through in search of the limit
_MOST_TERMS = 2**27  # 1 GiB
_MOST_PRODUCTS = 2**37  # a few minutes
_SETTLED = 1e-10  # relative distance from the limit, for ever after


def reciprocal(coefficients: np.ndarray, num_terms: int) -> np.ndarray:
  """The first coefficients of 1 / Σ cᵢ zⁱ, shape [num_terms]."""
  return signal.lfilter([1.0], coefficients, np.eye(1, num_terms)[0])


def step_response(
    coefficients: np.ndarray, num_terms: int
) -> tuple[np.ndarray, float | None]:
  """The coefficients of 1 / ((1 − z) Σ cᵢ zⁱ), their running sums' reciprocal.

  They tend to 1 / Σ cᵢ where every zero of the polynomial is outside of the unit
  disc. Where that limit is reached before num_terms, and is proven to hold from
  there on, the rest is left out: where e is how far the last num_bands terms are
  from the limit, later terms are at most g e away, with g the largest
  of Gₜ = Σ |hₜ₋ₛ| Σ_{j>s} |cⱼ|, h the reciprocal; and where G stays below ½ over
  num_bands terms, every later distance is at most half of an earlier one, so g
  need only be taken up to there. No zero has to be found for it.

  Args:
    coefficients: c, shape [num_bands]; c₀ is not 0.
    num_terms: at least 1.

  Returns:
    The first terms, as many as it takes or all, and the limit from there on, with
    a relative error below 1e-10; None where all terms are given.

  Raises:
    ValueError: where there are too many terms to go through one by one, and
      they do not settle.

  Source: for the limit, Choquette-Choo et al. 2024 (scaling up banded matrix
  factorisation), appendix I, where it is used unproven from num_bands² on.
  """
  coefficients = np.trim_zeros(np.asarray(coefficients, np.float64), 'b')
  size = max(_ALWAYS_WHOLE, 8 * coefficients.size)
  while size < min(num_terms, _MOST_BEFORE_LIMIT):
    head = signal.lfilter([1.0], coefficients, np.ones(size))
    if not np.isfinite(head[-1]):
      break
    if _has_settled(coefficients, head):
      return head, 1.0 / float(np.sum(coefficients))
    size *= 2
  products = num_terms * coefficients.size
  if num_terms > _MOST_TERMS or products > _MOST_PRODUCTS:
    raise ValueError(
        f'num_rounds={num_terms} is too many for this strategy: its errors do'
        ' not settle, because a zero of its coefficients lies on or near the'
        ' unit circle, and going through all rounds would take too long'
    )
  return signal.lfilter([1.0], coefficients, np.ones(num_terms)), None


def _has_settled(coefficients: np.ndarray, head: np.ndarray) -> bool:
  """Whether all later terms are within 1e-10 of the limit, relative to it."""
  order = coefficients.size - 1
  if not order:
    return True
  limit = 1.0 / float(np.sum(coefficients))
  distance = float(np.max(np.abs(head[-order:] / limit - 1.0)))
  if not distance <= _SETTLED:
    return False
  steps = np.abs(np.diff(head, prepend=0.0))
  beyond = np.cumsum(np.abs(coefficients[:0:-1]))[::-1]  # Σ_{j>s} |cⱼ|
  gain = signal.fftconvolve(steps, beyond)[: head.size]
  return bool(
      gain[-order:].max() <= 0.5 and gain.max() * distance <= _SETTLED
  )
