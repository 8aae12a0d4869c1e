"""The privacy loss distribution of a Gaussian, computed as arrays.

`dp_accounting` computes the same distribution value by value in Python, which
is most of the time of an ε. The numbers here are the same, to the last bit with
the locked release.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from dp_accounting.pld import privacy_loss_distribution

# dp_accounting stores and composes distributions of up to so many values in
# another way, which is quick.
_MOST_SPARSE = 1000


def distribution(
  effective_noise_multiplier: float, step: float
) -> 'privacy_loss_distribution.PrivacyLossDistribution':
  """Returns the distribution with losses at multiples of step, never optimistic.

  Source: Doroshenko et al. 2022, algorithm 1 (connect the dots).
  """
  # This import is slow, and a command that computes no ε does without it.
  from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism

  loss = privacy_loss_mechanism.GaussianPrivacyLoss(
    effective_noise_multiplier, adjacency_type=privacy_loss_mechanism.AdjacencyType.REMOVE
  )
  bounds = loss.connect_dots_bounds()
  last = math.ceil(bounds.epsilon_upper / step)
  first = math.floor(bounds.epsilon_lower / step)
  # δ(ε) = P[loss > ε] − e^ε P'[loss > ε]; the loss is above ε below the cutoff.
  epsilons = np.arange(first, last + 1) * step
  cutoffs = -0.5 - epsilons * effective_noise_multiplier**2
  deltas = loss.mu_upper_cdf(cutoffs) - np.exp(epsilons + loss.mu_lower_log_cdf(cutoffs))
  deltas = np.clip(deltas, 0, 1)
  if deltas.size <= _MOST_SPARSE:
    masses = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, first, last, deltas)
  else:
    changes, growth = np.diff(deltas), math.expm1(step)
    probabilities = np.empty_like(deltas)
    probabilities[0] = 1 - deltas[0] + changes[0] / growth
    probabilities[1:-1] = (changes[1:] - changes[:-1] * math.exp(step)) / growth
    probabilities[-1] = changes[-1] / math.expm1(-step)
    masses = pld_pmf.DensePLDPmf(step, first, np.maximum(0.0, probabilities), deltas[-1], True)
  # The accountant of dp_accounting composes with nothing first, which cuts the tails.
  nothing = privacy_loss_distribution.identity(step)
  return nothing.compose(privacy_loss_distribution.PrivacyLossDistribution(masses))
