"""Rows of logs, sorted by device and round; what does not fit into memory waits in files."""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import id_spellings, refusals
from fl_dpftrl.participation import seen
from fl_dpftrl.replaying import opened_runs
from fl_dpftrl.text import messages

Name = Callable[[int], str | int]  # from the number of a device to its id

_PART_ROWS = 1 << 20
_BYTES = 64 << 20  # of rows that are sorted at once, which takes up to six times as much
_FILE_BITS = 6  # of a hash, that choose one of 64 files


def rows(
  runs: Sequence[opened_runs.Run],
  tables: list[pa.Table],
  spellings: id_spellings.Spellings,
  *,
  by_unit: bool = False,
) -> Iterator[tuple[np.ndarray, np.ndarray, Name]]:
  """Takes tables away; yields numbers of devices in the order of their ids, rounds, and names.

  Their ids are added to spellings. Only units may have several rows in one round.
  """
  bits = sum(run.log.num_rounds for run in runs).bit_length()
  keys, name = _keys(tables, bits, spellings)
  pa.default_memory_pool().release_unused()
  keys.sort()
  # Refused before any work that grows with the square of a device's rounds.
  twice = np.flatnonzero(keys[1:] == keys[:-1])
  if twice.size and not by_unit:
    number, round_index = divmod(int(keys[twice[0]]), 1 << bits)
    raise _refusal(runs, name(number), round_index)
  cuts = np.searchsorted(keys, keys[_PART_ROWS - 1 :: _PART_ROWS] >> bits << bits)
  for part in np.split(keys, np.unique(cuts[cuts > 0])):
    yield part >> bits, part & (1 << bits) - 1, name


def read(
  runs: Sequence[opened_runs.Run], progress: Callable[[str], None], *, by_unit: bool = False
) -> Iterator[pa.Table]:
  """Yields the rows of runs, with rounds numbered across them; by unit, a row for each owner."""
  first = num_rows = 0
  for run in runs:
    for table in run.log.tables():
      yield opened_runs.numbered(run.by_unit(table) if by_unit else table, first)
      num_rows += table.num_rows
      progress(f'{num_rows:,} rows read')
    first += run.log.num_rounds


def _refusal(
  runs: Sequence[opened_runs.Run], device_id: str | int, round_index: int
) -> refusals.LogError:
  logs = iter(runs)
  while round_index >= (log := next(logs).log).num_rounds:
    round_index -= log.num_rounds
  place, device = log.place(round_index, device_id), messages.quoted(device_id)
  shown = round_index + log.layout.first_round
  return refusals.LogError(f'{place}: device {device} is twice in round {shown}')


def refuse_spellings(runs: Sequence[opened_runs.Run], spellings: id_spellings.Spellings) -> None:
  """Raises LogError with the first row whose id is a number in another notation than others."""
  for shard, num_rounds in ((s, run.log.num_rounds) for run in runs for s in run.log.shards):
    num_previous = 0
    for table in shard.tables(num_rounds) if spellings.has_faults else ():
      if fault := spellings.first_fault(table.column('device_id')):
        raise refusals.LogError(f'{shard.path}, row {num_previous + fault[0] + 1}: {fault[1]}')
      num_previous += table.num_rows


def whole_devices(tables: Iterator[pa.Table], shift: int = 0) -> Iterator[list[pa.Table]]:
  """Yields all rows, of devices by bits of a hash from `shift` on where they exceed _BYTES."""
  chunks: list[pa.Table] = []
  size = 0
  for table in tables:
    chunks.append(table)
    size += table.nbytes
    if size > _BYTES and shift < 64:
      popped = (chunks.pop() for _ in range(len(chunks)))  # So that they leave the memory.
      for file in _spread(itertools.chain(popped, tables), table.schema, shift):
        yield from whole_devices(file, shift + _FILE_BITS)
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
