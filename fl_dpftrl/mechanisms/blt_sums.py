"""Squared sensitivities and errors of BLTs, with their derivatives for the optimiser.

Without a learning-rate schedule they cost the same for any n. They are sums over rounds of
products of decaying geometric series with positive weights. On a block of rounds that starts far
from round 0 such a product is nearly a polynomial, however fast it decays: if it falls steeply
within the block, little of it is left there. A Gauss rule for the *sum* over the rounds of a
block is exact for polynomials. Blocks grow geometrically, so there is one for each power of four.
All weights are positive, so nothing cancels.

Under a schedule the rows of B are not shifts of each other. One pass over the rounds computes
their norms, and carries a few sums for each decay.
"""

import numpy as np

from fl_dpftrl.mechanisms import schemas

_SINGLE = 32  # number of rounds at the start that are summed one by one
_GROWTH = 4  # a block runs from a to 4a
_ORDER = 16  # nodes per block: relative error below 1e-16
_LARGEST = 1.0 - 2.0**-53
_SMALLEST = 1e-300
_IMAGINARY = 1e-40

Derivatives = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A value, shape […], and its derivatives in the points or decays and in the scales."""


def nodes(count: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns positions and weights of a sum: Σ over i < count of f(i) is Σ weights · f(positions).

  About 10 per doubling, ascending, with positive weights; positions are whole numbers only where
  each round counts once.
  """
  single = min(count, _SINGLE)
  positions, weights = [np.arange(float(single))], [np.ones(single)]
  starts, lengths = [], []
  start = single
  while count - start > _ORDER:
    starts.append(start)
    lengths.append(min((_GROWTH - 1) * start, count - start))
    start += lengths[-1]
  if starts:
    inside, block_weights = _gauss(np.array(lengths, dtype=np.float64))
    positions.append((np.array(starts)[:, None] + inside).reshape(-1))
    weights.append(block_weights.reshape(-1))
  positions.append(np.arange(start, count, dtype=np.float64))
  weights.append(np.ones(count - start))
  return np.concatenate(positions), np.concatenate(weights)


