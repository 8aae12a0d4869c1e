"""One simulated run, looked at after several numbers of rounds."""

import dataclasses
import itertools
from typing import Callable, Sequence

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.simulation import timer as timer_lib

_HOURS, _HOUR = 24, 3600


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What a run came to.

  Attributes:
    seed: that it was simulated with.
    report_goal: devices in each cohort.
    num_rounds: n.
    min_sep: b, over all devices.
    max_participations: k, over all devices.
    days: from its start to its end.
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
        num_rounds=self.num_rounds,
        min_sep=self.min_sep,
        max_participations=self.max_participations,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Closer:
  """How participations were spread, for figures.

  Attributes:
    separations: pairs of rounds apart, and how often that occurred.
    participations: pairs of a number of rounds, and the devices that took part
      in as many.
    round_minutes: median length of the rounds that began in each hour of the
      day, UTC; None where none did.
  """

  separations: tuple[tuple[int, int], ...]
  participations: tuple[tuple[int, int], ...]
  round_minutes: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """A simulation, looked at several times as it went on.

  Attributes:
    outcomes: after each number of rounds that it got to.
    stalled: why it did not get to all of them; None where it did.
    closer: after `closer_at` rounds; None where it did not get there.
  """

  outcomes: tuple[Outcome, ...]
  stalled: str | None = None
  closer: Closer | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """What to simulate.

  Attributes:
    simulation: who takes part.
    checkpoints: numbers of rounds, ascending; the last is where it ends.
    closer_at: one of them, of which more is kept; None for none.
  """

  simulation: cohorts.Simulation
  checkpoints: Sequence[int]
  closer_at: int | None = None

  @property
  def participations(self) -> int:
    """To be simulated, which sets how long it takes."""
    return self.checkpoints[-1] * self.simulation.server.report_goal


def run(
    task: Task, progress: Callable[[int], None] = lambda count: None
) -> Trial:
  """Simulates.

  Args:
    task: what.
    progress: told of the participations of each round.
  """
  attendance = attendance_lib.Attendance()
  outcomes, closer = [], None
  rounds = itertools.islice(task.simulation.rounds(), task.checkpoints[-1])
  try:
    for cohort in rounds:
      attendance.add(cohort)
      progress(cohort.device_ids.size)
      if attendance.num_rounds in task.checkpoints:
        outcomes.append(_outcome(task.simulation, attendance))
      if attendance.num_rounds == task.closer_at:
        closer = _closer(attendance)
  except cohorts.StalledRound as e:
    return Trial(outcomes=tuple(outcomes), stalled=str(e), closer=closer)
  return Trial(outcomes=tuple(outcomes), closer=closer)


def enforced_min_sep(simulation: cohorts.Simulation) -> int:
  """What the devices' timers keep to whatever is drawn, or 1."""
  timer = simulation.timer
  if (
      isinstance(timer, timer_lib.RoundTimer)
      and not simulation.population.forgetting_per_day
  ):
    return timer.rounds
  return 1


def _outcome(
    simulation: cohorts.Simulation, attendance: attendance_lib.Attendance
) -> Outcome:
  return Outcome(
      seed=simulation.seed,
      report_goal=simulation.server.report_goal,
      num_rounds=attendance.num_rounds,
      min_sep=attendance.min_sep,
      max_participations=attendance.max_participations,
      days=attendance.days,
  )


def _closer(attendance: attendance_lib.Attendance) -> Closer:
  started = np.array(attendance.started)
  minutes = (np.array(attendance.closed) - started) / 60.0
  hours = started // _HOUR % _HOURS
  return Closer(
      separations=_pairs(attendance.separations),
      participations=_pairs(attendance.participations),
      round_minutes=tuple(
          float(np.median(minutes[hours == hour]))
          if np.any(hours == hour) else None
          for hour in range(_HOURS)
      ),
  )


def _pairs(counts) -> tuple[tuple[int, int], ...]:
  return tuple(zip(counts.values.tolist(), counts.counts.tolist()))
