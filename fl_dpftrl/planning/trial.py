"""Simulated run, evaluated after several numbers of rounds."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.simulation import timer as timer_lib

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
  def schema(self) -> participation.MinSep:
    return participation.MinSep(
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """Simulation evaluated at several numbers of rounds.

  Attributes:
    outcomes: outcome at each checkpoint that was reached.
    stalled: reason why the last checkpoint was not reached; None if it was.
    closer: distribution after `closer_at` rounds; None if not reached.
  """

  outcomes: tuple[Outcome, ...]
  stalled: str | None = None
  closer: Closer | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """Simulation task.

  Attributes:
    simulation: simulation to run.
    checkpoints: numbers of rounds, ascending; the run ends at the last one.
    closer_at: checkpoint at which the distribution is kept; None for none.
  """

  simulation: cohorts.Simulation
  checkpoints: Sequence[int]
  closer_at: int | None = None

  @property
  def participations(self) -> int:
    """Number of participations to simulate, which determines the run time."""
    return self.checkpoints[-1] * self.simulation.server.report_goal


def run(task: Task, progress: Callable[[int], None] = lambda count: None) -> Trial:
  """Runs a task.

  Args:
    task: simulation and its checkpoints.
    progress: called with the number of participations of each round.
  """
  attendance = attendance_lib.Attendance()
  outcomes, closer, stalled = [], None, None
  try:
    for cohort in itertools.islice(task.simulation.rounds(), task.checkpoints[-1]):
      attendance.add(cohort)
      progress(cohort.device_ids.size)
      if attendance.num_rounds in task.checkpoints:
        outcomes.append(
          Outcome(
            seed=task.simulation.seed,
            report_goal=task.simulation.server.report_goal,
            num_rounds=attendance.num_rounds,
            min_sep=attendance.min_sep,
            max_participations=attendance.max_participations,
            days=attendance.days,
          )
        )
      if attendance.num_rounds == task.closer_at:
        closer = _closer(attendance)
  except cohorts.StalledRound as e:
    stalled = str(e)
  return Trial(outcomes=tuple(outcomes), stalled=stalled, closer=closer)


def enforced_min_sep(simulation: cohorts.Simulation) -> int:
  """Returns the min-sep that timers enforce for all draws; 1 if none."""
  timer = simulation.timer
  if isinstance(timer, timer_lib.RoundTimer) and not simulation.population.forgetting_per_day:
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
