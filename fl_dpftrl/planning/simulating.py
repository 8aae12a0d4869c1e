"""A simulated run, and what its participation came to."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from fl_dpftrl.participation import schemas
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts, server

_HOURS, _HOUR = 24, 3600


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """Outcome of a run.

  Attributes:
    seed: seed of the simulation.
    report_goal: number of devices per cohort.
    num_rounds: n.
    min_sep: b, over all devices.
    max_participations: k, over all devices.
    days: duration of the run in days.
  """

  seed: int
  report_goal: int
  num_rounds: int
  min_sep: int
  max_participations: int
  days: float

  @property
  def schema(self) -> schemas.MinSep:
    return schemas.MinSep(
      num_rounds=self.num_rounds, min_sep=self.min_sep, max_participations=self.max_participations
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Closer:
  """Distribution of participations, for figures.

  Attributes:
    separations: pairs of a number of rounds between participations and its frequency.
    participations: pairs of a number of rounds and the number of devices that took part in as
      many.
    round_minutes: median duration of the rounds that started in each hour of the day, UTC, in
      minutes; None without such rounds.
  """

  separations: tuple[tuple[int, int], ...]
  participations: tuple[tuple[int, int], ...]
  round_minutes: tuple[float | None, ...]


def run(
  simulation: cohorts.Simulation, num_rounds: int, progress: Callable[[], None]
) -> tuple[Outcome, Closer]:
  """Returns the outcome of so many rounds; progress is called after each."""
  attendance = attendance_lib.Attendance()
  for cohort in itertools.islice(simulation.rounds(), num_rounds):
    attendance.add_cohort(cohort)
    progress()
  outcome = Outcome(
    seed=simulation.seed,
    report_goal=simulation.server.report_goal,
    num_rounds=num_rounds,
    min_sep=attendance.min_sep,
    max_participations=attendance.max_participations,
    days=attendance.days,
  )
  return outcome, _closer(attendance)


def enforced_min_sep(simulation: cohorts.Simulation) -> int:
  """Returns the min-sep that timers enforce for all draws; 1 if none."""
  timer = simulation.timer
  if isinstance(timer, server.RoundTimer) and not simulation.population.forgetting_per_day:
    return timer.rounds
  return 1


def _closer(attendance: attendance_lib.Attendance) -> Closer:
  started = np.array(attendance.started)
  minutes = (np.array(attendance.closed) - started) / 60.0
  hours = started // _HOUR % _HOURS
  return Closer(
    separations=_pairs(attendance.separations),
    participations=_pairs(attendance.participations),
    round_minutes=tuple(
      float(np.median(minutes[hours == hour])) if np.any(hours == hour) else None
      for hour in range(_HOURS)
    ),
  )


def _pairs(counts) -> tuple[tuple[int, int], ...]:
  return tuple(zip(counts.values.tolist(), counts.counts.tolist()))
