"""The guarantee of Gaussian noise, and the noise that a guarantee needs."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.participation.accounting import adjacencies, arithmetics, gaussian
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages, roundings

SUM_ROUNDING = 1.0 - 2.0**-46
"""Factor that covers what sums of squares and a division round, of a noise multiplier."""


@dataclasses.dataclass(frozen=True)
class Terms:
  """Terms of a guarantee: all that it depends on beside the run.

  Attributes:
    deltas: δ at which ε is stated, one or several.
    adjacency, group_size: see `Guarantee`.
    num_coordinates: parameters of the model, for releases in whole numbers; None for real numbers.
  """

  deltas: Any
  adjacency: str = adjacencies.ZERO_OUT
  group_size: int = 1
  num_coordinates: int | None = None

  def __post_init__(self):
    is_several = isinstance(self.deltas, Iterable) and not isinstance(self.deltas, str)
    object.__setattr__(self, 'deltas', tuple(self.deltas) if is_several else (self.deltas,))
    for delta in self.deltas:
      gaussian.check_delta(delta)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Guarantee:
  """Guarantee of releases that are as private as one Gaussian release.

  Attributes:
    sensitivity: largest change of C x between neighbouring runs per unit of clip norm, or an
      upper bound on it.
    sensitivity_kind: 'exact' or 'upper_bound'.
    noise_multiplier: std(Z) / clip_norm; of several runs, the first one's. 0 guarantees nothing.
    deltas: δ at which ε is stated, at least one.
    adjacency: 'zero_out' (one device's updates are replaced by zeros) or 'replace_one' (one
      device's data is replaced).
    group_size: number of devices protected together.
    rounding: what releases in whole numbers add.
    assumptions: sentences that must hold for the guarantee to be valid, where it is not a part of a
      statement, which has them.
  """

  sensitivity: float
  sensitivity_kind: str
  noise_multiplier: float
  deltas: tuple[float, ...]
  adjacency: str = adjacencies.ZERO_OUT
  group_size: int = 1
  rounding: arithmetics.Rounding = arithmetics.Rounding()
  assumptions: tuple[str, ...] = ()

  def __post_init__(self):
    if self.sensitivity_kind not in (sensitivities.EXACT, sensitivities.UPPER_BOUND):
      raise ValueError(
        f'a guarantee needs an exact sensitivity or an upper bound, got {self.sensitivity_kind!r}'
      )
    checks.positive(sensitivity=self.sensitivity)
    if self.noise_multiplier != 0.0:
      checks.positive(noise_multiplier=self.noise_multiplier)
      gaussian.rho(self.effective_noise_multiplier)  # raises if ρ would overflow
    if not self.deltas:
      raise ValueError('deltas must hold at least one delta')
    for delta in self.deltas:
      gaussian.check_delta(delta)

  @classmethod
  def of(
    cls,
    sensitivity: sensitivities.Sensitivity,
    terms: Terms,
    *,
    noise_multiplier: float,
    rounding: arithmetics.Rounding = arithmetics.Rounding(),
    assumptions: tuple[str, ...] = (),
  ) -> 'Guarantee':
    """Returns the guarantee for a sensitivity to one device's updates, in clip norms.

    Other arguments and errors are those of `Guarantee` and `account`.
    """
    value, kind = adjacencies.scaled(sensitivity, terms.adjacency, terms.group_size)
    return cls(
      sensitivity=value,
      sensitivity_kind=kind,
      noise_multiplier=noise_multiplier,
      deltas=terms.deltas,
      adjacency=terms.adjacency,
      group_size=terms.group_size,
      rounding=rounding,
      assumptions=assumptions,
    )

  @property
  def delta(self) -> float:
    """The first δ, at which ε is stated."""
    return self.deltas[0]

  @property
  def effective_noise_multiplier(self) -> float:
    """noise_multiplier / sensitivity, less what rounding adds; 0 without noise."""
    return self.rounding.lengthened(self.noise_multiplier / self.sensitivity)

  @property
  def rho(self) -> float:
    """ρ of zero-concentrated differential privacy (zCDP); ∞ without noise."""
    effective = self.effective_noise_multiplier
    return gaussian.rho(effective) if effective else math.inf

  @property
  def mu(self) -> float:
    """μ of Gaussian differential privacy; ∞ without noise.

    Telling neighbouring runs apart is as hard as N(0, 1) and N(μ, 1) (Dong, Roth and Su 2022).
    """
    effective = self.effective_noise_multiplier
    return 1.0 / effective if effective else math.inf

  def epsilon(self, delta: float | None = None) -> float:
    """Returns ε at a δ, rounded up; ∞ where no ε is proven.

    None is proven without noise, and at a δ that is spent on releases in whole numbers: that share
    grows with e^ε, and takes any δ from an ε of about 600 on.

    Args:
      delta: δ; None for the first of `deltas`.
    """
    delta = self.delta if delta is None else delta
    return self._epsilon(delta) if self.noise_multiplier else math.inf

  def _epsilon(self, delta: float) -> float:
    effective = self.effective_noise_multiplier * SUM_ROUNDING
    most = gaussian.epsilon(effective, delta) + 1.0
    remaining = self.rounding.left(delta, most)
    value = gaussian.epsilon(effective, remaining) if remaining > 0.0 else math.inf
    return value if value <= most else math.inf

  @property
  def void_reason(self) -> str | None:
    """Why no ε is proven at the first δ; None if one is."""
    if not self.noise_multiplier:
      return 'no noise was added'
    if self.epsilon() == math.inf:
      return f'there is too little noise for any ε at δ = {roundings.exact(self.delta)}'
    return None

  def to_dp_event(self) -> Any:
    """Returns the event of dp_accounting, whose sensitivity is 1, to compose it with others.

    It stands for the adjacency and group size of this guarantee. Without noise, it is
    `NonPrivateDpEvent`. The δ that releases in whole numbers take is not in it.
    """
    from dp_accounting import dp_event  # Slow to load.

    if not self.noise_multiplier:
      return dp_event.NonPrivateDpEvent()
    return dp_event.GaussianDpEvent(self.effective_noise_multiplier)

  def to_json(self) -> json_files.Object:
    """Returns the figures, None for one that is not finite; with a curve if it has several δ."""
    curve = [{'delta': d, 'epsilon': _finite(self.epsilon(d))} for d in self.deltas]
    return {
      'sensitivity': self.sensitivity,
      'sensitivity_kind': self.sensitivity_kind,
      'effective_noise_multiplier': self.effective_noise_multiplier,
      'rho': _finite(self.rho),
      'mu': _finite(self.mu),
      'epsilon': curve[0]['epsilon'],
      **({'curve': curve} if len(curve) > 1 else {}),
    }

  def __str__(self) -> str:
    up, exact = roundings.up, roundings.exact
    return ', '.join(f'ε = {up(self.epsilon(d))} at δ = {exact(d)}' for d in self.deltas)

  def __repr__(self) -> str:
    rho = '' if self.rho is None else f', ρ = {roundings.up(self.rho)}'
    noise = f', noise multiplier {roundings.exact(self.noise_multiplier)}'
    group = f', groups of {self.group_size}' if self.group_size > 1 else ''
    text = f'{type(self).__name__}({self}{rho}{noise}, {self.adjacency}{group})'
    return messages.one_line(text, 120)


def _finite(figure: float | None) -> float | None:
  return figure if figure is not None and math.isfinite(figure) else None


NOISE = 'noise is drawn from secret independent Gaussian numbers, and that of a round is used once'
ASSUMPTIONS = (
  'each update is clipped to the clip norm, and what a device adds depends only on that device',
  NOISE,
  'which devices take part, and when, does not depend on their data',
)
"""Assumptions of a guarantee beside its participation: clipping, noise and devices."""
