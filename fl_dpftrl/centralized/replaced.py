"""Privacy loss of a sampled Gaussian release under replace-one adjacency."""

import math

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution

from fl_dpftrl.accounting import calibration

_DEVIATIONS = 10.0  # half-width of the grid; less than 1e-23 lies beyond


def loss_distribution(
  multiplier: float, probability: float, step: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
  """Returns a loss distribution that dominates both directions of a replacement.

  It holds for samples of a fixed size without replacement and for Poisson samples. If δ(ε) is
  the curve of the Gaussian release for samples that differ in one example, the curve of the
  sampled release is at most q δ(ε') with e^ε' = 1 + (e^ε − 1) / q. The relation is symmetric,
  so the bound holds for negative ε too, and it composes.

  Args:
    multiplier: standard deviation of the noise over the largest change of a sample's sum when
      one of its examples is replaced. That change is twice the contribution of an example.
    probability: q, the probability that a sample includes an example.
    step: distance between the losses of the grid.

  Source: Balle, Barthe and Gaboardi 2018, theorems 2 and 9; Zhu, Dong and Wang 2022, for pairs
  that dominate and compose; Doroshenko et al. 2022 (connect the dots).
  """
  mu = 1.0 / multiplier
  whole = mu * (0.5 * mu + _DEVIATIONS)
  most = whole + math.log(probability + (1.0 - probability) * math.exp(-whole))
  top = math.ceil(most / step)
  losses = step * np.arange(top + 1)
  rest = np.exp(-losses)
  above = probability * np.exp(
    calibration.log_delta(mu, losses + np.log((1.0 - rest) / probability + rest))
  )
  below = 1.0 - rest[1:] + rest[1:] * above[1:]  # δ(−ε) = 1 − e^−ε + e^−ε δ(ε)
  deltas = np.concatenate([below[::-1], above])
  return privacy_loss_distribution.PrivacyLossDistribution(
    pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
      step, -top, top, np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    )
  )
