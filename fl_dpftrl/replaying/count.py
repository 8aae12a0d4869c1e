"""Participation counts of the rows of logs, sorted by device.

Tallies of different devices add up, so parts of the sorted rows are counted apart.
"""

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from concurrent import futures

import numpy as np

from fl_dpftrl import claim as claim_lib
from fl_dpftrl.logs import spellings as spellings_lib
from fl_dpftrl.participation import counts
from fl_dpftrl.replaying import by_device
from fl_dpftrl.replaying import exposure as exposure_lib
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import tally as tally_lib


def count(
  runs: Sequence[runs_lib.Run],
  *,
  num_exposed: int = 1,
  progress: Callable[[str], None] = lambda text: None,
) -> tally_lib.Tally:
  """Counts the logs of runs; LogError for a faulty row, and for a device twice in a round."""
  claims = [run.claim for run in runs]
  exposure = exposure_lib.Exposure(claims, [run.log.num_rounds for run in runs])
  # The first is not on macOS.
  threads = (
    len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
  )
  total = nothing = tally_lib.Tally((counts.DeviceCounts(),) * len(runs))
  spellings = spellings_lib.Spellings()
  parts: collections.deque[futures.Future[tally_lib.Tally]] = collections.deque()

  def counted(tables):
    of_devices = by_device.rows(runs, tables, spellings)
    of_rows = (_count(*r, exposure, num_exposed, claims) for r in of_devices)
    return functools.reduce(lambda a, b: a.plus(b, num_exposed), of_rows, nothing)

  with futures.ThreadPoolExecutor(threads) as pool:
    for tables in by_device.whole_devices(by_device.read(runs, progress)):
      parts.append(pool.submit(counted, tables))
      if len(parts) > threads:
        total = total.plus(parts.popleft().result(), num_exposed)
        progress(f'{total.num_devices:,} devices counted')
    for part in parts:
      total = total.plus(part.result(), num_exposed)
  by_device.refuse_spellings(runs, spellings)
  return dataclasses.replace(total, mergeable=spellings.mergeable)


def _count(
  numbers: np.ndarray,
  rounds: np.ndarray,
  name: by_device.Name,
  exposure: exposure_lib.Exposure,
  num_exposed: int,
  claims: Sequence[claim_lib.Claim],
) -> tally_lib.Tally:
  """Counts the rows of whole devices."""
  starts = np.flatnonzero(np.diff(numbers, prepend=-1))
  sizes = np.diff(starts, append=rounds.size)
  owners = np.repeat(np.arange(starts.size), sizes)
  squares, exact = exposure.squares(rounds, sizes)
  logs = np.searchsorted(exposure.ends, rounds, side='right')
  tallies, firsts = [], [0, *exposure.ends[:-1].tolist()]
  for index, first in enumerate(firsts):
    rows = np.flatnonzero(logs == index)
    device_id = lambda row, rows=rows: name(int(numbers[rows[row]]))
    tallies.append(counts.DeviceCounts.of_rows(rounds[rows] - first, owners[rows], device_id))
  exposed = [
    tally_lib.Exposed(
      float(squares[i]),
      name(int(numbers[starts[i]])),
      tuple(rounds[starts[i] : starts[i] + sizes[i]].tolist()),
    )
    for i in _largest(squares, num_exposed)
  ]
  return tally_lib.Tally(
    tuple(tallies),
    starts.size,
    counts.Counts.of(tally_lib.bins_of(squares)),
    tuple(exposed),
    exact,
    int(sizes.max()),
    *_violations(rounds, owners, logs, squares, claims, firsts),
  )


def _largest(values: np.ndarray, most: int) -> np.ndarray:
  """Returns indices of the largest values, descending; ties by first index."""
  least = np.partition(values, -most)[-most] if values.size > most else -np.inf
  places = np.flatnonzero(values >= least)
  return places[np.argsort(-values[places], kind='stable')][:most]


def _violations(
  rounds: np.ndarray,
  owners: np.ndarray,
  logs: np.ndarray,
  squares: np.ndarray,
  claims: Sequence[claim_lib.Claim],
  firsts: Sequence[int],
) -> tuple[int, counts.Counts, float]:
  """Counts the violators, the participations that violate, and the largest square of a violator."""
  wrong = np.zeros(rounds.size, bool)
  for index, claim in enumerate(claims):
    rows = np.flatnonzero(logs == index)
    is_first = np.diff(owners[rows], prepend=-1) != 0
    starts = np.maximum.accumulate(np.where(is_first, np.arange(rows.size), 0))
    wrong[rows] = claim.answers.wrong(claim.strategy, rounds[rows] - firsts[index], starts)
  who = np.unique(owners[wrong])
  return who.size, counts.Counts.of(rounds[wrong]), float(squares[who].max(initial=0.0))
