"""The server of a simulation: how a round gets its cohort, and timers between participations.

Each device has its own timer, which starts at its last participation. A device does not check
in while its timer is running. The server knows nothing of the devices' timers.
"""

import dataclasses
import numbers

from fl_dpftrl.mechanisms import base
from fl_dpftrl.participation.rules import loss_budgets
from fl_dpftrl.support import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
  """Rules by which a round gets its cohort.

  A round chooses the first clients_per_round devices that check in. It closes with the report
  that meets the goal. Later reports are rejected and are no participations. If all chosen
  devices have reported or dropped out and the goal is not met, the round chooses more, in
  proportion to what is missing. The server knows nothing of the devices' timers.

  Attributes:
    minutes_between_rounds: minutes from the close of a round to the next start.
    pace_minutes: shortest time for a round to fill, in minutes; devices are all told to come
      back later if it would fill faster; 0 for no pacing.
    max_wait_days: maximum duration of a round, in days.

  Source: Bonawitz et al. 2019, "Towards federated learning at scale: system design", for
  over-selection (130 % in section 9) and pace steering (section 2.3).
  """

  report_goal: int
  clients_per_round: int = None  # type: ignore[assignment]  # report_goal
  minutes_between_rounds: float = 1.0
  pace_minutes: float = 2.0
  max_wait_days: float = 30.0

  def __post_init__(self):
    if self.clients_per_round is None:
      object.__setattr__(self, 'clients_per_round', self.report_goal)
    checks.keep(self, checks.whole, 'report_goal', 'clients_per_round')
    if self.clients_per_round < self.report_goal:
      raise ValueError(
        f'clients_per_round={self.clients_per_round} is below report_goal={self.report_goal}'
      )
    checks.not_negative(
      minutes_between_rounds=self.minutes_between_rounds, pace_minutes=self.pace_minutes
    )
    checks.positive(max_wait_days=self.max_wait_days)

  def more(self, num_reports: int) -> int:
    """Returns how many devices to choose next, given the reports so far."""
    return -((num_reports - self.report_goal) * self.clients_per_round // self.report_goal)


_MOST_ROUNDS = 2**31
_MOST_HOURS = 876_600.0


@dataclasses.dataclass(frozen=True)
class RoundTimer:
  """Timer after which a device of round t is eligible from t + rounds on: min-sep is `rounds`.

  After `most` participations it is never eligible again.
  """

  rounds: int = 1
  most: int | None = None

  def __post_init__(self):
    checks.whole(1, _MOST_ROUNDS, timer_rounds=self.rounds)
    if self.most is not None:
      checks.whole(max_participations=self.most)

  def remedy(self, num_devices: int, report_goal: int) -> str:
    """Returns changes that would keep rounds from waiting for timers."""
    if self.most is not None:
      return f'a population above {num_devices}, new devices, or more participations of each'
    words = [f'a population of at least {self.rounds * report_goal}']
    if num_devices >= report_goal:
      words.append(f'timer_rounds of at most {num_devices // report_goal}')
    if num_devices >= self.rounds:
      words.append(f'a report goal of at most {num_devices // self.rounds}')
    return ' or '.join(words)


@dataclasses.dataclass(frozen=True)
class HourTimer:
  """Timer in hours, which starts when a device has reported."""

  hours: float

  def __post_init__(self):
    if not (isinstance(self.hours, numbers.Real) and 0.0 < self.hours <= _MOST_HOURS):
      raise ValueError(
        f'timer_hours must be above 0 and at most {_MOST_HOURS:g} (a century), got {self.hours!r}'
      )

  @property
  def seconds(self) -> float:
    return self.hours * 3600.0

  def remedy(self, num_devices: int, report_goal: int) -> str:
    """Returns changes that would keep rounds from waiting for timers."""
    return (
      f'a population above {num_devices} or timer_hours below'
      f' {self.hours:g} or a report goal below {report_goal}'
    )


@dataclasses.dataclass(frozen=True)
class Meter:
  """Meter in place of a timer, of a run without an end.

  A device is eligible from the first round on in which its loss stays within the budget, and never
  again where none does.
  """

  strategy: base.Strategy
  budget: loss_budgets.LossBudget

  def __post_init__(self):
    if not self.strategy.endless_gram().falls:
      raise ValueError(
        f'loss_budget: X of this {self.strategy.family} strategy does not fall with the lag, so'
        ' that devices cannot wait for a round; it is not simulated'
      )

  def remedy(self, num_devices: int, report_goal: int) -> str:
    """Returns changes that would keep rounds from waiting for meters."""
    return f'a population above {num_devices}, new devices, or a larger loss budget'


Timer = RoundTimer | HourTimer | Meter
