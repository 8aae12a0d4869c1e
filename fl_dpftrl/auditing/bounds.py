"""Lower bounds on ε from samples, each with its confidence."""

import math

import numpy as np
from scipy import optimize, special, stats

_ROUNDING = 1e-9
_LARGEST_MU = 1e3  # a lower bound may be cut; ε is then beyond 500,000
_SHARE = 4  # one score in so many chooses the thresholds of `lower_bound`
_QUANTILES = np.linspace(0.02, 0.98, 13)


def gaussian_epsilon(mu: float, delta: float) -> float:
  """Returns ε at δ of the Gaussian mechanism, rounded down.

  Args:
    mu: distance of the two means in standard deviations; at least 0.
    delta: δ.

  Source: Balle and Wang 2018, theorem 8: δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
  """
  mu = min(mu, _LARGEST_MU)
  if mu <= 0.0 or math.erf(mu / math.sqrt(8.0)) <= delta:
    return 0.0

  def excess(epsilon):
    first = special.log_ndtr(mu / 2.0 - epsilon / mu)
    second = epsilon + special.log_ndtr(-mu / 2.0 - epsilon / mu)
    return first + math.log(max(-math.expm1(min(second - first, 0.0)), 1e-300)) - math.log(delta)

  highest = mu * mu / 2.0 - mu * float(special.ndtri(delta))
  if excess(0.0) <= 0.0 or excess(highest) >= 0.0:
    return 0.0 if excess(0.0) <= 0.0 else highest * (1.0 - _ROUNDING)
  return float(optimize.brentq(excess, 0.0, highest, xtol=1e-12)) * (1.0 - _ROUNDING)


def largest_deviation(samples: np.ndarray, alpha: float) -> float:
  """Returns an upper confidence bound on the standard deviation.

  The samples are independent and Gaussian. Their mean is taken to be 0; another
  mean makes the bound larger.

  Args:
    samples: shape [num_samples].
    alpha: probability that the bound is too small.
  """
  total = float(np.square(samples, dtype=np.float64).sum())
  return math.sqrt(total / stats.chi2.ppf(alpha, samples.size))


def counted_epsilon(
  absent: np.ndarray, present: np.ndarray, thresholds: np.ndarray, delta: float, alpha: float
) -> float:
  """Returns a lower bound on ε from error rates, without a model of the noise.

  A test 'score above a threshold' has false positive rate p and true positive
  rate q. Under (ε, δ), q ≤ e^ε p + δ, and the same holds for the complements.
  Clopper and Pearson's intervals bound both rates at all thresholds, at alpha
  together.

  Args:
    absent, present: scores without and with the device, independent.
    thresholds: thresholds that do not depend on these scores.
    delta: δ.
    alpha: probability that the bound is too large.
  """
  each = alpha / (4 * len(thresholds))
  best = 0.0
  for threshold in thresholds:
    false = int((absent > threshold).sum())
    true = int((present > threshold).sum())
    for (few, of), (many, out_of) in (
      ((false, absent.size), (true, present.size)),
      ((present.size - true, present.size), (absent.size - false, absent.size)),
    ):
      highest = 1.0 if few == of else float(stats.beta.ppf(1.0 - each, few + 1, of - few))
      lowest = 0.0 if not many else float(stats.beta.ppf(each, many, out_of - many + 1))
      if lowest > delta:
        best = max(best, math.log((lowest - delta) / highest))
  return best


def lower_bound(
  absent: np.ndarray, present: np.ndarray, *, delta: float, confidence: float = 0.95
) -> float:
  """Returns a lower bound on ε from scores of neighbouring inputs of your own.

  One score in four chooses the thresholds; the others count. A device that the
  score finds in the wrong direction counts too if the scores are negated.

  Args:
    absent, present: one score for each independent run without and with the
      device, in the order of the runs.
    delta: δ.
    confidence: probability that the bound holds.

  Raises:
    ValueError: if there are fewer than 8 scores, or one is not finite, or delta
      or confidence does not lie between 0 and 1.
  """
  absent, present = (np.asarray(scores, np.float64).ravel() for scores in (absent, present))
  for name, scores in (('absent', absent), ('present', present)):
    if scores.size < 2 * _SHARE or not np.isfinite(scores).all():
      raise ValueError(f'{name} must hold at least {2 * _SHARE} scores, all finite')
  for name, value in (('delta', delta), ('confidence', confidence)):
    if not 0.0 < value < 1.0:
      raise ValueError(f'{name} must lie strictly between 0 and 1, got {value!r}')
  chooses = lambda scores: np.arange(scores.size) % _SHARE == 0
  pooled = np.concatenate([scores[chooses(scores)] for scores in (absent, present)])
  thresholds = np.unique(np.quantile(pooled, _QUANTILES))
  absent, present = (scores[~chooses(scores)] for scores in (absent, present))
  return counted_epsilon(absent, present, thresholds, delta, 1.0 - confidence)
