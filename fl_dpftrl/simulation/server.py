"""What the server does in a round. It knows nothing of the devices' timers."""

import dataclasses
import math
import operator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
  """How a round gets its cohort.

  A round chooses the first clients_per_round devices that check in. It closes
  with the report that meets the goal. Later reports are turned down, and have
  not taken part. Where all have reported or dropped out and the goal is not met,
  the round chooses more, in proportion to what is missing.

  Attributes:
    report_goal: devices a cohort has.
    clients_per_round: devices chosen; None for as many as report_goal.
    minutes_between_rounds: from the close of a round to the start of the next.
    pace_minutes: devices are told to come back later, all alike, where they
      would fill a round in less than this; 0 for never.
    max_wait_days: that a round may take.

  Raises:
    ValueError: for values outside these ranges.

  Source: Bonawitz et al. 2019, "Towards federated learning at scale: system
  design", for over-selection (130 % in section 9) and pace steering (section
  2.3).
  """

  report_goal: int
  clients_per_round: int | None = None
  minutes_between_rounds: float = 1.0
  pace_minutes: float = 2.0
  max_wait_days: float = 30.0

  def __post_init__(self):
    if self.clients_per_round is None:
      object.__setattr__(self, 'clients_per_round', self.report_goal)
    for name in ('report_goal', 'clients_per_round'):
      object.__setattr__(self, name, operator.index(getattr(self, name)))
    if self.report_goal < 1:
      raise ValueError(
          f'report_goal must be at least 1, got {self.report_goal}'
      )
    if self.clients_per_round < self.report_goal:
      raise ValueError(
          f'clients_per_round={self.clients_per_round} is below'
          f' report_goal={self.report_goal}'
      )
    for name in ('minutes_between_rounds', 'pace_minutes'):
      if not 0.0 <= getattr(self, name) < math.inf:
        raise ValueError(
            f'{name} must be a finite number of at least 0, got'
            f' {getattr(self, name)!r}'
        )
    if not 0.0 < self.max_wait_days < math.inf:
      raise ValueError(
          'max_wait_days must be a finite number above 0, got'
          f' {self.max_wait_days!r}'
      )

  def more(self, num_reports: int) -> int:
    """Devices to choose when all have ended and so many reports are there."""
    missing = self.report_goal - num_reports
    return -(-missing * self.clients_per_round // self.report_goal)
