"""The protocol of participations: each answers for itself what a run rests on it for."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from fl_dpftrl.mechanisms import base, sensitivities
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.counts import participation_counts, seen
from fl_dpftrl.support.files import json_files

DECLARED, AMPLIFIED, SHUFFLED = 'declared', 'amplified', 'shuffled'
"""Parts of a statement."""

LOG, SERVER = 'the log', 'the server'
"""Whose assumptions they are."""

Recorded = json_files.Object | None
"""Participation in the metadata of a log, if there is one."""


class Gate(Protocol):
  """A gate: it decides by the earlier rounds of each device who may take part in the next one."""

  seen: seen.Seen

  def reasons(self, device_ids: np.ndarray) -> np.ndarray:
    """Returns why each device, text or int64, may not take part; '' where it may."""

  def sentence(self, reason: str, last_round: int, participations: int) -> str:
    """Returns a reason in words, which follow the device; its last round is −1 without one."""

  def record(self, device_ids: np.ndarray) -> None:
    """Records the devices of the next round, each once."""

  def clear(self) -> None:
    """Forgets all rounds."""


class Participation(registry.Participation, Protocol):
  """A participation that answers for itself: all of `registry.Participation`, and what follows.

  Derive one that devices keep to from `promised.Promised`, and one that is drawn from
  `drawn.Drawn`; both have most of the answers.

  Attributes:
    part: name of its guarantee in a statement.
    subject: whose its assumptions are.
    unit: what it is the participation of, such as 'device', 'example' or 'person'.
    is_min_sep: whether it is a min-sep schema, or less, for which strategies are optimised.
    budget: the `LossBudget` of a run without an end, for which they are too; None for others.
    charges_rows: whether each row of a unit is charged, also in one round, rather than its rounds.
    num_rows: rows of noise that a run may use up, also where num_rounds is None.
    needs_rows: whether only the rows of a log show that devices keep to it, and no counts do.
    extent: the rounds that its guarantee is of, in words.
    broken: that a log is not of it, in words.
  """

  part: ClassVar[str]
  subject: ClassVar[str]
  unit: ClassVar[str]
  charges_rows: ClassVar[bool]
  is_min_sep: ClassVar[bool]

  @property
  def budget(self) -> Any: ...

  @property
  def num_rows(self) -> int: ...

  @property
  def needs_rows(self) -> bool: ...

  @property
  def extent(self) -> str: ...

  @property
  def broken(self) -> str: ...

  def for_claim(self, strategy: base.Strategy) -> registry.Participation:
    """Returns what a claim holds of it; ValueError where no run can be claimed with it."""

  def after(self, num_rounds: int) -> Any:
    """Returns what its guarantee is of, once a run has had so many rounds; ValueError beyond it."""

  def rounds_may_follow(self, num_rounds: int) -> bool:
    """Returns whether its guarantee covers rounds that may follow so many."""

  def check(self, strategy: base.Strategy, terms: guarantees.Terms) -> None:
    """Raises ValueError where no guarantee is known."""

  def worst_case(self, strategy: base.Strategy) -> sensitivities.Sensitivity:
    """Returns the largest ‖C u‖ of a device, by which guarantees of several runs compose."""

  def guarantee(
    self, strategy: base.Strategy, noise_multiplier: float, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    """Returns the guarantee, with its assumptions; see `accountant.account`."""

  def least_noise(
    self, strategy: base.Strategy, epsilon: float | None, rho: float | None, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    """Returns the guarantee with the least noise for ε or ρ; see `accountant.calibrate`."""

  def gate(self, strategy: base.Strategy) -> Gate | None:
    """Returns the gate that turns single devices away; None where the server draws all."""

  def wrong(self, strategy: base.Strategy, rounds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns which participations of one run violate it, shape [num_participations].

    Args:
      strategy: C.
      rounds: rounds in the order of devices, ascending for each; shape [num_participations].
      starts: place of the first participation of the same device; the same shape.
    """

  def contradictions(
    self, happened: participation_counts.RunCounts, recorded: Recorded, violators: int
  ) -> list[str]:
    """Returns reasons why a log contradicts it.

    Args:
      happened: counts of the log.
      violators: devices with participations that are `wrong`.
    """

  def voided_by(self, recorded: Any) -> str | None:
    """Returns why a run is void that was replayed with it, but recorded another; None if not."""

  def assumptions(self, adjacency: str) -> tuple[str, ...]:
    """Returns what its part of a statement assumes, as sentences."""

  def verdicts(self, recorded: Mapping[str, bool], holds: bool) -> tuple[str, ...]:
    """Returns what logs show of it, as sentences; recorded: by name of a run, whether its does."""

  def warning(self, reason: str | None) -> str:
    """Returns the warning that it does not hold."""

  def adaptivity(self, end: str) -> str:
    """Returns what its part assumes of choices that followed releases; end: of a run, in words."""

  def summary(self) -> json_files.Object:
    """Returns its fields in a statement."""

  def fields(self, strategy: base.Strategy) -> json_files.Object:
    """Returns its fields beside a guarantee."""

  def together(self, others: Sequence[Any]) -> Any:
    """Returns the participation that stands for it and those of other runs."""

  def check_public(self) -> None:
    """Raises ValueError where nothing of a log may be published."""

  def flags(self, is_recorded: bool) -> list[str]:
    """Returns the flags of `replay` that state it, unless a log records it."""
