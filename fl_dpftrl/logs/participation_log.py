"""A participation log of any size: its files looked up, opened and checked, and read in parts.

Messages number rows from 1, not counting the header of a CSV file.
"""

import dataclasses
import glob
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import (
  keys,
  layouts,
  ledger_format,
  ledger_reader,
  limits,
  readers,
  refusals,
  table_columns,
)
from fl_dpftrl.support.files import mark, paths
from fl_dpftrl.support.text import messages

_OWN_PREFIX, _PARQUET = 'fl_dpftrl.', '.parquet'
_SUFFIXES = ' or '.join(readers.FORMATS)
_CONVERT = 'docs/write-the-log.md says how other formats become Parquet'

Path = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
  """One opened file of a log, whose rows are read on request.

  Attributes:
    path: path of the file.
    metadata: the file's own keys and values, without digests; none for CSV.
    num_rounds: rows of noise consumed, if the file states them.
    id_type: type of `device_id`: large_string, int64 or, of a file without devices, null.
    tables: function that yields checked rows in order, some at a time. Its argument is an upper
      limit that all rounds must be below; None for no limit. The tables have `round`, int64, and
      `device_id` of id_type, without nulls. It raises LogError if the file cannot be read, a round,
      cohort or device id is missing, a round is out of range, or a device id breaks the rule.
    sha256: function that returns the digest of the file's bytes, in hexadecimal; the chained digest
      of a ledger's rounds, as its bytes say no less in another order.
    unused_columns: names of columns that no figure needs and nothing checks.
  """

  path: str
  metadata: Mapping[str, str]
  num_rounds: int | None
  id_type: pa.DataType
  tables: Callable[..., Iterator[pa.Table]] = dataclasses.field(repr=False)
  sha256: Callable[[], str] = dataclasses.field(repr=False)
  unused_columns: tuple[str, ...] = ()

  @property
  def claims(self) -> dict[str, str]:
    """The metadata that shards of one log must share."""
    return {
      key: value
      for key, value in self.metadata.items()
      if key == keys.NUM_ROUNDS_KEY or key.startswith(_OWN_PREFIX)
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Log:
  """The shards of one log, which fit together.

  Attributes:
    num_rounds: n, rows of noise consumed; assumed where it rests only on the last round.
    warnings: lines that a reader should know.
    layout: where the files have their columns.
  """

  shards: tuple[Shard, ...]
  num_rounds: int
  warnings: tuple[str, ...] = ()
  num_rounds_assumed: bool = False
  layout: table_columns.TableColumns = layouts.PLAIN

  @property
  def path(self) -> str:
    """Path of the first file."""
    return self.shards[0].path

  @property
  def id_type(self) -> pa.DataType:
    """Type of the ids of all files that have any; null if none has."""
    return next((s.id_type for s in self.shards if s.id_type != pa.null()), pa.null())

  @property
  def metadata(self) -> Mapping[str, str]:
    return self.shards[0].metadata

  @property
  def unused_columns(self) -> tuple[str, ...]:
    """Names of columns of any file that no figure needs and nothing checks."""
    return tuple(dict.fromkeys(name for shard in self.shards for name in shard.unused_columns))

  @property
  def units(self) -> tuple[tuple[int, str], ...]:
    """Citations of the table of units, each with the first round that has it; none without one."""
    path, text = self.shards[0].path, self.metadata.get(keys.UNITS_KEY)
    if text and keys.CHAIN_KEY not in self.metadata:
      raise refusals.LogError(f'{path}: cites a table of units without {keys.CHAIN_KEY}')
    try:
      return tuple((int(t), str(cited)) for t, cited in json.loads(text or '[]'))
    except (ValueError, TypeError, OverflowError) as error:
      raise refusals.LogError(f'{path}: {keys.UNITS_KEY} is malformed') from error

  def tables(self) -> Iterator[pa.Table]:
    """Yields checked rows in the order of files.

    Raises:
      LogError: for a faulty row; after the last row, where the rows are not those of the digest
        that the files state.
    """
    digest, chain = self.metadata.get(keys.CHAIN_KEY), ledger_format.Chain(self.units)
    for _, _, table in self.numbered():
      if digest:
        chain.add(table)
      yield table
    if digest and not chain.in_order:  # As where files are not in the order of their rounds.
      tables = (table for _, _, table in self.numbered())
      chain = ledger_format.Chain.from_unordered(tables, self.units)
    if digest and chain.digest(self.num_rounds) != digest:
      raise refusals.LogError(
        f'{self.shards[0].path}: its rows are not those of its {keys.CHAIN_KEY}: some are missing,'
        ' added or changed, as by a filter that kept the metadata; take the file as it was written'
      )

  def numbered(self) -> Iterator[tuple[str, int, pa.Table]]:
    """Yields path, number of the first row and checked rows, whose digest is not computed."""
    for shard in self.shards:
      first_row = 1
      for table in shard.tables(self.num_rounds):
        if table.num_rows:
          yield shard.path, first_row, table
        first_row += table.num_rows

  def files(self) -> tuple[dict[str, str], ...]:
    """Returns the name without folders and the SHA-256 of each file."""
    return tuple({'name': os.path.basename(s.path), 'sha256': s.sha256()} for s in self.shards)

  def place(self, round_index: int, device_id: str | int) -> str:
    """Returns file and row number of a device's last row in a round."""
    place = ''
    for path, first_row, table in self.numbered():
      same = pc.and_(
        pc.equal(table.column('round'), round_index), pc.equal(table.column('device_id'), device_id)
      ).to_numpy()
      if same.any():
        place = f'{path}, row {first_row + int(same.nonzero()[0][-1])}'
    return place


def read_log(
  paths: Path | Sequence[Path],
  *,
  num_rounds: int | None = None,
  layout: table_columns.TableColumns = layouts.PLAIN,
) -> Log:
  """Opens a log's files.

  Rows are read when participation is counted. They are read once before if neither the files
  nor the caller give the number of rounds.

  Args:
    paths: one or more files, folders or globs, the shards of one log.
  """
  sources = opened(paths, layout)
  shards = tuple(map(_shard, sources))
  for shard in shards[1:]:
    _check_agreement(shards[0], shard)
  readers.check_types({s.path: pa.schema([('device_id', s.id_type)]) for s in shards})
  n, assumed = _num_rounds(shards, sources, num_rounds)
  return Log(shards, n, tuple(assumed), bool(assumed), layout)


def opened(
  names: Path | Sequence[Path], columns: table_columns.TableColumns
) -> list[readers.Source]:
  """Returns the files that paths, folders and globs name; LogError for another format."""
  paths = find([names] if isinstance(names, (str, os.PathLike)) else names)
  for path in paths:
    if pathlib.PurePath(path).suffix not in readers.SUFFIXES:
      raise refusals.LogError(f'{path}: must end in {_SUFFIXES}; {_CONVERT}')
  return [readers.Source(path, columns) for path in paths]


def find(names: Sequence[Path]) -> list[str]:
  """Returns the files that paths, folders and globs name, each once, in order.

  A pattern is text that names no file, and only its part after the folders that there are: a path
  object is none. The ledger of a log that is being written stands for the log. A folder stands for
  all files in it except those whose names start with a dot or an underscore. It must
  hold nothing else, so that no shard is overlooked.
  """
  files: dict[str, str] = {}  # By their real paths.
  for name in names:
    path = os.fspath(name)
    paths.local(path)
    written = str(ledger_format.path_of(path)) if path.endswith(_PARQUET) else path
    if os.path.isfile(path):
      matches = [path]
    elif os.path.isdir(path):
      matches = _in_folder(path)
    elif os.path.isfile(written):
      matches = [written]
    else:
      matches = [] if isinstance(name, os.PathLike) else _matches(path)
    if not matches:
      is_empty = os.path.isdir(path)
      reason = 'holds no file' if is_empty else 'no such file, folder or match of a glob'
      raise refusals.LogError(f'{path or repr(path)}: {reason}')
    for match in matches:
      files.setdefault(os.path.realpath(match), match)
  if not files:
    raise refusals.LogError('no log given')
  return list(files.values())


def _matches(pattern: str) -> list[str]:
  """Returns the logs that match a pattern, also those that are still written."""
  *folders, rest = pathlib.PurePath(pattern).parts or ('',)
  literal = pathlib.Path()
  while folders and (literal / folders[0]).is_dir():
    literal /= folders.pop(0)
  end = os.path.join(*folders, rest)
  if not glob.has_magic(end):
    return []
  patterns = [end, str(ledger_format.path_of(end))] if end.endswith(_PARQUET) else [end]
  start = glob.escape(str(literal)) if literal.parts else ''
  matches = [m for p in patterns for m in glob.glob(os.path.join(start, p), recursive=True)]
  return sorted(m for m in matches if os.path.isfile(m) and not _is_closed(m))


def _is_closed(path: str) -> bool:
  """Returns whether a path is a ledger that a log was written from, or a mark."""
  return path.endswith(ledger_format.MARK_SUFFIX) or (
    path.endswith(ledger_format.SUFFIX)
    and os.path.exists(path.removesuffix(ledger_format.SUFFIX) + _PARQUET)
  )


def _in_folder(folder: str) -> list[str]:
  files: list[str] = []
  for name in sorted(n for n in os.listdir(folder) if not n.startswith(('.', '_'))):
    path = os.path.join(folder, name)
    if _is_closed(path) or name.endswith(ledger_format.SIDES):
      continue
    if os.path.isdir(path) and '=' in name:  # KEY=VALUE, a column and its value.
      files += _in_folder(path)
    elif pathlib.PurePath(name).suffix in readers.SUFFIXES and os.path.isfile(path):
      files.append(path)
    else:
      raise refusals.LogError(
        f'{folder}: holds {messages.quoted(name)}, which is no {_SUFFIXES} file; name the'
        f" log's own files, or a folder of nothing else; {_CONVERT}"
      )
  return files


def _shard(source: readers.Source) -> Shard:
  path, suffix = source.path, pathlib.PurePath(source.path).suffix
  schema, metadata, names = readers.head(source)
  if suffix in (_PARQUET, ledger_format.SUFFIX):
    _check_beside(path, metadata)
  used = set(source.columns.names.values())
  if keys.VERSION_KEY in metadata:  # Whose timestamps this package wrote.
    used.add('timestamp')
  return Shard(
    path,
    metadata,
    _logged_rounds(path, metadata),
    schema.field('device_id').type,
    lambda num_rounds=None: readers.tables(source, num_rounds),
    source.sha256 if suffix != ledger_format.SUFFIX else lambda: metadata[keys.CHAIN_KEY],
    tuple(name for name in names if name not in used),
  )


def _check_beside(path: str, metadata: Mapping[str, str]) -> None:
  """Raises LogError unless the Parquet file, ledger and mark of a run are of the same rounds."""
  real = os.path.realpath(path)
  written, marked = ledger_format.path_of(real), ledger_format.mark_of(real)
  parquet = written.with_suffix(_PARQUET)
  if path.endswith(ledger_format.SUFFIX):
    if parquet.exists():
      _, parquet_metadata, _ = readers.head(readers.Source(str(parquet)))
      ledger_format.check_same(parquet, parquet_metadata, path, metadata)
  elif written.exists():
    ledger_format.check_same(path, metadata, written, ledger_reader.Reader(str(written)).metadata)
  elif record := mark.read(marked):
    state = ledger_format.State({}, record.run, record.num_rounds, record.head)
    ledger_format.check_same(path, metadata, marked, state.metadata())


def _logged_rounds(path: str, metadata: Mapping[str, str]) -> int | None:
  version = metadata.get(keys.VERSION_KEY, str(keys.LOG_VERSION))
  if version != str(keys.LOG_VERSION):
    raise refusals.LogError(
      f'{path}: {keys.VERSION_KEY} is {messages.quoted(version)}, known is {keys.LOG_VERSION}'
    )
  text = metadata.get(keys.NUM_ROUNDS_KEY)
  if text is None:
    return None
  # Counted before it is read: Python refuses to read the longest.
  short = text.isascii() and text.isdigit() and len(text) <= 18
  if not (short and 1 <= int(text) <= limits.ROUNDS):
    raise refusals.LogError(
      f'{path}: {keys.NUM_ROUNDS_KEY} must be a whole number from 1 to'
      f' {limits.ROUNDS}, got {messages.quoted(text)}'
    )
  return int(text)


def _check_agreement(first: Shard, other: Shard) -> None:
  if first.claims != other.claims:
    names = sorted(first.claims.keys() | other.claims.keys())
    key = next(k for k in names if first.claims.get(k) != other.claims.get(k))
    raise refusals.LogError(
      f'{other.path}: {key} is {messages.quoted(other.claims.get(key))}, but'
      f' {messages.quoted(first.claims.get(key))} in {first.path}; they are not shards of one log'
    )


def _num_rounds(
  shards: Sequence[Shard], sources: Sequence[readers.Source], argument: int | None
) -> tuple[int, list[str]]:
  """Returns n from metadata, the argument or the last round; and warnings."""
  first, logged = shards[0], shards[0].num_rounds
  if argument is not None and not 1 <= argument <= limits.ROUNDS:
    raise refusals.LogError(
      f'num_rounds must be at least 1 and at most {limits.ROUNDS}, got {messages.quoted(argument)}'
    )
  if logged is not None:
    if argument is not None and argument != logged:
      raise refusals.LogError(f'{first.path}: its num_rounds is {logged}, not {argument}')
    return logged, []
  if argument is not None:
    return argument, []
  last = max(map(readers.last_round, sources))
  if last < 0:
    raise refusals.LogError(f'{first.path}: the log is empty')
  return last + 1, [
    f'{first.path} does not say how many rounds consumed noise; taken to be its last round plus'
    f' one, {last + 1}. Burnt rounds after it would be missing: give num_rounds'
  ]
