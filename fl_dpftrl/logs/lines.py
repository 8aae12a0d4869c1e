"""Logs in CSV and in JSON lines: a line is a row, and a row is a line.

Lines are cut and counted here, before any parser sees them. A parser that took several lines
for one row, as after a stray quotation mark, would hide participations.
"""

import io
import json
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from fl_dpftrl.logs import layouts, limits, refusals
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

_BLOCK = 1 << 24  # bytes
_BLANK_LINES = 256  # most before the first object
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'


class _Lines:
  """A log file in which each line is a row; see `reader`."""

  metadata: dict[str, str] = {}  # noqa: RUF012
  names: list[str] = []  # noqa: RUF012

  def __init__(self, path: str, file: BinaryIO, layout: layouts.Layout = layouts.PLAIN):
    """Opens a file, which must be seekable; LogError, OSError or pa.ArrowException if it fails."""
    self._path = path
    self._file = file
    self._layout = layout
    self._line_bytes = limits.LINE_BYTES
    self._start = 0  # Position of the first line that holds a row.
    id_type = self._read_head()
    self.schema = pa.schema([('round', pa.int64()), ('device_id', id_type)])

  def tables(self) -> Iterator[pa.Table]:
    """Yields its rows in order; raises like the constructor."""
    first_row = 1
    for block in self._blocks():
      table = self._table(block, first_row)
      first_row += table.num_rows
      yield table

  def _blocks(self) -> Iterator[bytes]:
    """Yields whole lines, in blocks of a size that is fast to read."""
    self._file.seek(self._start)
    line = 2 if self._start else 1
    while block := self._file.read(_BLOCK):
      if block[-1:] != b'\n':
        block += self._file.readline(self._line_bytes + 1)
      self._check_lengths(block, line)
      if block.count(b'\r') != block.count(b'\r\n'):
        raise refusals.LogError(
          f'{self._path}: has a carriage return that ends no line with a line'
          ' feed; write lines that end in one way'
        )
      line += block.count(b'\n')
      yield block

  def _check_lengths(self, block: bytes, line: int) -> None:
    start = 0
    while len(block) - start > self._line_bytes:
      end = block.rfind(b'\n', start, start + self._line_bytes + 1)
      if end < 0:
        line += block.count(b'\n', 0, start)
        raise refusals.LogError(
          f'{self._path}, line {line}: is longer than {self._line_bytes} bytes'
        )
      start = end + 1

  def _refuse(self, row: int, why: str) -> NoReturn:
    raise refusals.LogError(f'{self._path}, row {row}: {why}')

  def _read_head(self) -> pa.DataType:
    """Reads as far as the first device id, and returns the type of ids; null if there is none."""
    raise NotImplementedError

  def _table(self, block: bytes, first_row: int) -> pa.Table:
    """Returns the rows of a block whose first row has this number."""
    raise NotImplementedError


class Csv(_Lines):
  """Values after a header line, as in RFC 4180, without line breaks within fields."""

  def _read_head(self) -> pa.DataType:
    self._file.seek(0)
    head = self._file.readline(limits.LINE_BYTES + 1)
    self._check_lengths(head, 1)
    if head.count(b'\r') != head.count(b'\r\n') or not head.strip():
      raise refusals.LogError(f'{self._path}: begins with no line of names')
    suffixes = pathlib.PurePath(self._path).suffixes
    delimiter = layouts.delimiter(head, '.tsv' if '.tsv' in suffixes[-2:] else '')
    self._parsing = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=False)
    table = pa_csv.read_csv(io.BytesIO(head), parse_options=self._parsing)
    if table.num_rows:
      raise refusals.LogError(f'{self._path}: its names are not in one line')
    names = self.names = table.schema.names
    self._start = len(head)
    in_file, self._folder_values = self._layout.columns(self._path, names)
    self._columns = list(in_file)
    self._names = self._layout.renamed(names)
    return pa.large_string() if self._file.read(1) else pa.null()

  def _blocks(self) -> Iterator[bytes]:
    block = b'\n'
    for block in super()._blocks():
      yield block
    if block[-1:] != b'\n':
      raise refusals.LogError(
        f'{self._path}: does not end with a newline, so it may have been'
        ' cut; add one if it is whole'
      )

  def _table(self, block: bytes, first_row: int) -> pa.Table:
    if len(self._names) == 1:
      self._refuse_blank(block, first_row)
    if not block.strip(b'\r\n'):
      return self.schema.empty_table()
    if block.startswith(_BYTE_ORDER_MARK):
      self._refuse(first_row, 'begins with a byte order mark')
    # As bytes: what is no text is refused by the row, with the id.
    kinds = {name: pa.large_binary() for name in self._columns}
    table = pa_csv.read_csv(
      io.BytesIO(block),
      read_options=pa_csv.ReadOptions(column_names=self._names),
      parse_options=self._parsing,
      convert_options=pa_csv.ConvertOptions(
        include_columns=self._columns, column_types=kinds, strings_can_be_null=False
      ),
    )
    self._count(block, table.num_rows, first_row)
    columns: dict[str, Any] = layouts.repeated(self._folder_values, table.num_rows)
    if 'round' not in columns:
      rounds = table.column('round')
      odd = pc.invert(pc.match_substring_regex(rounds, r'^-?[0-9]{1,18}$'))
      if (index := pc.index(odd, True).as_py()) >= 0:
        text = rounds[index].as_py().decode(errors='backslashreplace')
        self._refuse(
          first_row + index, f'round must be a whole number, got {messages.quoted(text)}'
        )
      columns['round'] = rounds.cast(pa.large_string()).cast(pa.int64())
    if 'device_id' not in columns:
      ids = table.column('device_id').chunks
      views = [chunk.view(pa.large_string()) for chunk in ids]
      columns['device_id'] = pa.chunked_array(views, pa.large_string())
    return pa.table([columns[name] for name in layouts.NAMES], schema=self.schema)

  def _refuse_blank(self, block: bytes, first_row: int) -> None:
    """Raises LogError for a blank line: in a file of one column, it is a row without a value."""
    for row, line in enumerate(block.split(b'\n')[:-1], first_row):
      if not line.strip(b'\r'):
        self._refuse(row, f'is blank, so that {messages.quoted(self._names[0])} is missing')

  def _count(self, block: bytes, num_rows: int, first_row: int) -> None:
    """Raises LogError unless there is a row for each line that is not empty."""
    if num_rows == block.count(b'\n'):
      return
    lines = [line for line in block.split(b'\n') if line.strip(b'\r')]
    if num_rows == len(lines):
      return
    for row, line in enumerate(lines, first_row):
      if line.count(b'"') % 2:
        self._refuse(
          row,
          'a quotation mark has no other in its line, so that rows would be missed; write such'
          ' a mark twice, within quotation marks, and no line breaks in fields',
        )
    raise refusals.LogError(
      f'{self._path}: {len(lines)} lines from row {first_row} on hold'
      f' {num_rows} rows, so that rows would be missed'
    )


