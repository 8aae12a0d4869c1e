"""Devices of an audit: where their updates go, how they are scored, bounds on ε from scores."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from fl_dpftrl.auditing import bounds, noise_tests, subjects
from fl_dpftrl.participation import schemas

_SCORES = np.linspace(-3.0, 6.0, 19)  # thresholds of scores, in standard deviations
_SINGULAR = 1e-10
_FAR = 10.0  # norm over clip norm of the canaries of a subject that clips


class Filter(NamedTuple):
  """A test of one device.

  Attributes:
    pattern: signs of the device's updates, shape [num_rounds].
    weights: weights of the rounds in the score, shape [num_rounds].
  """

  pattern: np.ndarray
  weights: np.ndarray


def matched(covariance: np.ndarray, schema: schemas.MinSep) -> Filter:
  """Returns the likelihood ratio for a worst pattern under a covariance."""
  values, vectors = np.linalg.eigh(covariance)
  values = np.maximum(values, max(_SINGULAR * values.max(), 1e-300))
  information = (vectors / values) @ vectors.T
  pattern = subjects.worst_pattern(information, schema)
  weights = information @ pattern
  return Filter(pattern, weights / math.sqrt(float(weights @ covariance @ weights) or 1.0))


class Canaries(NamedTuple):
  """Devices with a coordinate each, the last ones of every tensor.

  Attributes:
    places: their coordinates, ascending, shape [num_canaries].
    tensors: number of the tensor of each, same shape.
    filters: number of the filter, 0 or 1, that each serves: they take turns in
      every tensor, from 0 on. Same shape.
  """

  places: np.ndarray
  tensors: np.ndarray
  filters: np.ndarray

  @classmethod
  def of(cls, sizes: Sequence[int], count: int) -> 'Canaries':
    """Gives each tensor a canary, the largest first, and shares the others by size.

    Args:
      sizes: number of coordinates of each tensor.
      count: most canaries; at most sum(sizes).
    """
    lengths = np.asarray(sizes)
    shares = np.zeros(len(lengths), int)
    shares[np.argsort(-lengths, kind='stable')[:count]] = 1
    shares = np.minimum(shares, lengths)
    left = lengths - shares
    shares += (count - shares.sum()) * left // max(1, left.sum())
    first = np.cumsum(lengths) - shares
    turns = [np.arange(share) for share in shares]
    return cls(
      places=np.concatenate([start + turn for start, turn in zip(first, turns)]),
      tensors=np.repeat(np.arange(len(lengths)), shares),
      filters=np.concatenate(turns) % 2,
    )

  def cohorts(
    self, subject: subjects.Subject, filters: Sequence[Filter], clip_norm: float
  ) -> subjects.Cohorts:
    """Returns the updates of the canaries in each round, by the patterns of the filters."""
    norm = clip_norm * (_FAR if subject.clips else 1.0)
    zeros = np.zeros(sum(subject.sizes), np.float32)
    patterns = np.array([chosen.pattern for chosen in filters])

    def cohort(t):
      sent = norm * patterns[self.filters, t]
      if not subject.clips:  # Nothing is bounded, so a sum stands for many devices.
        together = zeros.copy()
        together[self.places] = sent
        return [together]
      updates = [zeros]
      for place, value in zip(self.places[sent != 0.0], sent[sent != 0.0]):
        update = zeros.copy()
        update[place] = value
        updates.append(update)
      return updates

    return cohort


def gaussian(
  chosen: Filter, noise: Sequence[noise_tests.Noise], response: float, alpha: float, delta: float
) -> float:
  """Returns a bound on ε for Gaussian noise; too large with probability alpha.

  The response is a lower bound with a probability of its own.
  """
  scores = np.concatenate([chosen.weights @ run.released for run in noise])
  return _epsilon(
    response * float(chosen.weights @ chosen.pattern),
    bounds.largest_deviation(scores, alpha),
    delta,
  )


def gaussian_of_tensors(
  chosen: Filter,
  noise: Sequence[noise_tests.Noise],
  scores: np.ndarray,
  tensors: np.ndarray,
  alpha: float,
  delta: float,
) -> float:
  """Returns the largest bound on ε from the noise and the canaries of one tensor alone.

  The mean score of a tensor's canaries has at most the tensor's deviation over
  the root of their number, so that both bounds together leave their distance.

  Args:
    chosen: filter that the canaries serve, and that no run of `noise` has chosen.
    noise: runs without the canaries' coordinates, where these take part.
    scores: of the canaries, shape [num_canaries].
    tensors: number of the tensor of each of them.
    alpha: probability that the bound is too large.
    delta: δ.
  """
  numbers = np.unique(tensors)
  each = alpha / (2 * max(1, len(numbers)))
  best = 0.0
  for number in numbers:
    parts = [chosen.weights @ run.released[:, run.tensors == number] for run in noise]
    deviation = bounds.largest_deviation(np.concatenate(parts), each)
    own = scores[tensors == number]
    distance = float(own.mean()) - float(stats.norm.isf(each)) * deviation / math.sqrt(own.size)
    best = max(best, _epsilon(max(0.0, distance), deviation, delta))
  return best


def _epsilon(distance: float, deviation: float, delta: float) -> float:
  return bounds.gaussian_epsilon(distance / deviation if deviation else math.inf, delta)


def counted(absent: np.ndarray, present: np.ndarray, delta: float, alpha: float) -> float:
  """Returns a bound on ε from counted errors of scores without and with canaries."""
  return bounds.counted_epsilon(absent, present, _SCORES, delta, alpha)
