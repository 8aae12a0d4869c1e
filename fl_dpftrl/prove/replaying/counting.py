"""Rows of logs, sorted by device and round, and the counts of them.

Counts of different devices add up, so parts of the sorted rows are counted apart. Rows that do not
fit into memory wait in files.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_spellings, refusals
from fl_dpftrl.participation.counts import participation_counts, seen
from fl_dpftrl.prove.replaying import device_tallies, opened_runs
from fl_dpftrl.support import machine
from fl_dpftrl.support.text import messages

Name = Callable[[int], str | int]  # from the number of a device to its id

_PART_ROWS = 1 << 20
_BYTES = 64 << 20  # of rows that are sorted at once, which takes up to six times as much
_FILE_BITS = 6  # of a hash, that choose one of 64 files


def count(
  runs: Sequence[opened_runs.RecordedRun],
  *,
  num_exposed: int = 1,
  local_ids: bool = False,
  progress: Callable[[str], None] = lambda text: None,
) -> device_tallies.Tally:
  """Counts the logs of runs, by unit where they have tables of units.

  Args:
    runs: as `opened_runs.together` returns them.
    num_exposed: devices of which the tally has the rounds.
    local_ids: whether one id in two runs is of two devices; each then has its run's number before.
    progress: called often with a line about the progress.

  Raises:
    LogError: for a faulty row, a device twice in a round, and one without an owner in its round.
  """
  run_claims = [run.claim for run in runs]

  def counted(claims: Sequence[run_claim.Claim], num_exposed: int, **which: bool) -> Any:
    return Rows(runs, local_ids, **which).tally(claims, num_exposed, progress)

  if not any(run.units for run in runs):
    tally = counted(run_claims, num_exposed)
    if any(claim.canaries for claim in run_claims):
      people = counted(run_claims, num_exposed, only_people=True)
      tally = dataclasses.replace(tally, people=people)
  else:  # Nobody owns a canary.
    plain = [dataclasses.replace(claim, participation=None) for claim in run_claims]
    devices = counted(plain, 1, only_people=True)
    tally = counted(run_claims, num_exposed, only_people=True, by_unit=True)
    repeated = devices.repeated if tally.repeated is None else tally.repeated
    tally = dataclasses.replace(tally, devices=devices, repeated=repeated)
  if local_ids:  # Only ids of one run can be spellings of one device, or be there twice.
    each = [count([run], progress=progress) for run in runs]
    mergeable = sum((one.people or one).mergeable for one in each)
    people = tally.people and dataclasses.replace(tally.people, mergeable=mergeable)
    tally = dataclasses.replace(tally, mergeable=mergeable, people=people)
  return tally


class Rows:
  """The rows of runs, with rounds numbered across them; by unit, a row for each owner.

  Local ids have the number of their run before them. Rows of canaries may be left out.
  """

  def __init__(
    self,
    runs: Sequence[opened_runs.RecordedRun],
    local_ids: bool,
    by_unit: bool = False,
    only_people: bool = False,
  ):
    self._runs, self._by_unit, self._local_ids = runs, by_unit, local_ids
    self._canaries = [run.canary_ids if only_people else None for run in runs]
    self._spellings = id_spellings.Spellings()

  def tally(
    self, claims: Sequence[run_claim.Claim], num_exposed: int, progress: Callable[[str], None]
  ) -> device_tallies.Tally:
    """Counts the rows, in parts of whole devices."""
    exposure = device_tallies.Exposure(claims, [run.log.num_rounds for run in self._runs])
    threads = machine.cores()
    total = nothing = device_tallies.Tally((participation_counts.DeviceCounts(),) * len(self._runs))
    parts: collections.deque[futures.Future[device_tallies.Tally]] = collections.deque()

    def counted(part: list[pa.Table]) -> device_tallies.Tally:
      sorted_rows = self._sorted(part)
      tallies = (device_tallies.Tally.of_rows(*r, exposure, num_exposed) for r in sorted_rows)
      return functools.reduce(lambda a, b: a.plus(b, num_exposed), tallies, nothing)

    with futures.ThreadPoolExecutor(threads) as pool:
      for part in _whole_devices(self._tables(progress)):
        parts.append(pool.submit(counted, part))
        if len(parts) > threads:
          total = total.plus(parts.popleft().result(), num_exposed)
          progress(f'{total.num_devices:,} devices counted')
      for tally in parts:
        total = total.plus(tally.result(), num_exposed)
    self._check_spellings()
    mergeable, id_bytes = self._spellings.mergeable, self._spellings.lengths
    return dataclasses.replace(total, mergeable=mergeable, id_bytes=id_bytes)

  def _tables(self, progress: Callable[[str], None]) -> Iterator[pa.Table]:
    first = num_rows = 0
    for place, run in enumerate(self._runs, 1):
      canaries = self._canaries[place - 1]
      for table in run.log.tables():
        num_rows += table.num_rows
        if canaries is not None:
          table = table.filter(pc.invert(pc.is_in(table.column('device_id'), value_set=canaries)))
        rows = run.by_unit(table) if self._by_unit else table
        if self._local_ids:
          names = pc.binary_join_element_wise(
            f'{place}/', pc.cast(rows.column('device_id'), pa.string()), ''
          )
          rows = rows.set_column(rows.column_names.index('device_id'), 'device_id', names)
        yield rows.set_column(0, 'round', pc.add(rows.column('round'), first)) if first else rows
        progress(f'{num_rows:,} rows read')
      first += run.log.num_rounds

  def _sorted(self, part: list[pa.Table]) -> Iterator[tuple[np.ndarray, np.ndarray, Name]]:
    """Takes tables away; yields numbers of devices in the order of their ids, rounds, and names.

    Only units may have several rows in one round; LogError for a device.
    """
    bits = sum(run.log.num_rounds for run in self._runs).bit_length()
    keys, name = _keys(part, bits, self._spellings)
    pa.default_memory_pool().release_unused()
    keys.sort()
    # Refused before any work that grows with the square of a device's rounds.
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if twice.size and not self._by_unit:
      number, round_index = divmod(int(keys[twice[0]]), 1 << bits)
      raise self._refusal(name(number), round_index)
    cuts = np.searchsorted(keys, keys[_PART_ROWS - 1 :: _PART_ROWS] >> bits << bits)
    for rows in np.split(keys, np.unique(cuts[cuts > 0])):
      yield rows >> bits, rows & (1 << bits) - 1, name

  def _refusal(self, device_id: str | int, round_index: int) -> refusals.LogError:
    logs = iter(self._runs)
    while round_index >= (log := next(logs).log).num_rounds:
      round_index -= log.num_rounds
    place, device = log.place(round_index, device_id), messages.quoted(device_id)
    shown = round_index + log.layout.first_round
    return refusals.LogError(f'{place}: device {device} is twice in round {shown}')

  def _check_spellings(self) -> None:
    """Raises LogError for a number in two notations, in all rows that were sorted."""
    if self._by_unit and len(self._runs) == 1:
      return  # Its table was checked, with units that no row is of.
    if self._spellings.has_faults and self._by_unit:
      raise refusals.LogError(
        f'units: the tables of several runs have one {self._runs[0].unit} in two notations of a'
        ' number'
      )
    for run in self._runs if self._spellings.has_faults else ():
      for path, first_row, table in run.log.numbered():
        if fault := self._spellings.first_fault(table.column('device_id')):
          raise refusals.LogError(f'{path}, row {first_row + fault[0]}: device_id {fault[1]}')


def _whole_devices(tables: Iterator[pa.Table], shift: int = 0) -> Iterator[list[pa.Table]]:
  """Yields all rows, of devices by bits of a hash from `shift` on where they exceed _BYTES."""
  chunks: list[pa.Table] = []
  size = 0
  for table in tables:
    chunks.append(table)
    size += table.nbytes
    if size > _BYTES and shift < 64:
      popped = (chunks.pop() for _ in range(len(chunks)))  # So that they leave the memory.
      for file in _spread(itertools.chain(popped, tables), table.schema, shift):
        yield from _whole_devices(file, shift + _FILE_BITS)
      return
  if chunks:
    del table
    yield chunks


def _spread(
  tables: Iterable[pa.Table], schema: pa.Schema, shift: int
) -> Iterator[Iterator[pa.Table]]:
  """Yields the rows from one file after the other; no device is in two of them."""
  with contextlib.ExitStack() as stack:
    files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1 << _FILE_BITS)]
    writers = [pa.ipc.new_stream(file, schema) for file in files]
    for table in tables:
      hashes = seen.hashes(table.column('device_id').to_numpy())
      places = (hashes >> np.uint64(shift)).astype(np.uint8) % len(files)
      table = table.take(np.argsort(places, kind='stable'))
      ends = np.cumsum(np.bincount(places, minlength=len(files))).tolist()
      for writer, begin, end in zip(writers, [0, *ends], ends):
        writer.write_table(table.slice(begin, end - begin))
    for file, writer in zip(files, writers):
      writer.close()
      file.seek(0)
      with file, pa.ipc.open_stream(file) as batches:
        yield (pa.Table.from_batches([batch]) for batch in batches)


def _keys(
  chunks: list[pa.Table], bits: int, spellings: id_spellings.Spellings
) -> tuple[np.ndarray, Name]:
  """Takes tables away; returns the key of each row, and the ids of the devices' numbers."""
  rounds, ids = pa.concat_tables(chunks).select(['round', 'device_id']).columns
  chunks.clear()
  if not pa.types.is_integer(ids.type):
    distinct_ids = pc.unique(ids).sort()
    spellings.add(distinct_ids)
    numbers = pc.index_in(ids, value_set=distinct_ids).to_numpy().astype(np.int64)
    name = lambda number: distinct_ids[number].as_py()
  elif (ends := pc.min_max(ids).as_py())['max'] - (low := ends['min']) < 1 << 63 - bits:
    numbers, name = ids.to_numpy() - low, lambda number: number + low
  else:
    values, numbers = np.unique(ids.to_numpy(), return_inverse=True)
    name = lambda number: int(values[number])
  numbers <<= bits
  numbers |= rounds.to_numpy()
  return numbers, name
