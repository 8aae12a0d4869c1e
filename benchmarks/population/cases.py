"""Which populations are simulated."""

import dataclasses

PREFIX = 'population'


@dataclasses.dataclass(frozen=True)
class Case:
  """A population that is simulated.

  Attributes:
    num_devices: its size.
    report_goal: devices in every round.
    num_rounds: n.
    timer: its flag.
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
        f'--population={self.num_devices}', f'--report_goal={self.report_goal}',
        f'--num_rounds={self.num_rounds}', self.timer, '--seed=1',
    ]


PRODUCTION = Case(10_000_000, 6500, 2000, '--timer_hours=72')

# As many participations of ever more devices.
GROWING = tuple(
    Case(num_devices, 6500, 2000, '--timer_rounds=10')
    for num_devices in (100_000, 1_000_000, 10_000_000)
)
