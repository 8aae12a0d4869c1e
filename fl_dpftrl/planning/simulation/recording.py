"""Simulated rounds, counted and written to a participation log."""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures

from fl_dpftrl.logs import log_tables
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.planning.simulation import attendances, scenarios
from fl_dpftrl.support import checks

# Metadata of a log that says how it was simulated.
METADATA_KEY = 'simulated'


def simulate(
  scenario: scenarios.Scenario,
  *,
  num_rounds: int,
  output: str | os.PathLike[str] | None = None,
  progress: Callable[[str], None] = lambda text: None,
) -> attendances.Attendance:
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
) -> attendances.Attendance:
  """Counts the first rounds, and writes them if an output is given.

  A thread draws the next round meanwhile.
  """
  attendance = attendances.Attendance()
  first_rounds = itertools.islice(rounds, num_rounds)
  with contextlib.ExitStack() as stack:
    drawing = stack.enter_context(futures.ThreadPoolExecutor(1))
    append: log_tables.Append = lambda *row: None
    if output is not None:
      append = stack.enter_context(
        log_tables.round_by_round(output, num_rounds=num_rounds, metadata=metadata)
      )
    drawn = drawing.submit(next, first_rounds, None)
    while (cohort := drawn.result()) is not None:
      drawn = drawing.submit(next, first_rounds, None)
      append(cohort.round, cohort.device_ids, cohort.closed)
      attendance.add_cohort(cohort)
      progress(
        f'round {attendance.num_rounds} of {num_rounds}, day'
        f' {attendance.days:.1f}, min-sep so far {attendance.min_sep}'
      )
  return attendance
