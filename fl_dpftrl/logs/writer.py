"""Writer of a log that grows by one round at a time."""

import operator
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.families import base
from fl_dpftrl.files import durable
from fl_dpftrl.logs import (
  chain,
  columns,
  digests,
  journal,
  journal_file,
  noise_record,
  other_run,
  refusals,
  schema,
  shards,
)


class LogWriter:
  """A log that grows by one round at a time, each durable at once.

  Rounds are appended to a journal beside the log, `PATH.journal`, at the cost of
  their own cohort. `close` turns the journal into one Parquet file; readers take
  the journal until then. A log that exists is continued. A part of a round that
  a crash left behind is dropped: that round had not begun.

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
    self.dropped: str | None = None
    self._given = dict(metadata or {})
    schema.file_metadata(0, self._given)  # Refuses keys before there are rounds.
    self._journal: journal_file.JournalFile | None = None
    self._entries: list[journal.Entry] = []
    self._cohorts: list[pa.Table] = []  # Of a Parquet file without a journal.
    self._id_type: pa.DataType | None = None
    self._released: int | None = None
    self._chain = b''  # Digest of the last round; empty where it is not known.
    self._closed = False
    self._parquet = _state(self.path)
    if journal.path_of(self.path).exists():
      self._resume()
    elif self.path.exists():
      self._cohorts = self._read()
    for cohort in self._cohorts:
      self._id_type = cohort.schema.field('device_id').type if cohort.num_rows else self._id_type

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
      *_, self._chain = (chain.START, *self._chained())
    return self._chain.hex()

  def _chained(self) -> Iterator[bytes]:
    before = chain.START
    for t in range(self.num_rounds):
      ids = _array(self._table(t).column('device_id'))
      before = chain.of_cohort(before, t, ids)
      yield before

  @property
  def num_rounds(self) -> int:
    return len(self._entries) or len(self._cohorts)

  def append(
    self, round_index: int, device_ids: Sequence[str] | Sequence[int] | np.ndarray, timestamp: int
  ) -> None:
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
    size = len(device_ids)
    columns.utc_seconds('timestamp', [timestamp])
    ids = columns.id_column(device_ids)
    if size and self._id_type not in (None, ids.type):
      types = sorted(map(str, (self._id_type, ids.type)))
      raise ValueError(f'device_ids must be of one type through a log, got {types}')
    if len(pc.unique(ids)) != size:
      raise ValueError(f'device_ids holds a device twice in round {round_index}')
    digest = chain.of_cohort(bytes.fromhex(self.digest), self.num_rounds, ids)
    payload = journal.of_cohort(round_index, timestamp, ids, digest)
    if self._journal is None:
      self._begin([(journal.COHORT, payload)], self._given)
    else:
      offset = self._store(journal.COHORT, payload)
      self._entries.append(journal.Entry(offset, len(payload), timestamp, size, digest))
    self._chain = digest
    if size:
      self._id_type = ids.type

  def released(self) -> int | None:
    """Number of rounds whose results may have been used; None if unknown."""
    return self._released

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

  def change_noise(
    self,
    round_index: int,
    *,
    noise_multiplier: float | None = None,
    clip_norm: float | None = None,
    strategy: base.Strategy | None = None,
    restart: bool = False,
  ) -> noise_record.DeclaredNoise:
    """Records durably that the noise changes or restarts from a round on.

    Call it before that round is computed. The change enters the log's metadata, as
    `noise_record.run_metadata` gives it, so that replay needs no flags for it.

    Args:
      round_index: the next round to be computed: num_rounds, or one less if
        that round's cohort is in the log already.
      noise_multiplier, clip_norm: values from that round on; None for those before.
      strategy: C from that round on; None for the one before. Another one
        needs a restart.
      restart: whether noise begins anew with row 0 and an independent Z.

    Returns:
      The change, for `CorrelatedNoiseFactory.change_noise` or `restart_noise`.

    Raises:
      ValueError: for another round or values out of range, if nothing changes,
        if the metadata lack the previous noise multiplier and clip norm, and
        for another strategy without a restart.
      OSError: if it cannot be written; the log is then as before.
    """
    if operator.index(round_index) not in (self.num_rounds, self.num_rounds - 1):
      raise ValueError(
        f'round_index must be {self.num_rounds}, or one less where that round'
        f' was not computed yet, got {round_index}'
      )
    given = noise_record.changed(
      self._given,
      round_index,
      noise_multiplier=noise_multiplier,
      clip_norm=clip_norm,
      strategy=strategy,
      restart=restart,
    )
    self._record(journal.METADATA, journal.of_metadata(given))
    self._given = given
    return self.declared(round_index)

  def declared(self, round_index: int) -> noise_record.DeclaredNoise:
    """Returns the change of the noise that was recorded at a round; ValueError if none was."""
    return noise_record.declared_noise(self._given, round_index)

  def cohort(self, round_index: int) -> np.ndarray:
    """Returns the device ids of a round, as they were appended."""
    return columns.as_numpy(self._table(round_index).column('device_id'))

  def timestamp(self, round_index: int) -> int | None:
    """Returns the UTC second of the last round with devices up to a round, if any."""
    for t in range(round_index, -1, -1):
      if self._entries and self._entries[t].num_devices:
        return self._entries[t].timestamp
      if not self._entries and self._cohorts[t].num_rows:
        return columns.seconds(self._cohorts[t])[0].as_py()
    return None

  def rows(self, *, before: int | None = None) -> schema.Rows:
    """Returns the rows of rounds 0 to before − 1, or of all rounds."""
    table = pa.concat_tables([self._empty(), *self._tables(before)])
    return schema.Rows(
      rounds=table.column('round').to_numpy(),
      device_ids=columns.as_numpy(table.column('device_id')),
      timestamps=columns.seconds(table).to_numpy(),
    )

  def close(self) -> None:
    """Turns the journal into one Parquet file, durably; nothing can be appended then.

    The same rounds give the same bytes with the same release of pyarrow.

    Raises:
      OSError: if it cannot be written; the journal then remains.
    """
    self._closed = True
    if self._journal is None:
      return
    rows = digests.Rows(timestamps=True)
    for table in self._tables(None):
      rows.update(table)
    id_type = self._empty().schema.field('device_id').type
    mark = {} if self._released is None else {shards.RELEASED_KEY: str(self._released)}
    own = {shards.CHAIN_KEY: self.digest, **mark}
    metadata = {**schema.file_metadata(self.num_rounds, self._given), **own}
    schema.write(self.path, schema.schema(id_type), metadata, rows, self._tables(None))
    self._journal.remove()

  def _empty(self) -> pa.Table:
    return schema.schema(self._id_type or pa.string()).empty_table()

  def _tables(self, before: int | None) -> Iterator[pa.Table]:
    for t in range(self.num_rounds if before is None else before):
      if (table := self._table(t)).num_rows:
        yield table

  def _table(self, round_index: int) -> pa.Table:
    if not self._entries:
      return self._cohorts[round_index]
    entry = self._entries[round_index]
    return columns.of_round(
      range(self.num_rounds)[round_index],
      journal.ids_of(self._opened().read(entry)),
      entry.timestamp,
    )

  def _begin(self, more: Sequence[tuple[bytes, bytes]], given: Mapping[str, str]) -> None:
    """Begins the journal with the rounds of a Parquet file, and further frames."""
    self._check_open()

    def frames() -> Iterator[tuple[bytes, bytes]]:
      yield journal.METADATA, journal.of_metadata(given)
      for t, (cohort, digest) in enumerate(zip(self._cohorts, self._chained())):
        ids = _array(cohort.column('device_id'))
        second = columns.seconds(cohort)[0].as_py() if len(ids) else 0
        yield journal.COHORT, journal.of_cohort(t, second, ids, digest)
      if self._released is not None and self._cohorts:
        yield journal.RELEASED, journal.of_released(self._released)
      yield from more
      if self._released is not None and not self._cohorts:
        yield journal.RELEASED, journal.of_released(self._released)

    begun = journal_file.JournalFile.begin(journal.path_of(self.path), frames())
    if _state(self.path) != self._parquet:
      begun.remove()
      raise ValueError(
        f'{self.path} was changed by another writer since it was opened; open the log again'
      )
    self._journal = begun
    self._entries, self._cohorts = list(self._journal.contents.rounds), []
    self._drop_parquet()

  def _drop_parquet(self) -> None:
    """Removes a Parquet file that the journal has overtaken."""
    if self.path.exists():
      self.path.unlink()
      durable.sync_folder(self.path.parent)

  def _record(self, kind: bytes, payload: bytes) -> None:
    if self._journal is None:
      self._begin([(kind, payload)], self._given)
    else:
      self._store(kind, payload)

  def _store(self, kind: bytes, payload: bytes) -> int:
    self._check_open()
    offset = self._opened().append(kind, payload)
    self._drop_parquet()
    return offset

  def _opened(self) -> journal_file.JournalFile:
    if self._journal is None:
      raise ValueError(f'{self.path} has no journal')
    return self._journal

  def _check_open(self) -> None:
    if self._closed:
      raise ValueError(f'{self.path} was closed; open the log again to append to it')

  def _resume(self) -> None:
    """Takes over the rounds of a journal."""
    self._journal = journal_file.JournalFile(journal.path_of(self.path))
    found = self._journal.contents
    if found.metadata != self._given:
      raise other_run.error(self._journal.path, found.metadata, self._given)
    self._released = self._mark(
      None if found.released is None else str(found.released), len(found.rounds)
    )
    if self.path.exists() and (shards.open_(self.path).num_rounds or 0) > len(found.rounds):
      raise refusals.LogError(
        f'{self.path} has more rounds than {self._journal.path}; remove the older of the two'
      )
    self._entries, self._id_type = list(found.rounds), found.id_type
    self._chain = found.rounds[-1].chain if found.rounds else b''
    if found.torn_bytes:
      self.dropped = journal.torn(str(self._journal.path), found)

  def _read(self) -> list[pa.Table]:
    shard = shards.open_(self.path, 'timestamp')
    num_rounds = shard.num_rounds or 0
    own = schema.file_metadata(shard.num_rounds or 0, self._given)
    found = dict(shard.metadata)
    self._released = self._mark(found.pop(shards.RELEASED_KEY, None), num_rounds)
    found.pop(shards.CHAIN_KEY, None)  # Computed again: an older release may have added rounds.
    if found != own:
      raise other_run.error(self.path, found, own)
    table = pa.concat_tables(shard.tables())
    if pa.types.is_large_string(table.schema.field('device_id').type):
      ids = table.column('device_id').cast(pa.string())
      table = table.set_column(1, 'device_id', ids)
    rounds = table.column('round').to_numpy()
    if (
      table.schema.field('timestamp').type != digests.TIMESTAMP
      or table.column('timestamp').null_count
      or (np.diff(rounds) < 0).any()
      or (rounds >= num_rounds).any()
    ):
      raise refusals.LogError(
        f'{self.path}: rounds must be sorted and have timestamps before a log can be appended to'
      )
    ends = np.searchsorted(rounds, np.arange(num_rounds + 1)).tolist()
    cohorts = [table.slice(a, b - a) for a, b in zip(ends, ends[1:])]
    if any(len(pc.unique(cohort.column('timestamp'))) > 1 for cohort in cohorts):
      raise refusals.LogError(
        f'{self.path}: each round must have one timestamp before a log can be appended to'
      )
    return cohorts

  def _mark(self, text: str | None, num_rounds: int) -> int | None:
    if text is None:
      return None
    if not re.fullmatch('[0-9]{1,18}', text) or int(text) > num_rounds:
      raise refusals.LogError(
        f'{self.path}: {shards.RELEASED_KEY} is {text[:40]!r}, and the log has {num_rounds} rounds'
      )
    return int(text)


def _state(path: pathlib.Path) -> tuple[int, ...] | None:
  """Tells a file from one that was written later; None if there is none."""
  try:
    found = path.stat()
  except FileNotFoundError:
    return None
  return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _array(column: pa.ChunkedArray) -> pa.Array:
  ids = column.combine_chunks()
  return ids if isinstance(ids, pa.Array) else ids.combine_chunks()
