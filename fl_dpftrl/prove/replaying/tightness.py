"""The distance of a stated ε from that of the best attack on releases of its sensitivity.

A likelihood-ratio test attains the exact curve of a Gaussian shift μ = sensitivity / noise. So a
stated ε is above it by what rounding to whole numbers and an upper bound add, both computed here,
and by errors of float64 in μ, of at most r = 1e-10 of it: |dε/dμ| = 1 / R(b) ≤ b + 1 for Mills'
ratio R and b = ε/μ + μ/2 (Birnbaum 1942), which makes r (ε + ρ + μ).
"""

from typing import NamedTuple

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.participation.accounting import adjacencies, gaussian, guarantees
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.support.text import roundings

_ERROR = 1.1e-10  # r, and what `gaussian.epsilon` is above the curve
_MOST_PAIRS = 4_000_000  # of rounds, in a pattern


class Tightness(NamedTuple):
  """The kind of an ε, the most it is above an attack at any δ, None if unknown, and what attack."""

  kind: str
  distance: float | None = None
  above: str | None = None

  def __str__(self) -> str:
    if self.distance is None:
      return 'upper bound'
    if not self.above:
      return f'exact to {self.distance:g}'
    return f'at most {self.distance:g} above {self.above}'


def tightness(guarantee: guarantees.Guarantee, attack: float | None = None) -> Tightness | None:
  """Returns the tightness of a guarantee; None where no ε is proven.

  Args:
    attack: sensitivity that updates reach, where that of the guarantee is an upper bound.
  """
  is_exact = guarantee.sensitivity_kind == sensitivities.EXACT
  reached = guarantee.sensitivity if is_exact else attack
  if guarantee.void_reason:
    return None
  if guarantee.mu is None or not reached:  # Of mixtures no attack is known.
    return Tightness(sensitivities.UPPER_BOUND)
  above = None if is_exact else 'a known attack'
  if guarantee.rounding.mu:
    above = f'{above or "the exact one"}, without rounding'
  distances = []
  for delta in guarantee.deltas:
    epsilon, multiplier = guarantee.epsilon(delta), guarantee.noise_multiplier / reached
    gap = epsilon - gaussian.epsilon(multiplier, delta) if above else 0.0
    distances.append(max(gap, 0.0) + _ERROR * (epsilon + guarantee.rho + guarantee.mu))
  distance = float(roundings.up(max(distances), digits=2))
  return Tightness(sensitivities.UPPER_BOUND if above else sensitivities.EXACT, distance, above)


def attack(
  claim: run_claim.Claim, participation: Participation, terms: guarantees.Terms
) -> float | None:
  """Returns what equal or orthogonal updates of a regular pattern of a min-sep schema reach."""
  if type(participation) is not separations.MinSep or participation.num_rounds is None:
    return None
  number, step = participation.participations, participation.min_sep
  if number * number > _MOST_PAIRS:
    return None
  entries, square = claim.strategy.gram_entries(participation.num_rounds), 0.0
  for start in (0, participation.num_rounds - 1 - (number - 1) * step):
    rounds = start + step * np.arange(number)
    pairs = entries(rounds[:, None], rounds[None, :])
    square = max(square, float(pairs.sum()), float(np.trace(pairs)))
  value = sensitivities.Sensitivity.from_square(square)
  return adjacencies.scaled(value, terms.adjacency, terms.group_size).value
