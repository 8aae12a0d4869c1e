"""The privacy loss that follows from a sensitivity and the noise of runs."""

import dataclasses
import functools
from collections.abc import Sequence

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian, privacy_loss
from fl_dpftrl.replaying import runs as runs_lib

_epsilon = functools.lru_cache(gaussian.epsilon)


@dataclasses.dataclass(frozen=True)
class Spending:
  """Conversion of sensitivities to privacy losses; nothing is guaranteed without noise.

  Attributes:
    noise_multiplier: that of round 0 of the first run; 0 if any round has no noise.
    adjacency: 'zero_out' or 'replace_one'.
    deltas: δ, one or several.
  """

  noise_multiplier: float
  adjacency: str
  deltas: Sequence[float]

  @classmethod
  def of(
    cls, noises: Sequence[runs_lib.Noise], adjacency: str, deltas: Sequence[float]
  ) -> 'Spending':
    """Returns the conversion for runs of one population."""
    has_noise = all(all(noise.multipliers) for noise in noises)
    return cls(noises[0].multiplier if has_noise else 0.0, adjacency, deltas)

  def loss(
    self, sensitivity: sensitivity_lib.Sensitivity, group_size: int = 1
  ) -> privacy_loss.PrivacyLoss:
    """Returns the loss of a sensitivity; ValueError if that is a lower bound."""
    value, kind = adjacency_lib.scaled(sensitivity, self.adjacency, group_size)
    if kind not in (sensitivity_lib.EXACT, sensitivity_lib.UPPER_BOUND):
      raise ValueError(f'a guarantee cannot rest on a {kind} of sensitivity')
    effective = self.noise_multiplier / value
    return privacy_loss.PrivacyLoss(
      sensitivity=value,
      sensitivity_kind=kind,
      effective_noise_multiplier=effective,
      rho=gaussian.rho(effective) if effective else None,
      curve=tuple(
        privacy_loss.Point(d, _epsilon(effective, d) if effective else None) for d in self.deltas
      ),
    )

  def rho(self, sensitivity: float) -> float:
    """Returns ρ of the sensitivity to one device."""
    return gaussian.rho(
      self.noise_multiplier / (sensitivity * adjacency_lib.factor(self.adjacency))
    )
