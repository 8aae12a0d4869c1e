"""Simulated rounds, counted, and written to a participation log."""

import bisect
import collections
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import log_tables
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation.counts import seen
from fl_dpftrl.planning.simulation import scenarios, servers
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files

METADATA_KEY = 'simulated'
"""Metadata of a log that says how it was simulated."""

_DAY = 86400.0


class Attendance(seen.Seen):
  """Counter of cohorts, which are added in the order of their rounds."""

  def __init__(self):
    super().__init__(numbered=True)
    self.started: list[int] = []
    self.closed: list[int] = []

  def __repr__(self) -> str:
    totals = ', '.join(f'{name}={value}' for name, value in self.to_json().items())
    return f'Attendance({totals})'

  def add_cohort(self, cohort: schemas.Cohort) -> None:
    """Adds a cohort."""
    if cohort.round != self.num_rounds:
      raise ValueError(f'the next round is {self.num_rounds}, got {cohort.round}')
    self.add(cohort.device_ids)
    self.started.append(cohort.started)
    self.closed.append(cohort.closed)

  @property
  def days(self) -> float:
    """Days from the start of the first round to the end of the last."""
    if not self.closed:
      return 0.0
    return (self.closed[-1] - self.started[0]) / _DAY

  def to_json(self) -> json_files.Object:
    """Returns the totals."""
    return {
      'num_rounds': self.num_rounds,
      'num_devices': self.num_devices,
      'num_participations': self.num_participations,
      'min_sep': self.min_sep,
      'max_participations': self.max_participations,
      'simulated_days': self.days,
    }

  def timer(self, kind: servers.Timer) -> json_files.Object:
    """Returns a timer and, for one in hours, its effect in rounds; B² of a meter, and its life."""
    if isinstance(kind, servers.Meter):
      square = kind.budget.square(kind.strategy)
      return {'loss_budget': square, 'life': kind.budget.most_participations(kind.strategy)}
    if isinstance(kind, servers.RoundTimer):
      return {'rounds': kind.rounds}
    return {'hours': kind.hours, 'in_rounds': self.timed(kind.seconds)}

  def timed(self, seconds: float) -> json_files.Object | None:
    """Returns the fewest, usual and most rounds that a timer lasts; None if it outlasts the run."""
    rounds = []
    for t, started in enumerate(self.started):
      # Times of cohorts are whole seconds, rounded outwards. A round may be
      # longer than the timer, but no device is in one round twice.
      again = max(bisect.bisect_left(self.closed, started + seconds), t + 1)
      if again == self.num_rounds:
        break
      rounds.append(again - t)
    if not rounds:
      return None
    fewest = min(rounds)
    return {
      'fewest': fewest,
      'first_round': rounds.index(fewest),
      'usual': float(np.median(rounds)),
      'most': max(rounds),
    }


def simulate(
  scenario: scenarios.Scenario,
  *,
  num_rounds: int,
  output: str | os.PathLike[str] | None = None,
  progress: Callable[[str], None] = lambda text: None,
) -> Attendance:
  """Simulates the participation of a scenario's devices.

  Args:
    scenario: population, timer and server.
    num_rounds: n.
    output: participation log to write, ending in .parquet; its folder must exist.
    progress: called after each round with a line about the progress.
  """
  checks.whole(num_rounds=num_rounds)
  checks.instance(scenarios.Scenario, scenario=scenario)
  arguments = json.dumps({'num_rounds': num_rounds, **vars(scenario)}, sort_keys=True, default=repr)
  return record(
    scenario.simulation().rounds(),
    num_rounds=num_rounds,
    output=output,
    metadata={METADATA_KEY: arguments},
    progress=progress,
  )


def record(
  rounds: Iterable[schemas.Cohort],
  *,
  num_rounds: int,
  output: str | os.PathLike[str] | None = None,
  metadata: Mapping[str, str] | None = None,
  progress: Callable[[str], None] = lambda text: None,
) -> Attendance:
  """Counts the first rounds, and writes them if an output is given.

  A thread draws the next round meanwhile.
  """
  attendance = Attendance()
  first_rounds = itertools.islice(rounds, num_rounds)

  def counted() -> Iterator[tuple[int, int, pa.Array]]:
    with futures.ThreadPoolExecutor(1) as drawing:
      drawn = drawing.submit(next, first_rounds, None)
      while (cohort := drawn.result()) is not None:
        drawn = drawing.submit(next, first_rounds, None)
        attendance.add_cohort(cohort)
        progress(
          f'round {attendance.num_rounds} of {num_rounds}, day'
          f' {attendance.days:.1f}, min-sep so far {attendance.min_sep}'
        )
        yield cohort.round, cohort.closed, pa.array(cohort.device_ids, pa.int64())
    if attendance.num_rounds < num_rounds:
      raise ValueError(f'num_rounds is {num_rounds}, but {attendance.num_rounds} were drawn')

  if output is None:
    collections.deque(counted(), 0)
  else:
    path, schema = log_tables.parquet_path(output), log_tables.with_timestamps(pa.int64())
    whole = log_tables.file_metadata(num_rounds, metadata)
    log_tables.write_rounds(path, schema, whole, counted())
  return attendance
