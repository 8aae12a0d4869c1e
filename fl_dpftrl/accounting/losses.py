"""The privacy loss that follows from a sensitivity and a noise multiplier."""

import dataclasses
from typing import NamedTuple

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.files import json_files
from fl_dpftrl.text import rounding


class Point(NamedTuple):
  """A point of the curve of (ε, δ); ε is None if nothing is guaranteed."""

  delta: float
  epsilon: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyLoss:
  """Privacy loss of one device, of a group, or of an example.

  Attributes:
    sensitivity: in units of the first run's noise multiplier.
    sensitivity_kind: a kind of bound, as in `sensitivity`.
    effective_noise_multiplier: noise multiplier over sensitivity.
    rho: ρ of zCDP; None without noise, and if no single Gaussian mechanism gives it.
    curve: ε at every δ that was asked for, at least one.
  """

  sensitivity: float
  sensitivity_kind: str
  effective_noise_multiplier: float
  rho: float | None
  curve: tuple[Point, ...]

  def __str__(self) -> str:
    shown = 'no ε' if self.epsilon is None else f'ε = {rounding.up(self.epsilon)}'
    return f'{shown} at δ = {rounding.exact(self.curve[0].delta)}'

  @property
  def epsilon(self) -> float | None:
    """ε at the first δ."""
    return self.curve[0].epsilon

  @property
  def mu(self) -> float | None:
    """μ of Gaussian differential privacy; None where ρ is."""
    return None if self.rho is None else gaussian.mu(self.effective_noise_multiplier)

  def voided(self) -> 'PrivacyLoss':
    """Returns the same sensitivity without any guarantee."""
    curve = tuple(Point(point.delta, None) for point in self.curve)
    return dataclasses.replace(self, rho=None, curve=curve)

  def to_json(self) -> json_files.Object:
    """Returns the fields, ε at the first δ, and the curve if it has several δ."""
    result = {**vars(self), 'mu': self.mu, 'epsilon': self.epsilon}
    del result['curve']
    if len(self.curve) > 1:
      result['curve'] = [point._asdict() for point in self.curve]
    return result
