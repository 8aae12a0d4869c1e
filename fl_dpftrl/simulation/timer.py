"""Timers: how long a device stays away after it took part.

A timer runs on each device by itself, from the device's own last participation;
a device whose timer has not run does not check in.
"""

import dataclasses
import operator

_MOST_ROUNDS = 2**31
_MOST_HOURS = 876_600.0


@dataclasses.dataclass(frozen=True)
class RoundTimer:
  """After round t a device is eligible again from round t + rounds on.

  With 1 a device may take part in every round. It enforces a min-sep of rounds.

  Raises:
    ValueError: where rounds is not a whole number from 1 to 2^31.
  """

  rounds: int = 1

  def __post_init__(self):
    try:
      whole = operator.index(self.rounds)
    except TypeError:
      whole = 0
    if not 1 <= whole <= _MOST_ROUNDS or isinstance(self.rounds, bool):
      raise ValueError(
          f'timer_rounds must be a whole number from 1 to {_MOST_ROUNDS}, got'
          f' {self.rounds!r}'
      )

  def remedy(self, num_devices: int, report_goal: int) -> str:
    """What would keep rounds from waiting for timers, in a few words."""
    words = [f'a population of at least {self.rounds * report_goal}']
    if num_devices >= report_goal:
      words.append(f'timer_rounds of at most {num_devices // report_goal}')
    if num_devices >= self.rounds:
      words.append(f'a report goal of at most {num_devices // self.rounds}')
    return ' or '.join(words)


@dataclasses.dataclass(frozen=True)
class HourTimer:
  """A device is eligible again so many hours after it reported.

  Raises:
    ValueError: where hours is not above 0, or more than a century.
  """

  hours: float

  def __post_init__(self):
    if not 0.0 < self.hours <= _MOST_HOURS:
      raise ValueError(
          f'timer_hours must be above 0 and at most {_MOST_HOURS:g} (a century),'
          f' got {self.hours!r}'
      )

  @property
  def seconds(self) -> float:
    return self.hours * 3600.0

  def remedy(self, num_devices: int, report_goal: int) -> str:
    """What would keep rounds from waiting for timers, in a few words."""
    return (
        f'a population above {num_devices} or timer_hours below'
        f' {self.hours:g} or a report goal below {report_goal}'
    )


Timer = RoundTimer | HourTimer