def _gauss(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns nodes and weights for sums below each length (Golub, Welsch 1969; DLMF 18.22.1)."""
  degree = np.arange(1.0, _ORDER)
  scale = 1.0 - np.square(degree / lengths[:, None])
  # Off-diagonal entries, in units of the length, which may exceed 10⁹.
  off = 0.5 * degree * np.sqrt(scale / (4.0 * degree**2 - 1.0))
  jacobi = np.zeros((lengths.size, _ORDER, _ORDER))
  index = np.arange(_ORDER - 1)
  jacobi[:, index + 1, index] = off
  points, vectors = np.linalg.eigh(jacobi)
  return (
    0.5 * (lengths[:, None] - 1.0) + lengths[:, None] * points,
    lengths[:, None] * np.square(vectors[:, 0]),
  )


def power_sum(rate: np.ndarray, count: np.ndarray) -> np.ndarray:
  """Returns Σ over i < count of e^(−rate·i), for rates above 0; broadcasts."""
  return np.expm1(-count * rate) / np.expm1(-rate)


def log_slope(rate: np.ndarray, count: np.ndarray) -> np.ndarray:
  """Returns the derivative of ln `power_sum` in the rate, also at rate 0."""
  return count * _without_pole(count * rate) - _without_pole(rate)


def _without_pole(z: np.ndarray) -> np.ndarray:
  """Returns 1 / (e^z − 1) − 1 / z, which lies between −½ and 0."""
  small = z < 0.05
  safe = np.where(small, 1.0, np.minimum(z, 700.0))
  square = z * z
  series = -0.5 + z / 12.0 * (1.0 - square / 60.0 * (1.0 - square / 42.0))
  return np.where(small, series, 1.0 / np.expm1(safe) - 1.0 / np.where(small, 1.0, z))


class SquaredSensitivity:
  """sens² of BLTs and its derivatives, as sums of positive terms only.

  After participation a = 0, 1, …, until the next, row r + 1 of the sum of C's columns is Σ ω
  θ^r G(a), where G(a) = Σ over c ≤ a of θ^(bc).
  """

  def __init__(self, schema: schemas.Schema):
    self._count = schema.participations
    self._step = schema.min_sep
    self._rows = nodes(schema.min_sep if self._count > 1 else 0)
    last = (self._count - 1) * schema.min_sep
    self._last_rows = nodes(schema.num_rounds - 1 - last)
    self._earlier = nodes(self._count - 1)

  def __call__(self, decays: np.ndarray, scales: np.ndarray) -> Derivatives:
    """Returns sens² and its derivatives in θ and in ω, given 1 − θ and ω, each [… d]."""
    # The floor errs upwards: a decay of 0 counts as 10⁻¹⁶.
    rates = -np.log1p(-np.minimum(decays, _LARGEST))
    products, d_products = _products(rates, self._rows)
    last_products, d_last_products = _products(rates, self._last_rows)
    # Sums over all participations except the last, then the last one's own.
    positions, weights = self._earlier
    sums, slopes = self._geometric(rates, positions + 1.0)
    last, last_slope = self._geometric(rates, np.array([float(self._count)]))
    pairs = (sums * weights) @ np.swapaxes(sums, -1, -2)
    d_pairs = (slopes * weights) @ np.swapaxes(sums, -1, -2)
    last_pairs = last * np.swapaxes(last, -1, -2)
    d_last_pairs = last_slope * np.swapaxes(last, -1, -2)
    # Cross terms between the leading 1 of each participation and the tails of earlier ones.
    reach = np.exp(-(self._step - 1.0) * rates)
    meets = reach * (sums @ weights)
    d_meets = reach * (slopes @ weights) - (self._step - 1.0) * meets

    matrix = pairs * products + last_pairs * last_products
    d_matrix = (
      d_pairs * products
      + pairs * d_products
      + d_last_pairs * last_products
      + last_pairs * d_last_products
    )
    through = _apply(matrix, scales)
    value = self._count + np.sum(scales * (2.0 * meets + through), axis=-1)
    d_rates = 2.0 * scales * (d_meets + _apply(d_matrix, scales))
    return value, -d_rates / np.exp(-rates), 2.0 * (meets + through)

  def _geometric(self, rates: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """G and its derivative in the rate, shape [… d, counts]."""
    step_rates = self._step * rates[..., None]
    sums = power_sum(step_rates, counts)
    return sums, sums * self._step * log_slope(step_rates, counts)


class EndlessSquaredSensitivity:
  """B² of BLTs with rows for ever and its derivatives, as sums of positive terms only.

  B² = k + 2 Σⱼ ωⱼ gⱼ + Σⱼₗ ωⱼ ωₗ Pⱼₗ (k + θⱼ gⱼ + θₗ gₗ), with gⱼ = Σ over 0 < i < k of (k − i)
  θⱼ^(bi − 1), and Pⱼₗ = 1 / (1 − θⱼ θₗ).
  """

  def __init__(self, min_sep: int, max_participations: int):
    later = np.arange(1.0, max_participations)
    self._count, self._weights = max_participations, max_participations - later
    self._powers = min_sep * later - 1.0

  def __call__(self, decays: np.ndarray, scales: np.ndarray) -> Derivatives:
    """Returns B² and its derivatives in θ and in ω, given 1 − θ and ω, each [… d]."""
    losses = np.minimum(decays, _LARGEST)
    rates = -np.log1p(-losses)
    theta = np.exp(-rates)
    terms = self._weights * np.exp(-rates[..., None] * self._powers)
    meets, slopes = terms.sum(axis=-1), (terms * self._powers).sum(axis=-1)  # θ · derivative
    row, column = losses[..., :, None], losses[..., None, :]
    pairs = 1.0 / (row + column - row * column)
    crossed = theta * meets
    weights = self._count + crossed[..., :, None] + crossed[..., None, :]
    through = _apply(pairs * weights, scales)
    value = self._count + np.sum(scales * (2.0 * meets + through), axis=-1)
    d_pairs = theta * _apply(pairs**2 * weights, theta * scales)
    d_weights = (crossed + theta * slopes) * _apply(pairs, scales)
    d_theta = 2.0 * scales * (slopes + d_pairs + d_weights) / theta
    return value, d_theta, 2.0 * (meets + through)


class SquaredError:
  """Squared error of prefix sums or momentum, with its derivatives.

  B = A C⁻¹ is Toeplitz. For prefix sums, coefficient i of its first column is Σ s · p^i over
  the chain's points p = 1, θ̂₁, …. With momentum β, p^i becomes Σ over a ≤ i of p^a β^(i−a).
  The terms are positive, except for the last if its θ̂ is negative.
  """

  def __init__(self, num_rounds: int, objective: str, momentum: float = 0.0):
    pairs, weights = nodes(num_rounds // 2)
    # Even and odd rounds apart: powers of a negative number are smooth over each of the two.
    both = np.repeat(2.0 * pairs, 2)
    both[1::2] += 1.0
    weights = np.repeat(weights, 2)
    if num_rounds % 2:
      both = np.append(both, num_rounds - 1.0)
      weights = np.append(weights, 1.0)
    self._rounds = both
    self._is_odd = np.arange(both.size) % 2 == 1
    share = (num_rounds - both) / num_rounds if objective == 'rms' else 1.0
    self._weights = weights * share
    self._momentum = momentum

  def __call__(self, complements: np.ndarray, scales: np.ndarray) -> Derivatives:
    """Returns the square and its derivatives in points and scales, given 1 − p and s, [… d + 1]."""
    terms, slopes = (self._momentum_terms if self._momentum else self._powers)(complements)
    column = (scales[..., None, :] @ terms)[..., 0, :]
    d_column = 2.0 * self._weights * column
    return (
      0.5 * np.sum(d_column * column, axis=-1),
      scales * (slopes @ d_column[..., None])[..., 0],
      (terms @ d_column[..., None])[..., 0],
    )

  def _powers(self, complements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p^i and its derivative in p, shape [… d + 1, rounds]."""
    rates, points = _rates(complements)[..., None], 1.0 - complements[..., None]
    lower_powers = np.exp(-rates * np.maximum(self._rounds - 1.0, 0.0))  # |p|^(i−1)
    lower_powers = np.where((points < 0.0) & ~self._is_odd, -lower_powers, lower_powers)
    return (np.where(self._rounds == 0.0, 1.0, points * lower_powers), self._rounds * lower_powers)

  def _momentum_terms(self, complements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ over a ≤ i of p^a β^(i−a) and its derivative in p, as `_powers`."""
    rounds, beta = self._rounds, self._momentum
    points = 1.0 - complements[..., None]
    powers, d_powers = self._powers(complements)
    # Where p is well below β, (β^(i+1) − p^(i+1)) / (β − p) …
    below = points < 0.5 * beta
    difference = np.where(below, beta - points, 1.0)
    apart = (beta ** (rounds + 1.0) - points * powers) / difference
    d_apart = (apart - powers - points * d_powers) / difference
    # … else the larger to the power i, times a sum of powers of the ratio.
    rates = np.where(below, 0.0, _rates(complements)[..., None])
    other = -np.log1p(beta - 1.0)
    ratio = np.maximum(np.abs(rates - other), 1e-30)
    together = np.exp(-np.minimum(rates, other) * rounds) * power_sum(ratio, rounds + 1.0)
    d_ratio = log_slope(ratio, rounds + 1.0)
    d_rate = np.where(rates > other, d_ratio, -rounds - d_ratio)
    d_together = -together * d_rate / np.where(below, 1.0, points)
    return (np.where(below, apart, together), np.where(below, d_apart, d_together))


def _rates(complements: np.ndarray) -> np.ndarray:
  """−ln |p|."""
  sizes = np.maximum(np.abs(1.0 - complements), _SMALLEST)
  near = np.minimum(complements, 0.5)
  return np.where(complements < 0.5, -np.log1p(-near), -np.log(sizes))


def _products(
  rates: np.ndarray, rows: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """Σ over rows of (θⱼ θₗ)^row, [… j, l], and its derivative in rate j."""
  positions, weights = rows
  powers = np.exp(-rates[..., None] * positions)
  weighted = np.swapaxes(powers * weights, -1, -2)
  return powers @ weighted, -(powers * positions) @ weighted


def _apply(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
  return (matrix @ vector[..., None])[..., 0]


def schedule_squared_errors(
  complements: np.ndarray, scales: np.ndarray, learning_rates: np.ndarray, momentum: float = 0.0
) -> np.ndarray:
  """Squared norm of each row of B = A C⁻¹ under a learning-rate schedule, shape [n].

  With Y the result at a constant rate of 1, the noise in model t is ηₜ Yₜ − Hₜ after summation
  by parts, with Hₜ = Σ over u < t of (ηᵤ₊₁ − ηᵤ) Yᵤ. Variances follow from Cov(Hₜ, Yₜ), which
  filters carry from round to round.

  Args:
    complements: 1 − p for the points of a chain, shape [d + 1].
    scales: scales of its running sums, shape [d + 1]. Both may be complex with small imaginary
      parts; the result is an analytic function of them.
    learning_rates: η, shape [n].
  """
  from scipy import signal

  powers = _schedule_powers(complements, learning_rates.size)
  column = scales @ powers
  if momentum:
    column = signal.lfilter([1.0], [1.0, -momentum], column)
  variances = np.cumsum(column * column)
  steps = np.diff(learning_rates)
  # Cov(Hₜ, aₜ) for the filters a of Y, one for each point, and for Y itself.
  covariance = np.zeros_like(column)
  for point, scale, power in zip(1.0 - complements, scales, powers):
    moved = steps * np.cumsum(column * power)[:-1]
    covariance[1:] += (scale * point) * signal.lfilter([1.0], [1.0, -point], moved)
  if momentum:
    covariance[1:] += momentum * steps * variances[:-1]
    covariance = signal.lfilter([1.0], [1.0, -momentum], covariance)
  h_variances = np.zeros_like(column)
  h_variances[1:] = np.cumsum(steps * (steps * variances[:-1] + 2.0 * covariance[:-1]))
  return learning_rates * (learning_rates * variances - 2.0 * covariance) + h_variances


class ScheduleSquaredError:
  """`SquaredError` for a learning-rate schedule; the largest error is smoothed to a power mean.

  Derivatives come from steps in an imaginary direction, which are exact to rounding.
  """

  def __init__(
    self, learning_rates: np.ndarray, objective: str, momentum: float = 0.0, power: float = 64.0
  ):
    self._learning_rates = learning_rates
    self._power = 1.0 if objective == 'rms' else power
    self._momentum = momentum

  def __call__(self, complements: np.ndarray, scales: np.ndarray) -> Derivatives:
    """Returns value and derivatives, as `SquaredError` does."""
    size = complements.shape[-1]
    values = np.empty(complements.shape[:-1])
    slopes = np.zeros(complements.shape[:-1] + (2 * size,))
    for i in np.ndindex(values.shape):
      arguments = np.concatenate([complements[i], scales[i]])
      values[i] = self._value(arguments).real
      for j in range(1, 2 * size):
        moved = arguments.astype(np.complex128)
        moved[j] += 1j * _IMAGINARY
        slopes[i + (j,)] = self._value(moved).imag / _IMAGINARY
    return values, -slopes[..., :size], slopes[..., size:]

  def _value(self, arguments: np.ndarray) -> np.complex128:
    complements, scales = np.split(arguments, 2)
    squares = schedule_squared_errors(complements, scales, self._learning_rates, self._momentum)
    largest = squares.real.max()
    mean = np.mean((squares / largest) ** self._power)
    return largest * mean ** (1.0 / self._power)


def _schedule_powers(complements: np.ndarray, count: int) -> np.ndarray:
  """p^i, shape [d + 1, count]; analytic in complements."""
  points = 1.0 - complements
  negative = points.real < 0.0
  sizes = np.where(negative, -points, points)
  sizes = np.where(np.abs(sizes) < _SMALLEST, _SMALLEST, sizes)
  is_near = complements.real < 0.5
  logs = np.where(is_near, np.log1p(-np.where(is_near, complements, 0.0)), np.log(sizes))
  powers = np.exp(np.multiply.outer(logs, np.arange(count)))
  powers[negative, 1::2] *= -1.0
  return powers
