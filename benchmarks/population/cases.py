"""Populations that the benchmark simulates."""

import dataclasses

PREFIX = 'population'


@dataclasses.dataclass(frozen=True)
class Case:
  """Population to simulate.

  Attributes:
    num_devices: number of devices.
    report_goal: number of devices per round.
    num_rounds: n.
    timer: flag of the timer.
  """

  num_devices: int
  report_goal: int
  num_rounds: int
  timer: str

  @property
  def num_participations(self) -> int:
    return self.num_rounds * self.report_goal

  def flags(self) -> list[str]:
    return [
      f'--population={self.num_devices}',
      f'--report_goal={self.report_goal}',
      f'--num_rounds={self.num_rounds}',
      self.timer,
      '--seed=1',
    ]


PRODUCTION = Case(10_000_000, 6500, 2000, '--timer_hours=72')

# The number of participations is constant, the number of devices grows.
GROWING = tuple(
  Case(num_devices, 6500, 2000, '--timer_rounds=10')
  for num_devices in (100_000, 1_000_000, 10_000_000)
)
