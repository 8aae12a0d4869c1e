"""Participations that are drawn: batches of examples, and secret bins.

The figures are those of the accountant for the stated scheme, which a log can only refute.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.participation import gates, registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.participation import Participation, Recorded
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

BATCHES, ORDERS, BINS = 16, 17, 18
"""Keys of simulated draws, by what is drawn."""

Generator = Callable[..., np.random.Generator]
"""Returns the generator of a key, and of numbers such as the round."""

Relation = tuple[float, str, str]
"""Largest change of a round's sum by one example, in clip norms; pair; adjacency in words."""

Problems = list[tuple[schemas.Schema, dict[str, int]]]
"""Schemas, each with the sizes of a mechanism by keyword."""


class Drawn(Participation):
  """Base class of a participation that the server draws: a round may have any number of devices.

  A subclass defines what `Participation` says, and `drawer` if it is simulated.
  """

  unit: ClassVar[str] = 'example'
  is_drawn: ClassVar[bool] = True

  def refutations(self, counts: participation_counts.RunCounts) -> list[str]:
    """Returns reasons why counts of a log contradict the scheme."""
    raise NotImplementedError

  def drawer(self, generator: Generator, num_devices: int | None) -> Callable[[int], np.ndarray]:
    """Returns the function from a round to its simulated cohort, int64, numbers from 0."""
    raise NotImplementedError

  def after(self, num_rounds: int) -> Participation:
    """Returns the scheme of the rounds that there were; ValueError for more than all."""
    if num_rounds > self.num_rounds:
      raise ValueError(f'sampling is of {self.num_rounds} rounds, but the log has {num_rounds}')
    return self.within(num_rounds)

  def for_bands(self, strategy: base.Strategy) -> 'Drawn':
    """Returns the scheme as it amplifies a strategy best."""
    return self

  def problems(self, size: str | None, *, is_fixed: bool = False) -> Problems:
    """Returns what to optimise for, of which one has the least noise.

    Args:
      size: keyword of the mechanism's size; None without one, or `is_fixed` where none is tried.
    """
    return [(self.schema, {})]

  def worst_case(self, strategy: base.Strategy) -> sensitivities.Sensitivity:
    """Returns the sensitivity of a device whose draws are known."""
    return sensitivities.sensitivity(strategy, self.schema)

  def gate(self, strategy: base.Strategy) -> gates.Gate | None:
    """Returns None: whoever is drawn takes part."""
    return None

  def wrong(self, strategy: base.Strategy, rounds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns none: no participation of a single device refutes draws."""
    return np.zeros(rounds.size, bool)

  def contradictions(
    self, counts: participation_counts.RunCounts, recorded: Recorded, violators: int
  ) -> list[str]:
    """Returns refutations, after that the log records another participation."""
    reasons = self.refutations(counts)
    # Of rounds that were planned, a run may have had fewer.
    if recorded and recorded | {'num_rounds': self.num_rounds} != registry.to_json(self):
      shown = messages.one_line(json.dumps(recorded), 200)
      reasons.insert(0, f'its own file says that participation was drawn as {shown}')
    return reasons


class Secret(Drawn):
  """Base class of secret draws. A subclass defines `relations`, by adjacency."""

  is_secret: ClassVar[bool] = True
  relations: ClassVar[Mapping[str, Relation]]

  def relation(self, adjacency: str) -> Relation:
    """Returns the effect of one example; raises ValueError if no bound is known."""
    if adjacency not in self.relations:
      raise ValueError(
        f'adjacency must be one of {", ".join(self.relations)} where participation is drawn by'
        f' {type(self).__name__}, got {adjacency!r}: no bound is known'
      )
    return self.relations[adjacency]

  def check(self, strategy: base.Strategy, terms: guarantees.Terms) -> None:
    """Raises ValueError for a group, releases in whole numbers, or an adjacency without a bound."""
    refused = f'is refused with participation that is drawn by {self.kind}:'
    if terms.group_size != 1:
      why = 'each is drawn by itself, and a multiple of the sensitivity bounds no group; use 1'
      raise ValueError(f'group_size={terms.group_size} {refused} {why}')
    if terms.num_coordinates is not None:
      why = 'the rounding of whole numbers is not bounded; leave it out'
      raise ValueError(f'num_coordinates={terms.num_coordinates} {refused} {why}')
    self.relation(terms.adjacency)

  @property
  def conditions(self) -> tuple[str, ...]:
    """Assumptions of a guarantee with these draws, in words, but for the adjacency."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DrawnGuarantee(guarantees.Guarantee):
  """Guarantee for everybody in a run whose participation is drawn in secret.

  The sensitivity is that of draws that are known. No single Gaussian release is as private, so
  there is no ρ and no μ.

  Attributes:
    sampling: how participation is drawn.
    curve: function from noise multiplier and δ to ε.
  """

  sampling: Secret
  curve: Callable[[float, float], float] = dataclasses.field(compare=False)

  rho = mu = None  # type: ignore[assignment]

  def _epsilon(self, delta: float) -> float:
    return self.curve(self.noise_multiplier, delta)

  def to_dp_event(self) -> Any:
    """Returns the event of dp_accounting for Poisson samples; ValueError for others."""
    if not hasattr(self.sampling, 'event'):
      raise ValueError(f'dp_accounting has no event of {type(self.sampling).__name__}')
    return self.sampling.event(super().to_dp_event())


def target(epsilon: float | None, rho: float | None) -> float:
  """Returns the ε that noise is to meet; ValueError without one, and for ρ."""
  if rho is not None or epsilon is None:
    raise ValueError(
      f'rho={rho}: give epsilon in its place, as secret draws are no single Gaussian release'
    )
  checks.positive(epsilon=epsilon)
  return epsilon
