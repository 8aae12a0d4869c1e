"""Participation counts of the rows of logs, sorted by device.

Tallies of different devices add up, so parts of the sorted rows are counted apart.
"""

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from fl_dpftrl import claims
from fl_dpftrl.logs import id_spellings, refusals
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
  opened_runs.check_units(runs)
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
  exposure = exposures.Exposure(claims, [run.log.num_rounds for run in runs])
  charged = opened_runs.charged(runs)
  # The first is not on macOS.
  threads = (
    len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
  )
  total = nothing = device_tallies.Tally((participation_counts.DeviceCounts(),) * len(runs))
  spellings = id_spellings.Spellings()
  parts: collections.deque[futures.Future[device_tallies.Tally]] = collections.deque()

  def counted(tables):
    device_rows = by_device.rows(runs, tables, spellings, by_unit=by_unit)
    part_counts = (_count(*r, exposure, num_exposed, claims, charged) for r in device_rows)
    return functools.reduce(lambda a, b: a.plus(b, num_exposed), part_counts, nothing)

  with futures.ThreadPoolExecutor(threads) as pool:
    for tables in by_device.whole_devices(by_device.read(runs, progress, by_unit=by_unit)):
      parts.append(pool.submit(counted, tables))
      if len(parts) > threads:
        total = total.plus(parts.popleft().result(), num_exposed)
        progress(f'{total.num_devices:,} devices counted')
    for part in parts:
      total = total.plus(part.result(), num_exposed)
  if not by_unit:
    by_device.refuse_spellings(runs, spellings)
  elif spellings.has_faults:
    raise refusals.LogError(
      f'units: the tables of several runs have one {runs[0].unit} in two notations of a number'
    )
  return dataclasses.replace(total, mergeable=spellings.mergeable, id_bytes=spellings.lengths)


def _count(
  numbers: np.ndarray,
  rounds: np.ndarray,
  name: by_device.Name,
  exposure: exposures.Exposure,
  num_exposed: int,
  claims: Sequence[claims.Claim],
  charged: Sequence[Sequence[int]],
) -> device_tallies.Tally:
  """Counts the rows of whole devices."""
  starts = np.flatnonzero(np.diff(numbers, prepend=-1))
  sizes = np.diff(starts, append=rounds.size)
  owners = np.repeat(np.arange(starts.size), sizes)
  squares, exact = exposure.squares(rounds, sizes)
  logs = np.searchsorted(exposure.ends, rounds, side='right')
  tallies, firsts = [], [0, *exposure.ends[:-1].tolist()]
  earlier = [
    {'earlier': _lost(rounds, owners, np.isin(logs, places), exposure, claim)} if places else {}
    for claim, places in zip(claims, charged)
  ]
  several = np.flatnonzero((np.diff(owners) == 0) & (np.diff(logs) > 0))
  for index, first in enumerate(firsts):
    rows = np.flatnonzero(logs == index)
    device_id = lambda row, rows=rows: name(int(numbers[rows[row]]))
    tallies.append(
      participation_counts.DeviceCounts.of_rows(rounds[rows] - first, owners[rows], device_id)
    )
  exposed = [
    device_tallies.Exposed(
      float(squares[i]),
      name(int(numbers[starts[i]])),
      tuple(rounds[starts[i] : starts[i] + sizes[i]].tolist()),
    )
    for i in _largest(squares, num_exposed)
  ]
  return device_tallies.Tally(
    tuple(tallies),
    starts.size,
    participation_counts.Counts.of(device_tallies.bins_of(squares)),
    tuple(exposed),
    exact,
    int(np.bincount(owners[np.append(True, np.diff(owners) + np.diff(rounds) != 0)]).max()),
    *_violations(rounds, owners, logs, squares, claims, firsts, earlier),
    repeated=name(int(numbers[several[0]])) if several.size else None,
  )


def _largest(values: np.ndarray, most: int) -> np.ndarray:
  """Returns indices of the largest values, descending; ties by first index."""
  least = np.partition(values, -most)[-most] if values.size > most else -np.inf
  places = np.flatnonzero(values >= least)
  return places[np.argsort(-values[places], kind='stable')][:most]


def _lost(
  rounds: np.ndarray,
  owners: np.ndarray,
  which: np.ndarray,
  exposure: exposures.Exposure,
  claim: claims.Claim,
) -> np.ndarray:
  """Returns what each device lost in those of its rounds, in units of a claim's noise."""
  losses = np.zeros(owners.max(initial=-1) + 1)
  devices, sizes = np.unique(owners[which], return_counts=True)
  losses[devices] = exposure.squares(rounds[which], sizes)[0] * exposure.in_units(claim)
  return losses


def _violations(
  rounds: np.ndarray,
  owners: np.ndarray,
  logs: np.ndarray,
  squares: np.ndarray,
  claims: Sequence[claims.Claim],
  firsts: Sequence[int],
  earlier: Sequence[dict[str, np.ndarray]],
) -> tuple[int, participation_counts.Counts, float]:
  """Counts the violators, the participations that violate, and the largest square of a violator."""
  wrong = np.zeros(rounds.size, bool)
  for index, claim in enumerate(claims):
    rows = np.flatnonzero((logs == index) & (claim.participation is not None))
    is_first = np.diff(owners[rows], prepend=-1) != 0
    starts = np.maximum.accumulate(np.where(is_first, np.arange(rows.size), 0))
    spent = {name: losses[owners[rows]] for name, losses in earlier[index].items()}
    answers: Any = claim.answers
    wrong[rows] = answers.wrong(claim.strategy, rounds[rows] - firsts[index], starts, **spent)
  who = np.unique(owners[wrong])
  return (
    who.size,
    participation_counts.Counts.of(rounds[wrong]),
    float(squares[who].max(initial=0.0)),
  )
