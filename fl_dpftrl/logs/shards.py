"""The files of a log: found, read and checked one by one.

Messages number rows from 1, not counting the header of a CSV file.
"""

import dataclasses
import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from fl_dpftrl.logs import formats, journal, keys, limits, refusals
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import reader as reader_lib
from fl_dpftrl.text import messages

LOG_VERSION = keys.LOG_VERSION
VERSION_KEY = keys.VERSION_KEY
NUM_ROUNDS_KEY = keys.NUM_ROUNDS_KEY
# The reason why the run gives no guarantee, if it gives none.
VOID_KEY = 'fl_dpftrl.void_reason'
# Values in round 0, and later changes as JSON: a list of [round, noise multiplier, clip norm].
NOISE_MULTIPLIER_KEY = 'fl_dpftrl.noise_multiplier'
CLIP_NORM_KEY = 'fl_dpftrl.clip_norm'
NOISE_CHANGES_KEY = 'fl_dpftrl.noise_changes'
# JSON of an AdaptiveClipping, where the clip norm above is its first.
ADAPTIVE_CLIPPING_KEY = 'fl_dpftrl.adaptive_clipping'
# Restarts as JSON: a list of [round, strategy from that round on, or null for the one before].
NOISE_RESTARTS_KEY = 'fl_dpftrl.noise_restarts'
# The schema that a guard declared before the first round, as JSON.
SCHEMA_KEY = 'fl_dpftrl.declared_schema'
STRATEGY_KEY = 'fl_dpftrl.strategy_sha256'
RELEASED_KEY = keys.RELEASED_KEY
CHAIN_KEY = keys.CHAIN_KEY
_OWN_PREFIX = 'fl_dpftrl.'
_SUFFIXES = ', '.join(formats.READERS)
# Most descriptors of a log's files kept open; a process may have about 1000.
_HELD = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
  """One opened file of a log, whose rows are read on request.

  Attributes:
    path: path as it was given or found.
    metadata: the file's own keys and values, without digests; none for CSV and JSON lines.
    num_rounds: rows of noise consumed, if the file states them.
    id_type: type of `device_id`: large_string or int64.
    digest: identifies the file's rows, if its writer gave a digest.
    tables: function that yields checked rows in order, some at a time. Its argument is an upper
      limit that all rounds must be below; None for no limit. The tables have `round`, int64,
      `device_id` of id_type, without nulls, and the further columns that the shard was opened
      with. It raises LogError if the file cannot be read, a round is missing or negative, or a
      device id breaks the rule for ids.
    sha256: function that returns the digest of the file's bytes, in hexadecimal; None for a log
      in memory.
  """

  path: str
  metadata: Mapping[str, str]
  num_rounds: int | None
  id_type: pa.DataType
  digest: str | None
  tables: Callable[..., Iterator[pa.Table]] = dataclasses.field(repr=False)
  sha256: Callable[[], str] | None = dataclasses.field(repr=False)

  @property
  def claims(self) -> dict[str, str]:
    """The metadata that shards of one log must share."""
    return {
      key: value
      for key, value in self.metadata.items()
      if key == NUM_ROUNDS_KEY or key.startswith(_OWN_PREFIX)
      if key not in (RELEASED_KEY, CHAIN_KEY)
    }