class JsonRows(_Lines):
  """A JSON object in each line."""

  def _read_head(self) -> pa.DataType:
    self._file.seek(0)
    line, names = self._first_line(), self._layout
    entry = _entry(line)
    keys = self.names = list(entry) if entry else [names.round, names.device_id]
    self._wanted, self._folder_values = names.columns(self._path, keys)
    first = entry.get(names.device_id)
    self._lists = isinstance(first, list)
    if self._lists:
      self._line_bytes = limits.COHORT_BYTES
    while first == [] and line:
      line = self._first_line()
      first = _entry(line).get(names.device_id, []) if line else None
    if not line:
      return pa.null()
    first = next(iter(first), None) if isinstance(first, list) else first
    # A bool is an int too, and refused with the row.
    return pa.int64() if isinstance(first, int) else pa.large_string()

  def _first_line(self) -> bytes:
    """Returns the next line that is not blank; empty at the end."""
    for _ in range(_BLANK_LINES):
      head = self._file.readline(limits.LINE_BYTES)
      if not head or head.strip():
        break
    if len(head) == limits.LINE_BYTES and head[-1:] != b'\n':  # A long list, perhaps.
      head += self._file.readline(limits.COHORT_BYTES)
    return head

  def _table(self, block: bytes, first_row: int) -> pa.Table:
    """Returns a row for each line, which holds a device id or a list of them."""
    rounds: list[int | None] = []
    ids: list[Any] = []
    ends = [0]
    if first_row == 1:
      block = block.removeprefix(_BYTE_ORDER_MARK)
    for row, line in enumerate(filter(bytes.strip, block.split(b'\n')), first_row):
      round_index, cohort = self._entry(line, row)
      if round_index is not None and not _is_whole(round_index):
        self._refuse(row, f'round must be a whole number, got {messages.quoted(round_index)}')
      if not self._lists:
        cohort = [cohort]
      elif not isinstance(cohort, list):
        self._refuse(row, f'device_id must be a list here too, got {messages.quoted(cohort)}')
      for device_id in cohort:
        self._check(device_id, row)
      rounds.append(round_index)
      ids += cohort
      ends.append(len(ids))
    kind = self.schema.field('device_id').type
    if pa.types.is_large_string(kind):
      # As bytes: what is no text is refused by the row, with the id.
      raw = [text if text is None else text.encode(errors='surrogatepass') for text in ids]
      column = pa.array(raw, pa.large_binary()).view(kind)
    else:
      column = pa.array(ids, kind)
    if self._lists:
      column = pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), column)
    return pa.table({'round': pa.array(rounds, pa.int64()), 'device_id': column})

  def _entry(self, line: bytes, row: int) -> tuple[Any, Any]:
    """Returns round and device_id of a line; LogError if it lacks one."""
    try:
      entry = json.loads(line, object_pairs_hook=json_files.unique)
      values = {own: entry.get(name) for own, name in self._wanted.items()} | self._folder_values
    except UnicodeDecodeError as e:
      self._refuse(row, f'is not UTF-8, {e}')
    except (ValueError, AttributeError, RecursionError):
      names = ' and '.join(self._wanted.values())
      self._refuse(row, f'must be a JSON object with {names}')
    return values['round'], values['device_id']

  def _check(self, device_id: Any, row: int) -> None:
    wanted = int if pa.types.is_integer(self.schema.field(1).type) else str
    if device_id is None:  # Refused with the row, as a gap.
      return
    if type(device_id) is not wanted or not (wanted is str or _is_whole(device_id)):
      self._refuse(
        row,
        'device_id must be all text or all whole numbers of 64 bits, got'
        f' {messages.quoted(device_id)}',
      )


def _entry(line: bytes) -> dict[str, Any]:
  """Returns a line's object; an empty one for anything else, which is refused when it is read."""
  try:
    entry = json.loads(line.removeprefix(_BYTE_ORDER_MARK))
  except (ValueError, RecursionError):
    return {}
  return entry if isinstance(entry, dict) else {}


def _is_whole(value: object) -> bool:
  """Returns whether a value is a whole number of 64 bits."""
  return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
