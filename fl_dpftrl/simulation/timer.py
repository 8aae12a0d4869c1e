"""Timers: how long a device stays away after it took part.

A timer runs on each device by itself, from the device's own last participation.
Participations so far are two int64 vectors of shape [num_devices]: the last
round of each device (−1 for none) and the UTC second at which it closed.
"""

import dataclasses
import math
import operator
from typing import Protocol

import numpy as np


class Timer(Protocol):
  """Says which devices' timers have run."""

  def eligible(
      self,
      round_index: int,
      now: int,
      last_round: np.ndarray,
      last_time: np.ndarray,
  ) -> np.ndarray:
    """Whose timer has run: bool, shape [num_devices]."""
    ...

  def earliest(
      self,
      round_index: int,
      now: int,
      last_round: np.ndarray,
      last_time: np.ndarray,
      count: int,
  ) -> int | None:
    """When, from now on, count timers will have run; None for never."""
    ...

  def remedy(self, num_devices: int, report_goal: int) -> str:
    """What would keep rounds from waiting for timers, in a few words."""
    ...


@dataclasses.dataclass(frozen=True)
class RoundTimer:
  """After round t a device is eligible again from round t + rounds on.

  With 1 a device may take part in every round. It enforces a min-sep of rounds.

  Raises:
    ValueError: where rounds is not a whole number of at least 1.
  """

  rounds: int = 1

  def __post_init__(self):
    try:
      whole = operator.index(self.rounds)
    except TypeError:
      whole = 0
    if whole < 1 or isinstance(self.rounds, bool):
      raise ValueError(
          'timer_rounds must be a whole number of at least 1, got'
          f' {self.rounds!r}'
      )

  def eligible(self, round_index, now, last_round, last_time):
    del now, last_time
    return (last_round < 0) | (round_index - last_round >= self.rounds)

  def earliest(self, round_index, now, last_round, last_time, count):
    ready = self.eligible(round_index, now, last_round, last_time)
    return now if np.count_nonzero(ready) >= count else None

  def remedy(self, num_devices: int, report_goal: int) -> str:
    words = [f'a population of at least {self.rounds * report_goal}']
    if num_devices >= report_goal:
      words.append(f'timer_rounds of at most {num_devices // report_goal}')
    if num_devices >= self.rounds:
      words.append(f'a report goal of at most {num_devices // self.rounds}')
    return ' or '.join(words)


@dataclasses.dataclass(frozen=True)
class HourTimer:
  """A device is eligible again once so many hours have passed since its round.

  Raises:
    ValueError: where hours is not a finite number above 0.
  """

  hours: float

  def __post_init__(self):
    if not (math.isfinite(self.hours) and self.hours > 0.0):
      raise ValueError(
          f'timer_hours must be a finite number above 0, got {self.hours!r}'
      )

  @property
  def seconds(self) -> int:
    return math.ceil(self.hours * 3600.0)

  def eligible(self, round_index, now, last_round, last_time):
    del round_index
    return (last_round < 0) | (now - last_time >= self.seconds)

  def earliest(self, round_index, now, last_round, last_time, count):
    del round_index
    if count > last_round.size:
      return None
    ready = np.where(last_round < 0, now, last_time + self.seconds)
    return max(now, int(np.partition(ready, count - 1)[count - 1]))

  def remedy(self, num_devices: int, report_goal: int) -> str:
    return (
        f'a population above {num_devices} or timer_hours below'
        f' {self.hours:g} or a report goal below {report_goal}'
    )
