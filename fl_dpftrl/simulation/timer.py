"""Timers that keep a device away after a participation.

Each device has its own timer, which starts at its last participation. A device does not check
in while its timer is running.
"""

import dataclasses
import numbers

from fl_dpftrl import participation

_MOST_ROUNDS = 2**31
_MOST_HOURS = 876_600.0


@dataclasses.dataclass(frozen=True)
class RoundTimer:
  """Timer in rounds: after round t a device is eligible from t + rounds on.

  With 1 a device may take part in every round. The timer enforces a min-sep of `rounds`.

  Raises:
    ValueError: if rounds is not a whole number from 1 to 2^31.
  """

  rounds: int = 1

  def __post_init__(self):
    participation.positive_integer('timer_rounds', self.rounds, _MOST_ROUNDS)

  def remedy(self, num_devices: int, report_goal: int) -> str:
    """Returns changes that would keep rounds from waiting for timers."""
    words = [f'a population of at least {self.rounds * report_goal}']
    if num_devices >= report_goal:
      words.append(f'timer_rounds of at most {num_devices // report_goal}')
    if num_devices >= self.rounds:
      words.append(f'a report goal of at most {num_devices // self.rounds}')
    return ' or '.join(words)


@dataclasses.dataclass(frozen=True)
class HourTimer:
  """Timer in hours, which starts when a device has reported.

  Raises:
    ValueError: if hours is not above 0, or more than a century.
  """

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


Timer = RoundTimer | HourTimer
