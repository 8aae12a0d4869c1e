"""Runs that the benchmark plans."""

import argparse
import dataclasses

from benchmarks import selection
from fl_dpftrl.commands import population_flags
from fl_dpftrl.simulation import cohorts

PREFIX = 'plan'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """Population and the run planned for it.

  Attributes:
    size: size in a word.
    population: number of devices.
    report_goal: number of devices per cohort.
    num_rounds: n.
    flags: other flags, as on the command line.
    timeout: time limit of the command, in seconds.
  """

  size: str
  population: int
  report_goal: int
  num_rounds: int
  flags: tuple[str, ...]
  timeout: float = 1800.0

  @property
  def name(self) -> str:
    """Name of the case, such as plan-3M."""
    return f'{PREFIX}-{self.size}'

  @property
  def words(self) -> list[str]:
    """Flags that describe the population, as on the command line."""
    return [
      f'--population={self.population}',
      f'--report_goal={self.report_goal}',
      f'--num_rounds={self.num_rounds}',
      *self.flags,
    ]

  def simulate(self, seed: int) -> cohorts.Simulation:
    """Returns the simulation with a seed."""
    parser = argparse.ArgumentParser()
    population_flags.add_arguments(parser)
    scenario = population_flags.scenario(population_flags.completed(parser.parse_args(self.words)))
    return scenario.simulation(seed=seed)


_THREE_MILLION = {'population': 3_000_000, 'report_goal': 6500, 'num_rounds': 2000}

CASES = (
  Case(size='3M', **_THREE_MILLION, flags=('--timer_hours=72',)),
  # Rounds wait for all chosen devices, so b differs from seed to seed.
  Case(
    size='3M-exact',
    **_THREE_MILLION,
    flags=('--timer_hours=72', '--clients_per_round=6500', '--dropout=0'),
  ),
)


def select(words: list[str]) -> list[Case]:
  """Returns cases by parts of their names; see `selection.select`."""
  return selection.select(CASES, words)