def find(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
  """Returns the files that paths, folders and globs name, each once, in order.

  The journal of a log that is being written stands for the log. A folder stands for
  all files in it except those whose names start with a dot or an underscore. It must
  hold nothing else, so that no shard is overlooked.

  Raises:
    LogError: if nothing is found, or a folder holds something else.
  """
  found: dict[str, str] = {}
  for given in [os.fspath(path) for path in paths]:
    if os.path.isfile(given):
      matches = [given]
      if os.path.isfile(given + journal.SUFFIX):
        matches.append(given + journal.SUFFIX)
    elif os.path.isdir(given):
      matches = _in_folder(given)
    else:
      both = (*glob.glob(given, recursive=True), *glob.glob(given + journal.SUFFIX, recursive=True))
      matches = sorted(m for m in set(both) if os.path.isfile(m))
    if not matches:
      raise refusals.LogError(f'{given}: no such file, folder or match of a glob')
    for match in matches:
      found.setdefault(os.path.realpath(match), match)
  if not found:
    raise refusals.LogError('no log given')
  for match in found.values():
    if match.removesuffix(journal.SUFFIX) != match and os.path.exists(
      match.removesuffix(journal.SUFFIX)
    ):
      raise refusals.LogError(
        f'{match}: its writer ended while it turned it into a Parquet file; resume the run, or open'
        ' the log with LogWriter and close it'
      )
  return list(found.values())


def _in_folder(folder: str) -> list[str]:
  found = []
  for name in sorted(n for n in os.listdir(folder) if not n.startswith(('.', '_'))):
    path = os.path.join(folder, name)
    if os.path.isdir(path) and '=' in name:  # KEY=VALUE, a column and its value.
      found += _in_folder(path)
    elif formats.suffix_of(name) in formats.SUFFIXES and os.path.isfile(path):
      found.append(path)
    else:
      raise refusals.LogError(
        f'{folder}: holds {messages.quoted(name)}, which is no {_SUFFIXES} file; name the'
        " log's own files, or a folder of nothing else"
      )
  return found


def open_(
  path: str | os.PathLike[str], *extra_columns: str, layout: layout_lib.Layout = layout_lib.PLAIN
) -> Shard:
  """Opens one file and reads its metadata.

  Args:
    path: name ending in .parquet, .csv, .jsonl, .ndjson or .json (JSON lines).
    *extra_columns: required columns of a Parquet file, read as they are.
    layout: where the file has its columns.

  Raises:
    LogError: if it cannot be read, or is of another version.
  """
  return open_all([path], *extra_columns, layout=layout)[0]


def open_all(
  paths: Sequence[str | os.PathLike[str]],
  *extra_columns: str,
  layout: layout_lib.Layout = layout_lib.PLAIN,
) -> tuple[Shard, ...]:
  """Opens files as `open_` does; one process then reads them all."""
  reader = reader_lib.Reader()
  return tuple(
    _open(os.fspath(path), extra_columns, reader, held=index < _HELD, layout=layout)
    for index, path in enumerate(paths)
  )


def _open(
  path: str,
  extra_columns: Sequence[str],
  reader: reader_lib.Reader,
  *,
  held: bool,
  layout: layout_lib.Layout,
) -> Shard:
  if formats.suffix_of(path) not in formats.SUFFIXES:
    raise refusals.LogError(f'{path}: ends in none of {_SUFFIXES}')
  source = reader_lib.Source(path, held=held, layout=layout)
  metadata, digest, schema = reader.open(source, extra_columns)
  return Shard(
    path,
    metadata,
    _num_rounds(path, metadata),
    schema.field('device_id').type,
    digest,
    lambda num_rounds=None: reader.tables(source, extra_columns, num_rounds),
    source.sha256,
  )


def in_memory(table: pa.Table, num_rounds: int) -> Shard:
  """Returns a shard with the rows of a table.

  Args:
    table: columns `round`, int64, and `device_id`, large_string or int64.
    num_rounds: rows of noise consumed.
  """

  def tables(beyond: int | None = None) -> Iterator[pa.Table]:
    refusals.check_rows('log', table, beyond, 1)
    yield table

  id_type = table.schema.field('device_id').type
  return Shard('log', {}, num_rounds, id_type, None, tables, None)


def _num_rounds(path: str, metadata: Mapping[str, str]) -> int | None:
  version = metadata.get(VERSION_KEY, str(LOG_VERSION))
  if version != str(LOG_VERSION):
    raise refusals.LogError(
      f'{path}: {VERSION_KEY} is {messages.quoted(version)}, known is {LOG_VERSION}'
    )
  text = metadata.get(NUM_ROUNDS_KEY)
  if text is None:
    return None
  # Counted before it is read: Python refuses to read the longest.
  short = text.isascii() and text.isdigit() and len(text) <= 18
  if not (short and 1 <= int(text) <= limits.ROUNDS):
    raise refusals.LogError(
      f'{path}: {NUM_ROUNDS_KEY} must be a whole number from 1 to'
      f' {limits.ROUNDS}, got {messages.quoted(text)}'
    )
  return int(text)
