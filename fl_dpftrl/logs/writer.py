"""Writer of a log that grows by one round at a time."""

import functools
import operator
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.files import durable
from fl_dpftrl.logs import digests, journal, keys, refusals, schema
from fl_dpftrl.logs import ids as ids_lib
from fl_dpftrl.logs import log as log_lib

NAME = 'participation.parquet'
"""Name of the log in the folder of a run."""


class _Round(NamedTuple):
  """A round of an open log.

  Attributes:
    timestamp: UTC second; 0 if it is not known, of a round without devices.
    num_devices: size of the cohort.
    ids: function that reads the device ids, string or int64.
  """

  timestamp: int
  num_devices: int
  ids: Callable[[], pa.Array]


class LogWriter:
  """A log that grows by one round at a time, each durable at once.

  Rounds are appended to a journal beside the log, `PATH.journal`, at the cost of
  their own cohort. `close` turns the journal into one Parquet file; readers take
  the journal until then. A log that exists is continued. A part of a round that
  a crash left behind is dropped: that round had not begun. Threads may share a
  writer; a process that was forked from this one may not.

  Attributes:
    path: the file.
    num_rounds: rounds appended so far.
    dropped: a sentence about what a crash left behind; None if nothing.
  """

  def __init__(self, path: str | os.PathLike[str], *, metadata: Mapping[str, str] | None = None):
    """Opens the log.

    Args:
      path: the file, ending in .parquet; its folder must exist.
      metadata: further keys and values for the file's metadata; an existing
        file must have the same ones.

    Raises:
      LogError: if the file exists and was not written by a LogWriter with this
        metadata.
    """
    self.path = schema.parquet_path(path)
    self._lock = durable.ThreadLock(self.path)
    self.dropped: str | None = None
    self._given = dict(metadata or {})
    schema.file_metadata(0, self._given)  # Refuses keys before there are rounds.
    self._journal: journal.JournalFile | None = None
    self._rounds: list[_Round] = []  # Of the journal, or of a Parquet file without one.
    self._id_type: pa.DataType | None = None
    self._released: int | None = None
    self._chain = b''  # Digest of the last round; empty where it is not known.
    self._closed = False
    self._parquet = _state(self.path)
    if journal.path_of(self.path).exists():
      self._resume()
    elif self.path.exists():
      self._read()

  def __enter__(self) -> 'LogWriter':
    return self

  def __exit__(self, *unused) -> None:
    self.close()

  @property
  def digest(self) -> str:
    """Chained digest of the rounds so far, SHA-256 in hexadecimal.

    It fixes the devices of all rounds so far. Note it elsewhere from time to time: the same round
    of a bundle then has to have the same digest.
    """
    if not self._chain:
      *_, self._chain = (digests.START, *self._chained())
    return self._chain.hex()

  def _chained(self) -> Iterator[bytes]:
    before = digests.START
    for t, entry in enumerate(self._rounds):
      before = digests.chained_cohort(before, t, digests.ordered(entry.ids()))
      yield before

  @property
  def num_rounds(self) -> int:
    return len(self._rounds)

  @durable.one_at_a_time
  def append(self, round_index: int, device_ids: ids_lib.Ids, timestamp: int) -> None:
    """Appends a round's cohort; it is durably on disk when this returns.

    Args:
      round_index: the next round, which is num_rounds.
      device_ids: shape [cohort size], of one type through the whole log; empty
        for a round that only consumed noise.
      timestamp: UTC second of the round.

    Raises:
      ValueError: for another round, another type of id, or a device twice, and
        if another writer is at the log.
      OSError: if it cannot be written; the log is then as before.
    """
    if operator.index(round_index) != self.num_rounds:
      raise ValueError(f'the next round of the log is {self.num_rounds}, got {round_index}')
    schema.file_metadata(self.num_rounds + 1, None)  # Refuses a round too many.
    schema.utc_seconds('timestamp', [timestamp])
    ids = ids_lib.column(device_ids)
    if len(ids) and self._id_type not in (None, ids.type):
      types = sorted(map(str, (self._id_type, ids.type)))
      raise ValueError(f'device_ids must be of one type through a log, got {types}')
    ordered = digests.ordered(ids)
    if pc.any(pc.equal(ordered[1:], ordered[:-1])).as_py():
      raise ValueError(f'device_ids holds a device twice in round {round_index}')
    digest = digests.chained_cohort(bytes.fromhex(self.digest), self.num_rounds, ordered)
    payload = journal.of_cohort(round_index, timestamp, ids, digest)
    opened, offset = self._record(journal.COHORT, payload)
    if self.num_rounds == round_index:  # Else the journal was begun with it.
      entry = journal.Entry(offset, len(payload), timestamp, len(ids), digest)
      self._rounds.append(_round(opened, entry))
    self._chain = digest
    if len(ids):
      self._id_type = ids.type

  def released(self) -> int | None:
    """Number of rounds whose results may have been used; None if unknown."""
    return self._released

  @durable.one_at_a_time
  def mark_released(self, num_rounds: int) -> None:
    """Records durably that results of the first num_rounds rounds may be used.

    The mark is in the log, so it goes wherever the log goes. Before the first
    round there is no file, and the mark is written with that round.

    Raises:
      ValueError: for more rounds than the log has.
      OSError: if it cannot be written; the log is then as before.
    """
    if not 0 <= num_rounds <= self.num_rounds:
      raise ValueError(f'num_rounds must lie in 0 to {self.num_rounds}, got {num_rounds}')
    if num_rounds == self._released:
      return
    if self.num_rounds:
      self._record(journal.RELEASED, journal.of_released(num_rounds))
    self._released = num_rounds

  def cohort(self, round_index: int) -> np.ndarray:
    """Returns the device ids of a round, as they were appended."""
    return ids_lib.as_numpy(self._rounds[round_index].ids())

  def timestamp(self, round_index: int) -> int | None:
    """Returns the UTC second of the last round with devices up to a round, if any."""
    for t in range(round_index, -1, -1):
      if self._rounds[t].num_devices:
        return self._rounds[t].timestamp
    return None

  @durable.one_at_a_time
  def close(self) -> None:
    """Turns the journal into one Parquet file, durably; nothing can be appended then.

    The same rounds give the same bytes with the same release of pyarrow.

    Raises:
      OSError: if it cannot be written; the journal then remains.
    """
    if self._journal is not None:
      self._journal.check_process()
    self._closed = True
    if self._journal is None:
      return
    metadata = schema.file_metadata(self.num_rounds, self._given)
    metadata[keys.CHAIN_KEY] = self.digest
    if self._released is not None:
      metadata[keys.RELEASED_KEY] = str(self._released)
    columns = schema.with_timestamps(self._id_type or pa.string())
    with schema.appending(self.path, columns, metadata) as append:
      for t, entry in enumerate(self._rounds):
        if entry.num_devices:
          append(schema.round_table(t, entry.ids(), entry.timestamp))
    self._journal.remove()

  def _begin(self, kind: bytes, payload: bytes) -> journal.JournalFile:
    """Begins the journal with the rounds of a Parquet file, and a further frame."""

    def frames() -> Iterator[tuple[bytes, bytes]]:
      yield journal.METADATA, journal.of_metadata(self._given)
      for t, (entry, digest) in enumerate(zip(self._rounds, self._chained())):
        yield journal.COHORT, journal.of_cohort(t, entry.timestamp, entry.ids(), digest)
      last = [(kind, payload)]
      if self._released is not None:
        mark = journal.RELEASED, journal.of_released(self._released)
        last.insert(0 if self._rounds else 1, mark)
      yield from last

    begun = journal.JournalFile.begin(journal.path_of(self.path), frames())
    if _state(self.path) != self._parquet:
      begun.remove()
      raise ValueError(
        f'{self.path} was changed by another writer since it was opened; open the log again'
      )
    self._rounds = [_round(begun, entry) for entry in begun.contents.rounds]
    return begun

  def _record(self, kind: bytes, payload: bytes) -> tuple[journal.JournalFile, int]:
    """Appends a frame, for which the journal is begun; returns the payload's offset, if it was."""
    if self._closed:
      raise ValueError(f'{self.path} was closed; open the log again to append to it')
    offset = 0
    if self._journal is None:
      self._journal = self._begin(kind, payload)
    else:
      offset = self._journal.append(kind, payload)
    if self.path.exists():  # A Parquet file that the journal has overtaken.
      self.path.unlink()
      durable.sync_folder(self.path.parent)
    return self._journal, offset

  def _resume(self) -> None:
    """Takes over the rounds of a journal."""
    self._journal = journal.JournalFile(journal.path_of(self.path))
    contents = self._journal.contents
    if contents.metadata != self._given:
      raise keys.of_another_run(self._journal.path, contents.metadata, self._given)
    released = contents.released
    self._released = self._mark(None if released is None else str(released), len(contents.rounds))
    stated = log_lib.open_shard(self.path).num_rounds if self.path.exists() else None
    if (stated or 0) > len(contents.rounds):
      raise refusals.LogError(
        f'{self.path} has more rounds than {self._journal.path}; remove the older of the two'
      )
    self._rounds = [_round(self._journal, entry) for entry in contents.rounds]
    self._id_type = contents.id_type
    self._chain = contents.rounds[-1].chain if contents.rounds else b''
    if contents.torn_bytes:
      self.dropped = journal.torn(str(self._journal.path), contents)

  def _read(self) -> None:
    """Takes over the rounds of a Parquet file."""
    shard = log_lib.open_shard(self.path, timestamps=True)
    num_rounds = shard.num_rounds or 0
    stored, own = dict(shard.metadata), schema.file_metadata(num_rounds, self._given)
    self._released = self._mark(stored.pop(keys.RELEASED_KEY, None), num_rounds)
    stored.pop(keys.CHAIN_KEY, None)
    if stored != own:
      raise keys.of_another_run(self.path, stored, own)
    table = pa.concat_tables(shard.tables())
    rounds, times = table.column('round').to_numpy(), table.column('timestamp')
    if (
      times.type != digests.TIMESTAMP
      or times.null_count
      or (np.diff(rounds) < 0).any()
      or (rounds >= num_rounds).any()
    ):
      raise refusals.LogError(
        f'{self.path}: rounds must be sorted and have timestamps before a log can be appended to'
      )
    microseconds = times.cast(pa.int64()).to_numpy()
    if np.diff(microseconds)[np.diff(rounds) == 0].any():
      raise refusals.LogError(
        f'{self.path}: each round must have one timestamp before a log can be appended to'
      )
    ids = table.column('device_id').combine_chunks()
    if not pa.types.is_integer(ids.type):
      ids = ids.cast(pa.string())
    if len(ids):
      self._id_type = ids.type
    ends = np.searchsorted(rounds, np.arange(num_rounds + 1)).tolist()
    for first, end in zip(ends, ends[1:]):
      second = int(microseconds[first]) // 1_000_000 if first < end else 0
      cohort = functools.partial(ids.slice, first, end - first)
      self._rounds.append(_Round(second, end - first, cohort))

  def _mark(self, text: str | None, num_rounds: int) -> int | None:
    """Returns a release mark; LogError if it is none of these rounds."""
    if text is None:
      return None
    if not re.fullmatch('[0-9]{1,18}', text) or int(text) > num_rounds:
      raise refusals.LogError(
        f'{self.path}: {keys.RELEASED_KEY} is {text[:40]!r}, and the log has {num_rounds} rounds'
      )
    return int(text)


def _round(opened: journal.JournalFile, entry: journal.Entry) -> _Round:
  """Returns a round of a journal, whose device ids are read when they are asked for."""
  return _Round(entry.timestamp, entry.num_devices, lambda: opened.ids(entry))


def _state(path: pathlib.Path) -> tuple[int, ...] | None:
  """Tells a file from one that was written later; None if there is none."""
  try:
    state = path.stat()
  except FileNotFoundError:
    return None
  return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
