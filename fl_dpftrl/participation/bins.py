"""Guarantee of secret bins, for any strategy, and the noise that one needs."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from fl_dpftrl.mechanisms import base, sensitivities
from fl_dpftrl.participation import drawn
from fl_dpftrl.participation.accounting import bound, gaussian, guarantees

_MOST_ENTRIES = 2**30  # of a strategy matrix
_PRECISION, _MOST_STEPS = 1e-4, 20  # The first is relative, of the ε that noise is found for.


def proven(
  strategy: base.Strategy, scheme: drawn.Secret, noise_multiplier: float, terms: guarantees.Terms
) -> drawn.DrawnGuarantee:
  """Returns the guarantee; ValueError for another adjacency than zero-out."""
  assumptions = (*scheme.conditions, scheme.relation(terms.adjacency)[2])
  entries = gram(strategy, scheme)
  return drawn.DrawnGuarantee(
    sensitivity=math.sqrt(entries.diagonal().max()),
    sensitivity_kind=sensitivities.UPPER_BOUND,
    noise_multiplier=noise_multiplier,
    deltas=terms.deltas,
    adjacency=terms.adjacency,
    assumptions=assumptions,
    sampling=scheme,
    curve=functools.cache(lambda noise, delta: bound.epsilon(entries / noise**2, delta)),
  )


def calibrated(start: drawn.DrawnGuarantee, epsilon: float) -> drawn.DrawnGuarantee:
  """Returns the guarantee with the least noise, up to 1e-4 of ε, that meets ε at the first δ."""
  least = gaussian.effective_noise_multiplier(epsilon, start.delta)  # Enough without a secret.
  noise, slope, previous = start.sensitivity * least, -1.0, None
  for _ in range(_MOST_STEPS):
    certificate = dataclasses.replace(start, noise_multiplier=noise)
    excess = math.log(max(certificate.epsilon(), 1e-300) / epsilon)
    if -_PRECISION <= excess <= 0.0:
      break
    if previous is not None and excess != previous[1]:
      slope = min((excess - previous[1]) / math.log(noise / previous[0]), -0.1)
    previous = noise, excess
    # It aims at the middle of what will do.
    noise *= math.exp((excess + 0.5 * _PRECISION) / -slope)
  if certificate.epsilon() > epsilon:
    certificate = dataclasses.replace(start, noise_multiplier=start.sensitivity * least)
  return certificate


def gram(strategy: base.Strategy, scheme: Any) -> np.ndarray:
  """Returns M|C|ᵀ|C|M, [bins, bins], of the rounds M of each bin and a clip norm of 1, rounded up.

  Raises:
    ValueError: if the strategy runs fewer rounds, or its matrix would be too large.
  """
  num_rounds, num_bins = scheme.num_rounds, scheme.num_bins
  base.check_num_rounds(strategy, num_rounds)
  if strategy.num_noise_rows(num_rounds) * num_rounds > _MOST_ENTRIES:
    raise ValueError(f'num_rounds={num_rounds} is too large for bins, which take all of C')
  matrix = strategy.strategy_matrix(num_rounds)
  sums = np.zeros((len(matrix), num_bins))
  for start in range(0, num_rounds, num_bins):
    block = matrix[:, start : start + num_bins]
    sums[:, : block.shape[1]] += np.abs(block)
  return (sums.T @ sums) * (1.0 + 1e-11)
