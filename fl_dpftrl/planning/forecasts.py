"""Forecast of a run's participation from several simulations and a margin.

The run is simulated with the whole population, because b depends on the cohort size. Without
over-selection, a tenth of the devices and report goal gives a larger b (222 instead of 165), which
understates ε.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fl_dpftrl.participation.rules import separations
from fl_dpftrl.planning.simulation import attendances, cohorts, servers
from fl_dpftrl.support import checks

_LEAST_MARGIN = 0.01  # smallest margin of b, relative to b

FIELDS = ('num_rounds', 'min_sep', 'max_participations', 'days')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """Outcome of a run; min_sep and max_participations are over all devices."""

  seed: int
  report_goal: int
  num_rounds: int
  min_sep: int
  max_participations: int
  days: float

  @property
  def schema(self) -> separations.MinSep:
    return separations.MinSep(
      num_rounds=self.num_rounds, min_sep=self.min_sep, max_participations=self.max_participations
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
  """Outcomes of the planned run."""

  outcomes: tuple[Outcome, ...]
  enforced: int = 1

  @property
  def planned(self) -> separations.MinSep:
    """Schema to account for in advance, worse than all simulated outcomes.

    Few simulations may agree by chance. The planned b is therefore below the lowest by twice the
    spread of the outcomes, and by at least 1 %; the planned k is above the highest by the spread,
    and by at least 1, if so many participations fit.
    """
    lowest_b, highest_b = self.range['min_sep']
    lowest_k, highest_k = self.range['max_participations']
    margin_b = max(math.ceil(_LEAST_MARGIN * lowest_b), 2 * (highest_b - lowest_b))
    min_sep = max(1, min(self.enforced, lowest_b), lowest_b - margin_b)
    num_rounds = self.outcomes[0].num_rounds
    fits = -(-num_rounds // min_sep)
    return separations.MinSep(
      num_rounds=num_rounds,
      min_sep=min_sep,
      max_participations=min(fits, highest_k + max(1, highest_k - lowest_k)),
    )

  @property
  def schemas(self) -> tuple[separations.MinSep, ...]:
    """All simulated schemas and the planned one, sorted by b."""
    distinct = {outcome.schema for outcome in self.outcomes} | {self.planned}
    return tuple(sorted(distinct, key=lambda schema: (schema.min_sep, -schema.participations)))

  @property
  def expected(self) -> dict[str, float]:
    """Mean of each field over the simulations."""
    return {name: statistics.fmean(getattr(o, name) for o in self.outcomes) for name in FIELDS}

  @property
  def range(self) -> dict[str, tuple[Any, Any]]:
    """Lowest and highest value of each field over the simulations."""
    values = {name: [getattr(outcome, name) for outcome in self.outcomes] for name in FIELDS}
    return {name: (min(seen), max(seen)) for name, seen in values.items()}


def forecast(
  simulate: Callable[[int], cohorts.Simulation],
  *,
  num_rounds: int,
  seeds: Sequence[int],
  progress: Callable[[float], None] = lambda share: None,
) -> Forecast:
  """Simulates the planned run, `simulate(seed)`, with each seed; StalledRound if one stalls."""
  if not seeds:
    raise ValueError('seeds must be at least one, got none')
  num_rounds = checks.whole(num_rounds=num_rounds)
  done = itertools.count(1)
  count = lambda: progress(next(done) / (num_rounds * len(seeds)))
  return Forecast(
    outcomes=tuple(run(simulate(seed), num_rounds, count) for seed in seeds),
    enforced=enforced_min_sep(simulate(seeds[0])),
  )


def run(simulation: cohorts.Simulation, num_rounds: int, progress: Callable[[], None]) -> Outcome:
  """Returns the outcome of so many rounds; progress is called after each."""
  attendance = attendances.Attendance()
  for cohort in itertools.islice(simulation.rounds(), num_rounds):
    attendance.add_cohort(cohort)
    progress()
  return Outcome(
    seed=simulation.seed,
    report_goal=simulation.server.report_goal,
    num_rounds=num_rounds,
    min_sep=attendance.min_sep,
    max_participations=attendance.max_participations,
    days=attendance.days,
  )


def enforced_min_sep(simulation: cohorts.Simulation) -> int:
  """Returns the min-sep that timers enforce for all draws; 1 if none."""
  timer = simulation.timer
  if isinstance(timer, servers.RoundTimer) and not simulation.population.forgetting_per_day:
    return timer.rounds
  return 1
