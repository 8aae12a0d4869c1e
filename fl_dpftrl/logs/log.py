"""A participation log of any size: opened, and read a batch of rows at a time."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import journal, limits, refusals
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import shards as shards_lib
from fl_dpftrl.text import messages


class LogFile(NamedTuple):
  """Name without folders and SHA-256 of a file that was read."""

  name: str
  sha256: str


@dataclasses.dataclass(frozen=True, eq=False)
class Log:
  """The shards of one log, which are consistent with each other.

  Attributes:
    shards: the files of the log.
    num_rounds: n, rows of noise consumed.
    warnings: lines that a reader should know.
    layout: where the files have their columns.
    num_rounds_assumed: whether num_rounds rests on the last round alone.
  """

  shards: tuple[shards_lib.Shard, ...]
  num_rounds: int
  warnings: tuple[str, ...] = ()
  num_rounds_assumed: bool = False
  layout: layout_lib.Layout = layout_lib.PLAIN

  @property
  def id_type(self) -> pa.DataType:
    return self.shards[0].id_type

  @property
  def metadata(self) -> Mapping[str, str]:
    return self.shards[0].metadata

  def tables(self) -> Iterator[pa.Table]:
    """Yields checked rows in the order of files; LogError for a faulty row."""
    for shard in self.shards:
      yield from shard.tables(self.num_rounds)

  def files(self) -> tuple[LogFile, ...]:
    """Returns the files of the log; none of a log in memory."""
    return tuple(LogFile(os.path.basename(s.path), s.sha256()) for s in self.shards if s.sha256)

  def place(self, round_index: int, device_id: str | int) -> str:
    """Returns file and row number of a device's last row in a round."""
    place = ''
    for shard in self.shards:
      before = 0
      for table in shard.tables(self.num_rounds):
        found = pc.and_(
          pc.equal(table.column('round'), round_index),
          pc.equal(table.column('device_id'), device_id),
        ).to_numpy()
        if found.any():
          row = before + int(found.nonzero()[0][-1]) + 1
          place = f'{shard.path}, row {row}'
        before += table.num_rows
    return place


def read_log(
  paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
  *,
  num_rounds: int | None = None,
  layout: layout_lib.Layout = layout_lib.PLAIN,
) -> Log:
  """Opens a log's files.

  Rows are read when participation is counted. They are read once before if neither the files
  nor the caller give the number of rounds.

  Args:
    paths: one or more files, folders or globs, the shards of one log.
    num_rounds: rows of noise consumed, if the files do not say.
    layout: where the files have their columns.

  Raises:
    LogError: naming the file.
  """
  if isinstance(paths, (str, os.PathLike)):
    paths = [paths]
  shards = shards_lib.open_all(shards_lib.find(paths), layout=layout)
  for shard in shards[1:]:
    _check_agreement(shards[0], shard)
  n, assumed = _num_rounds(shards, num_rounds)
  torn = [s.metadata[journal.TORN_KEY] for s in shards if journal.TORN_KEY in s.metadata]
  return Log(shards, n, (*assumed, *torn), num_rounds_assumed=bool(assumed), layout=layout)


def of_table(table: pa.Table, *, num_rounds: int) -> Log:
  """Returns a log of columns `round`, int64, and `device_id`, text or int64.

  Args:
    table: columns of the log, without nulls.
    num_rounds: rows of noise consumed.
  """
  if not pa.types.is_integer(table.schema.field('device_id').type):
    ids = table.column('device_id').cast(pa.large_string())
    table = table.select(['round']).append_column('device_id', ids)
  shard = shards_lib.in_memory(table, num_rounds)
  return Log((shard,), num_rounds)


def _check_agreement(first: shards_lib.Shard, other: shards_lib.Shard) -> None:
  if first.claims != other.claims:
    keys = sorted(first.claims.keys() | other.claims.keys())
    key = next(k for k in keys if first.claims.get(k) != other.claims.get(k))
    raise refusals.LogError(
      f'{other.path}: {key} is {messages.quoted(other.claims.get(key))}, but'
      f' {messages.quoted(first.claims.get(key))} in {first.path}; they are not shards of one log'
    )
  if first.id_type != other.id_type:
    names = ['whole numbers' if s.id_type == pa.int64() else 'text' for s in (first, other)]
    raise refusals.LogError(
      f'{other.path}: device_id is {names[1]}, but {names[0]} in {first.path}'
    )


def _num_rounds(shards: Sequence[shards_lib.Shard], given: int | None) -> tuple[int, list[str]]:
  """Returns n from metadata, the argument or the last round; and warnings."""
  first, stated = shards[0], shards[0].num_rounds
  if given is not None and not 1 <= given <= limits.ROUNDS:
    raise refusals.LogError(
      f'num_rounds must be at least 1 and at most {limits.ROUNDS}, got {messages.quoted(given)}'
    )
  if stated is not None:
    if given is not None and given != stated:
      raise refusals.LogError(f'{first.path}: its num_rounds is {stated}, not {given}')
    return stated, []
  if given is not None:
    return given, []
  last = max(
    (
      pc.max(table.column('round')).as_py()
      for shard in shards
      for table in shard.tables()
      if table.num_rows
    ),
    default=None,
  )
  if last is None:
    raise refusals.LogError(f'{first.path}: the log is empty')
  return last + 1, [
    f'{first.path} does not say how many rounds consumed noise; taken to be its last round plus'
    f' one, {last + 1}. Burnt rounds after it would be missing: give --num_rounds'
  ]
