"""Logs in CSV and in JSON lines: a line is a row, and a row is a line.

Lines are cut and counted here, before any parser sees them. A parser that took several lines
for one row, as after a stray quotation mark, would hide participations.
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from fl_dpftrl import messages
from fl_dpftrl.logs import limits, refusals

_BLOCK = 1 << 24  # bytes
_COLUMNS = ('round', 'device_id')
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'


class _Lines:
  """A log file in which each line is a row.

  Attributes:
    metadata: always empty.
    digest: always None.
    schema: schema of its tables.
  """

  metadata: dict[str, str] = {}  # noqa: RUF012
  digest: str | None = None

  def __init__(self, path: str, file: BinaryIO, extra_columns: Sequence[str]):
    """Opens the file.

    Args:
      path: name of the file, for messages.
      file: the file, which must be seekable.
      extra_columns: must be empty; only Parquet files have further columns.

    Raises:
      LogError, OSError, pa.ArrowException: if it cannot be read.
    """
    if extra_columns:
      raise refusals.LogError(f'{path}: only Parquet is read with {", ".join(extra_columns)}')
    self._path = path
    self._file = file
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
        block += self._file.readline(limits.LINE_BYTES + 1)
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
    while len(block) - start > limits.LINE_BYTES:
      end = block.rfind(b'\n', start, start + limits.LINE_BYTES + 1)
      if end < 0:
        line += block.count(b'\n', 0, start)
        raise refusals.LogError(
          f'{self._path}, line {line}: is longer than {limits.LINE_BYTES} bytes'
        )
      start = end + 1

  def _read_head(self) -> pa.DataType:
    """Reads what is needed to know the type of device ids, and returns it."""
    raise NotImplementedError

  def _table(self, block: bytes, first_row: int) -> pa.Table:
    """Returns the rows of a block whose first row has this number."""
    raise NotImplementedError


class Csv(_Lines):
  """Comma-separated values after a header line.

  The format is that of RFC 4180, without line breaks within fields.
  """

  def _read_head(self) -> pa.DataType:
    if end := self._file.seek(0, 2):
      self._file.seek(end - 1)
      if self._file.read(1) != b'\n':
        raise refusals.LogError(
          f'{self._path}: does not end with a newline, so it may have been'
          ' cut; add one if it is whole'
        )
    self._file.seek(0)
    head = self._file.readline(limits.LINE_BYTES + 1)
    self._check_lengths(head, 1)
    if head.count(b'\r') != head.count(b'\r\n') or not head.strip():
      raise refusals.LogError(f'{self._path}: begins with no line of names')
    table = pa_csv.read_csv(io.BytesIO(head))
    if table.num_rows:
      raise refusals.LogError(f'{self._path}: its names are not in one line')
    self._names = table.schema.names
    self._start = len(head)
    refusals.check_names(self._path, self._names, _COLUMNS)
    return pa.large_string()

  def _table(self, block: bytes, first_row: int) -> pa.Table:
    if not block.strip(b'\r\n'):
      return self.schema.empty_table()
    if block.startswith(_BYTE_ORDER_MARK):
      raise refusals.LogError(f'{self._path}, row {first_row}: begins with a byte order mark')
    # As bytes: what is no text is refused by the row, with the id.
    kinds = {name: pa.large_binary() for name in _COLUMNS}
    table = pa_csv.read_csv(
      io.BytesIO(block),
      read_options=pa_csv.ReadOptions(column_names=self._names),
      parse_options=pa_csv.ParseOptions(newlines_in_values=False),
      convert_options=pa_csv.ConvertOptions(
        include_columns=_COLUMNS, column_types=kinds, strings_can_be_null=False
      ),
    )
    self._count(block, table.num_rows, first_row)
    rounds, ids = table.column('round'), table.column('device_id')
    odd = pc.invert(pc.match_substring_regex(rounds, r'^-?[0-9]{1,18}$'))
    message = 'round must be a whole number, got {round}'
    if pc.any(odd).as_py():
      refusals.refuse_first(self._path, _readable(table), odd, message, first_row)
    ids = pa.chunked_array(
      [chunk.view(pa.large_string()) for chunk in ids.chunks], pa.large_string()
    )
    rounds = rounds.cast(pa.large_string()).cast(pa.int64())
    return pa.Table.from_arrays([rounds, ids], schema=self.schema)

  def _count(self, block: bytes, num_rows: int, first_row: int) -> None:
    """Raises LogError unless there is a row for each line that is not empty.

    Each row takes at least one line, since no row ends within a line.
    """
    if num_rows == block.count(b'\n'):
      return
    lines = [line for line in block.split(b'\n') if line.strip(b'\r')]
    if num_rows == len(lines):
      return
    for row, line in enumerate(lines, first_row):
      if line.count(b'"') % 2:
        raise refusals.LogError(
          f'{self._path}, row {row}: a quotation mark has no other in its line,'
          ' so that rows would be missed; write such a mark twice, within'
          ' quotation marks, and no line breaks in fields'
        )
    raise refusals.LogError(
      f'{self._path}: {len(lines)} lines from row {first_row} on hold'
      f' {num_rows} rows, so that rows would be missed'
    )


def _readable(table: pa.Table) -> pa.Table:
  """Returns a table with its bytes decoded as text, for messages."""
  columns = [
    [value.decode(errors='backslashreplace') for value in column.to_pylist()]
    for column in table.columns
  ]
  return pa.table(columns, names=table.schema.names)


class JsonLines(_Lines):
  """A JSON object in each line."""

  def _read_head(self) -> pa.DataType:
    self._file.seek(0)
    for _ in range(_BLOCK // limits.LINE_BYTES):
      head = self._file.readline(limits.LINE_BYTES)
      if not head or head.strip():
        break
    try:
      first = json.loads(head.removeprefix(_BYTE_ORDER_MARK))['device_id']
    except (ValueError, KeyError, TypeError, RecursionError):
      first = None  # The row is refused when it is read.
    # A bool is an int too, and refused with the row.
    return pa.int64() if isinstance(first, int) else pa.large_string()

  def _table(self, block: bytes, first_row: int) -> pa.Table:
    if first_row == 1:
      block = block.removeprefix(_BYTE_ORDER_MARK)
    block, num_lines = self._objects(block, first_row)
    if not num_lines:
      return self.schema.empty_table()
    try:
      table = pa_json.read_json(
        io.BytesIO(block),
        parse_options=pa_json.ParseOptions(
          explicit_schema=self.schema, unexpected_field_behavior='ignore'
        ),
      )
    except (pa.ArrowInvalid, UnicodeDecodeError) as e:
      self._explain(block, first_row, e)
    if table.num_rows != num_lines:
      self._explain(block, first_row, None)
    return table.select(_COLUMNS)

  def _objects(self, block: bytes, first_row: int) -> tuple[bytes, int]:
    """Returns the block's lines that are not blank, and their number.

    Each line must begin and end with a brace. An object cannot continue from a line that ends
    with a brace to one that begins with one, so each object is within one line. A line with two
    objects gives more rows than lines.
    """
    num_lines = block.count(b'\n') + (block[-1:] != b'\n')
    begin = block.count(b'\n{') + block.startswith(b'{')
    end = block.count(b'}\n') + block.count(b'}\r\n') + block.endswith(b'}')
    if begin == end == num_lines:
      return block, num_lines
    lines = [line.strip() for line in block.split(b'\n')]
    lines = [line for line in lines if line]
    for row, line in enumerate(lines, first_row):
      if line[:1] != b'{' or line[-1:] != b'}':
        self._refuse(row, 'must be a JSON object with round and device_id')
    return b'\n'.join(lines), len(lines)

  def _explain(self, block: bytes, first_row: int, error: Exception | None) -> NoReturn:
    """Raises LogError that names the first line at fault."""
    wanted = int if pa.types.is_integer(self.schema.field(1).type) else str
    lines = filter(bytes.strip, block.split(b'\n'))
    for row, line in enumerate(lines, first_row):
      try:
        entry = json.loads(line, object_pairs_hook=_once)
        round_index, device_id = entry['round'], entry['device_id']
      except UnicodeDecodeError as e:
        self._refuse(row, f'is not UTF-8, {e}')
      except (ValueError, KeyError, TypeError, RecursionError):
        self._refuse(row, 'must be a JSON object with round and device_id')
      if not _whole(round_index):
        self._refuse(row, f'round must be a whole number, got {messages.quoted(round_index)}')
      if type(device_id) is not wanted or not (wanted is str or _whole(device_id)):
        self._refuse(
          row,
          'device_id must be all text or all whole numbers of 64 bits, got'
          f' {messages.quoted(device_id)}',
        )
    raise refusals.LogError(
      f'{self._path}: cannot be read from row {first_row} on,'
      f' {error or "lines and rows differ in number"}'
    ) from error

  def _refuse(self, row: int, why: str) -> NoReturn:
    raise refusals.LogError(f'{self._path}, row {row}: {why}')


def _whole(value: object) -> bool:
  """Returns whether a value is a whole number of 64 bits."""
  return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
  """Builds an object from its pairs; ValueError for a key that occurs twice."""
  found = dict(pairs)
  if len(found) != len(pairs):
    raise ValueError('a key twice')
  return found
