"""Tables in CSV: a line is a row, and a row is a line.

Lines are cut and counted here, before any parser sees them. A parser that took several lines
for one row, as after a stray quotation mark, would hide participations.
"""

import io
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from fl_dpftrl.logs import limits, refusals, table_columns
from fl_dpftrl.support.text import messages

_BLOCK = 1 << 24  # bytes
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'
_DELIMITERS = (',', '\t', ';')


class CsvReader:
  """A CSV table that is open for reading: values after a header line, as in RFC 4180.

  No field has a line break within; see `readers`.
  """

  metadata: dict[str, str] = {}  # noqa: RUF012

  def __init__(self, path: str, file: BinaryIO, columns: table_columns.TableColumns):
    """Opens a file, which must be seekable; LogError, OSError or pa.ArrowException if it fails."""
    self._path = path
    self._file = file
    head = file.readline(limits.LINE_BYTES + 1)
    self._check_lengths(head, 1)
    if head.count(b'\r') != head.count(b'\r\n') or not head.strip():
      raise refusals.LogError(f'{path}: begins with no line of names')
    self._parsing = pa_csv.ParseOptions(delimiter=_delimiter(head), newlines_in_values=False)
    # A pool of threads that starts while a refused command ends aborts it.
    options = pa_csv.ReadOptions(use_threads=False)
    table = pa_csv.read_csv(io.BytesIO(head), options, self._parsing)
    if table.num_rows:
      raise refusals.LogError(f'{path}: its names are not in one line')
    self.names: list[str] = table.schema.names
    self._start = len(head)
    self._columns = columns
    self._in_file, self._folder_values = columns.placed(path, self.names)
    id_type = pa.large_string() if file.read(1) else pa.null()
    self.schema = pa.schema(
      (name, pa.int64() if kind == table_columns.ROUND else id_type)
      for name, kind in columns.kinds.items()
    )

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
    line = 2
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
      if block[-1:] != b'\n':
        raise refusals.LogError(
          f'{self._path}: does not end with a newline, so it may have been'
          ' cut; add one if it is whole'
        )

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

  def _refuse(self, row: int, why: str) -> NoReturn:
    raise refusals.LogError(f'{self._path}, row {row}: {why}')

  def _table(self, block: bytes, first_row: int) -> pa.Table:
    """Returns the rows of a block whose first row has this number."""
    if len(self.names) == 1:
      self._refuse_blank(block, first_row)
    if not block.strip(b'\r\n'):
      return self.schema.empty_table()
    if block.startswith(_BYTE_ORDER_MARK):
      self._refuse(first_row, 'begins with a byte order mark')
    # As bytes: what is no text is refused by the row, with the id.
    types = {name: pa.large_binary() for name in self._in_file.values()}
    table = pa_csv.read_csv(
      io.BytesIO(block),
      read_options=pa_csv.ReadOptions(column_names=self.names),
      parse_options=self._parsing,
      convert_options=pa_csv.ConvertOptions(
        include_columns=list(types), column_types=types, strings_can_be_null=False
      ),
    )
    self._count(block, table.num_rows, first_row)
    columns: dict[str, Any] = self._columns.repeated(self._folder_values, table.num_rows)
    for name, in_file in self._in_file.items():
      values = table.column(in_file)
      if self._columns.kinds[name] == table_columns.ROUND:
        columns[name] = self._whole_numbers(name, values, first_row)
      else:
        views = [chunk.view(pa.large_string()) for chunk in values.chunks]
        columns[name] = pa.chunked_array(views, pa.large_string())
    return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

  def _whole_numbers(self, name: str, texts: pa.ChunkedArray, first_row: int) -> pa.ChunkedArray:
    odd = pc.invert(pc.match_substring_regex(texts, r'^-?[0-9]{1,18}$'))
    if (index := pc.index(odd, True).as_py()) >= 0:
      text = texts[index].as_py().decode(errors='backslashreplace')
      self._refuse(first_row + index, f'{name} must be a whole number, got {messages.quoted(text)}')
    return texts.cast(pa.large_string()).cast(pa.int64())

  def _refuse_blank(self, block: bytes, first_row: int) -> None:
    """Raises LogError for a blank line: in a file of one column, it is a row without a value."""
    for row, line in enumerate(block.split(b'\n')[:-1], first_row):
      if not line.strip(b'\r'):
        self._refuse(row, f'is blank, so that {messages.quoted(self.names[0])} is missing')

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


def _delimiter(head: bytes) -> str:
  """Returns what separates a CSV head's names: a comma, or what stands in its place."""
  bare = re.sub(rb'"[^"]*"', b'', head)
  return next((d for d in _DELIMITERS if d.encode() in bare), ',')
