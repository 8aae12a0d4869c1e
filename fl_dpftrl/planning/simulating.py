"""Simulated runs, evaluated after several numbers of rounds, in this process or in several.

The results do not depend on the number of processes.
"""

import dataclasses
import itertools
import multiprocessing
import pickle
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection, process
from typing import Any

import numpy as np

from fl_dpftrl import signals
from fl_dpftrl.participation import schemas
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts, server

_HOURS, _HOUR = 24, 3600
_WORTHWHILE = 1_000_000  # total participations that justify starting processes
_OFTEN = 1 << 17  # participations between a process's progress messages


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """Simulation evaluated at several numbers of rounds.

  Attributes:
    outcomes: outcome at each checkpoint that was reached, by its number of rounds.
    stalled: reason why the last checkpoint was not reached; None if it was.
    closer: distribution after `closer_at` rounds; None if not reached.
  """

  outcomes: Mapping[int, Outcome]
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
  outcomes, closer, stalled = {}, None, None
  try:
    for cohort in itertools.islice(task.simulation.rounds(), task.checkpoints[-1]):
      attendance.add_cohort(cohort)
      progress(cohort.device_ids.size)
      if attendance.num_rounds in task.checkpoints:
        outcomes[attendance.num_rounds] = Outcome(
          seed=task.simulation.seed,
          report_goal=task.simulation.server.report_goal,
          num_rounds=attendance.num_rounds,
          min_sep=attendance.min_sep,
          max_participations=attendance.max_participations,
          days=attendance.days,
        )
      if attendance.num_rounds == task.closer_at:
        closer = _closer(attendance)
  except cohorts.StalledRound as e:
    stalled = str(e)
  return Trial(outcomes=outcomes, stalled=stalled, closer=closer)


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


def run_all(
  tasks: Sequence[Task],
  *,
  num_workers: int = 1,
  progress: Callable[[float], None] = lambda share: None,
) -> list[Trial]:
  """Returns the trials in the order of their tasks.

  Args:
    tasks: tasks to simulate.
    num_workers: number of parallel processes. With 1, or if there is little to do, all tasks
      run in this process.
    progress: called from time to time with the completed fraction.

  Raises:
    ValueError: if num_workers is below 1.
    ChildProcessError: if a process ended without a result, such as for lack of memory.
  """
  if num_workers < 1:
    raise ValueError(f'num_workers must be at least 1, got {num_workers!r}')
  of_all = sum(task.participations for task in tasks)
  done = 0

  def count(more: int) -> None:
    nonlocal done
    done += more
    progress(done / of_all)

  if num_workers == 1 or len(tasks) == 1 or of_all < _WORTHWHILE:
    return [run(task, count) for task in tasks]
  return _in_processes(tasks, num_workers, count)


def _in_processes(
  tasks: Sequence[Task], num_workers: int, count: Callable[[int], None]
) -> list[Trial]:
  """Runs each task in a process of its own, the longest tasks first."""
  context = multiprocessing.get_context('spawn')
  waiting = sorted(range(len(tasks)), key=lambda index: tasks[index].participations)
  running: dict[Any, tuple[int, process.BaseProcess]] = {}
  trials: dict[int, Trial] = {}
  try:
    while len(trials) < len(tasks):
      while waiting and len(running) < num_workers:
        index = waiting.pop()
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(tasks[index], sender), daemon=True)
        with signals.kept_from_children():
          child.start()
        sender.close()  # so that this process notices the end of the other
        running[receiver] = index, child
      for receiver in connection.wait(list(running)):
        index, child = running[receiver]
        message = _received(receiver, child)
        if isinstance(message, int):
          count(message)
          continue
        del running[receiver]
        child.join()
        if isinstance(message, Exception):
          raise message
        trials[index] = message
  finally:
    for _, child in running.values():
      child.terminate()
  return [trials[index] for index in range(len(tasks))]


def _received(receiver: Any, child: process.BaseProcess) -> int | Exception | Trial:
  try:
    # Not by recv(), whose buffer can outlive its owner in a traceback (Python 3.12.1).
    return pickle.loads(receiver.recv_bytes())
  except EOFError:
    child.join()
    raise ChildProcessError(
      f'a simulation ended without a result (exit status {child.exitcode}); use num_workers=1 to'
      ' give it all the memory'
    ) from None


def _work(task: Task, sender: Any) -> None:
  unreported = 0

  def count(more: int) -> None:
    nonlocal unreported
    unreported += more
    if unreported >= _OFTEN:
      sender.send(unreported)
      unreported = 0

  try:
    sender.send(run(task, count))
  except BrokenPipeError:
    pass  # the parent process is gone
  except Exception as e:
    sender.send(e)  # the parent process raises it again
