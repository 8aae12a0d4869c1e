"""The base class of every participation: who may take part when, what it costs, was it kept."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.participation import gates
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.support.files import json_files

Recorded = json_files.Object | None
"""Participation in the metadata of a log, if there is one."""


class Participation:
  """A participation: a frozen dataclass that says who may take part in which rounds.

  A rule derives from `promised.Promised`, if devices keep to it in all rounds that a run may have,
  or from `drawn.Drawn`, if the server draws who takes part. Each of them answers all questions
  but these, which a rule has to answer:

  - who: `kind`, `num_rounds`, `assumption`, `schema`, `within`; a promised one `gate` too;
  - what it costs: a promised one `worst_case`, a drawn one `check`, `guarantee`, `least_noise`;
  - was it kept: a promised one `wrong` and `contradictions`, a drawn one `refutations`.

  A participation of a user's own that derives from `MinSep` has all answers.

  Attributes:
    kind: its name in a claim.
    unit: what it is the participation of, such as 'device', 'example' or 'person'.
    is_drawn: whether batches or bins are drawn, so that a round may have any number of devices.
    is_secret: whether what was drawn must stay secret, and so the log.
    charges_rows: whether each row of a unit is charged, also in one round, rather than its rounds.
    num_rounds: n, the rounds that there may be; None for a run without an end.
  """

  kind: ClassVar[str]
  unit: ClassVar[str] = 'device'
  is_drawn: ClassVar[bool] = False
  is_secret: ClassVar[bool] = False
  charges_rows: ClassVar[bool] = False
  num_rounds: Any  # An int, or None.

  # Who may take part.

  @property
  def num_rows(self) -> int:
    """Rows of noise that a run may use up, also where num_rounds is None."""
    rows: int = self.num_rounds
    return rows

  @property
  def assumption(self) -> str:
    """The allowed patterns, or the draws, in words."""
    raise NotImplementedError

  @property
  def schema(self) -> schemas.Schema:
    """The strictest min-sep schema that every device keeps to."""
    raise NotImplementedError

  @property
  def gated(self) -> schemas.Schema | None:
    """The schema by which single devices are turned away; None where none is."""
    return None if self.is_drawn else self.schema

  def gate(self, strategy: base.Strategy) -> gates.Gate | None:
    """Returns the gate that turns single devices away; None where the server draws all."""
    raise NotImplementedError

  def within(self, num_rounds: int) -> 'Participation':
    """Returns the participation in a run that has had so many rounds."""
    raise NotImplementedError

  def after(self, num_rounds: int) -> 'Participation':
    """Returns what its guarantee is of, once a run has had so many rounds; ValueError beyond it."""
    raise NotImplementedError

  def for_claim(self, strategy: base.Strategy) -> 'Participation':
    """Returns what a claim holds of it; ValueError where no run can be claimed with it."""
    return self

  def covers(self, other: 'Participation') -> bool:
    """Returns whether it allows all that another one does."""
    return self == other

  # What it costs.

  def check(self, strategy: base.Strategy, terms: guarantees.Terms) -> None:
    """Raises ValueError where no guarantee is known."""
    raise NotImplementedError

  def worst_case(self, strategy: base.Strategy) -> sensitivities.Sensitivity:
    """Returns the largest ‖C u‖ of a device, by which guarantees of several runs compose."""
    raise NotImplementedError

  def guarantee(
    self, strategy: base.Strategy, noise_multiplier: float, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    """Returns the guarantee, with its assumptions; see `accountant.account`."""
    raise NotImplementedError

  def least_noise(
    self, strategy: base.Strategy, epsilon: float | None, rho: float | None, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    """Returns the guarantee with the least noise for ε or ρ; see `accountant.calibrate`."""
    raise NotImplementedError

  def together(self, others: Sequence['Participation']) -> 'Participation':
    """Returns the participation that stands for it and those of other runs; ValueError if none."""
    if others:
      raise ValueError(
        f'participations of {type(self).__name__} are not composed over several runs'
      )
    return self

  # Whether it was kept.

  @property
  def needs_rows(self) -> bool:
    """True where only the rows of a log show that devices keep to it, and no counts do."""
    return True

  def wrong(self, strategy: base.Strategy, rounds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns which participations of one run violate it, shape [num_participations].

    Args:
      strategy: C.
      rounds: rounds in the order of devices, ascending for each; shape [num_participations].
      starts: place of the first participation of the same device; the same shape.
    """
    raise NotImplementedError

  def contradictions(
    self, counts: participation_counts.RunCounts, recorded: Recorded, violators: int
  ) -> list[str]:
    """Returns reasons why a log contradicts it.

    Args:
      counts: counts of the log.
      recorded: participation in its metadata.
      violators: devices with participations that are `wrong`.
    """
    raise NotImplementedError
