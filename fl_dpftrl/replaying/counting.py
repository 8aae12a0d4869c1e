"""Participation counts of the rows of logs, sorted by device.

Tallies of different devices add up, so parts of the sorted rows are counted apart.
"""

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from concurrent import futures

import pyarrow as pa

from fl_dpftrl import claims
from fl_dpftrl.participation import participation_counts
from fl_dpftrl.replaying import by_device, device_tallies, exposures, opened_runs


def count(
  runs: Sequence[opened_runs.Run],
  *,
  num_exposed: int = 1,
  progress: Callable[[str], None] = lambda text: None,
) -> device_tallies.Tally:
  """Counts the logs of runs, by unit where they have tables of units.

  Raises:
    LogError: for a faulty row, a device twice in a round, and one without an owner in its round.
  """
  run_claims = [run.claim for run in runs]
  if not any(run.units for run in runs):
    return _counted(runs, run_claims, num_exposed, progress)
  plain = [dataclasses.replace(claim, participation=None) for claim in run_claims]
  devices = _counted(runs, plain, 1, progress)
  units = _counted(runs, run_claims, num_exposed, progress, by_unit=True)
  repeated = devices.repeated if units.repeated is None else units.repeated
  return dataclasses.replace(units, devices=devices, repeated=repeated)


def _counted(
  runs: Sequence[opened_runs.Run],
  claims: Sequence[claims.Claim],
  num_exposed: int,
  progress: Callable[[str], None],
  *,
  by_unit: bool = False,
) -> device_tallies.Tally:
  exposure = exposures.Exposure(
    claims, [run.log.num_rounds for run in runs], [run.charged for run in runs]
  )
  rows = by_device.Rows(runs, by_unit)
  # The first is not on macOS.
  threads = (
    len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
  )
  total = nothing = device_tallies.Tally((participation_counts.DeviceCounts(),) * len(runs))
  parts: collections.deque[futures.Future[device_tallies.Tally]] = collections.deque()

  def counted(part: list[pa.Table]) -> device_tallies.Tally:
    sorted_rows = rows.sorted(part)
    tallies = (device_tallies.Tally.of_rows(*r, exposure, num_exposed) for r in sorted_rows)
    return functools.reduce(lambda a, b: a.plus(b, num_exposed), tallies, nothing)

  with futures.ThreadPoolExecutor(threads) as pool:
    for part in rows.parts(progress):
      parts.append(pool.submit(counted, part))
      if len(parts) > threads:
        total = total.plus(parts.popleft().result(), num_exposed)
        progress(f'{total.num_devices:,} devices counted')
    for tally in parts:
      total = total.plus(tally.result(), num_exposed)
  spellings = rows.spellings()
  return dataclasses.replace(total, mergeable=spellings.mergeable, id_bytes=spellings.lengths)
