"""Logs in Parquet, read a batch of rows at a time and checked by digests."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl.logs import digests, limits, refusals
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.text import messages

_BATCH_ROWS = 1 << 18
_BATCH_COHORTS = 1 << 5
# Arrow's own copies of what is said elsewhere.
_OTHER_METADATA = (b'ARROW:schema', b'pandas')


class Reader:
  """A Parquet log that is open for reading.

  Attributes:
    metadata: the file's own keys and values, without digests.
    digest: identifies the file's content, if its writer gave digests.
    schema: schema of its tables.
  """

  def __init__(
    self,
    path: str,
    file: BinaryIO,
    extra_columns: Sequence[str],
    layout: layout_lib.Layout = layout_lib.PLAIN,
  ):
    """Opens the file and reads its metadata.

    Args:
      path: name of the file, for messages.
      file: the file, which must be seekable.
      extra_columns: read as they are, besides `round` and `device_id`.
      layout: where the file has its columns.

    Raises:
      LogError, OSError, pa.ArrowException: if it cannot be read.
    """
    self._path = path
    self._columns = ['round', 'device_id', *extra_columns]
    self._file = pq.ParquetFile(file, page_checksum_verification=True, buffer_size=1 << 16)
    schema = self._file.schema_arrow
    refusals.check_names(path, schema.names, extra_columns)
    self._in_file = layout.columns(path, schema.names) | {name: name for name in extra_columns}
    self._given = layout.given(path, schema.names)
    kinds = {own: schema.field(name).type for own, name in self._in_file.items()}
    kinds |= {own: pa.large_string() for own in self._given}
    self._lists = _is_list(kinds['device_id'])
    if self._lists:
      kinds['device_id'] = kinds['device_id'].value_type
    self._bytes = _is_bytes(kinds['device_id']) and (
      layout.hexadecimal or pa.types.is_fixed_size_binary(kinds['device_id'])
    )
    if layout.hexadecimal and not self._bytes:
      raise refusals.LogError(f'{path}: device_id must be bytes, is {kinds["device_id"]}')
    rounds = pa.int64() if 'round' in self._given else kinds['round']
    if not pa.types.is_integer(rounds):
      raise refusals.LogError(f'{path}: round must be whole numbers, is {rounds}')
    self._check_size(file.seek(0, 2))
    id_type = pa.large_string() if self._bytes else _id_type(path, kinds['device_id'])
    self.schema = pa.schema(
      [
        ('round', pa.int64()),
        ('device_id', id_type),
        *(schema.field(name).remove_metadata() for name in extra_columns),
      ]
    )
    self.metadata, self._stated = digests.opened(path, self._stored(), schema)
    if digests.TIMESTAMPS_KEY in self._stated and 'timestamp' in extra_columns:
      kind = schema.field('timestamp').type
      if kind != digests.TIMESTAMP:
        raise refusals.LogError(f'{path}: timestamp must be {digests.TIMESTAMP}, is {kind}')
    self.digest = self._stated.get(digests.ROWS_KEY)

  def tables(self) -> Iterator[pa.Table]:
    """Yields its rows in order; raises like the constructor."""
    found = None
    if self._stated:
      timed = 'timestamp' in self._columns and digests.TIMESTAMPS_KEY in self._stated
      found = digests.Rows(timestamps=timed)
    first_row = 1
    for batch in self._file.iter_batches(
      _BATCH_COHORTS if self._lists else _BATCH_ROWS, columns=list(self._in_file.values())
    ):
      table = self._named(pa.Table.from_batches([batch]))
      for name in ('round', 'device_id'):
        self._check_range(table, name, first_row)
      first_row += table.num_rows
      table = self._canonical(table)
      yield table  # Rows are checked there: what is digested has no nulls.
      if found is not None:
        found.update(table)
    if found is not None:
      id_type = self.schema.field('device_id').type
      digests.check(self._path, self._stated, found, id_type)

  def _named(self, table: pa.Table) -> pa.Table:
    """Returns the table with the log's own names, and a row for each device."""
    table = pa.table({own: table.column(name) for own, name in self._in_file.items()})
    for own, value in self._given.items():
      column = pa.array([value] * table.num_rows, pa.large_string())
      if own == 'round':
        column = self._whole(column)
      table = table.append_column(own, column)
    if self._lists:
      ids = table.column('device_id').combine_chunks()
      ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
      table = table.drop_columns(['device_id']).take(pc.list_parent_indices(ids))
      table = table.append_column('device_id', pc.list_flatten(ids))
    if self._bytes:
      texts = [
        None if value is None else value.hex() for value in table.column('device_id').to_pylist()
      ]
      index = table.schema.get_field_index('device_id')
      table = table.set_column(index, 'device_id', pa.array(texts, pa.large_string()))
    return table

  def _whole(self, text: pa.Array) -> pa.Array:
    try:
      return text.cast(pa.int64())
    except pa.ArrowInvalid:
      raise refusals.LogError(
        f'{self._path}: round must be a whole number, but its folder says'
        f' {messages.quoted(text[0].as_py())}'
      ) from None

  def _canonical(self, table: pa.Table) -> pa.Table:
    """Returns the table converted to the schema that all tables have."""
    table = table.select(self._columns)
    for index, field in enumerate(self.schema):
      column = table.column(index)
      if pa.types.is_large_string(field.type):
        # Bytes are not text until the rule for device ids has seen them.
        kind = column.type
        if pa.types.is_dictionary(kind):
          column = pc.cast(column, kind.value_type)
        column = pa.chunked_array(
          [_as_large_text(chunk) for chunk in column.chunks], pa.large_string()
        )
      else:
        column = column.cast(field.type)
      table = table.set_column(index, field, column)
    return table

  def _check_range(self, table: pa.Table, name: str, first_row: int) -> None:
    """Raises LogError for a number that int64 cannot hold."""
    if pa.types.is_uint64(table.schema.field(name).type):
      refusals.refuse_first(
        self._path,
        table,
        pc.greater(table.column(name), pa.scalar(2**63 - 1, pa.uint64())),
        f'{name} must be below 2^63, got {{{name}}}',
        first_row,
      )

  def _check_size(self, file_bytes: int) -> None:
    rows = self._file.metadata.num_rows
    if not 0 <= rows <= limits.max_rows(file_bytes):
      raise refusals.LogError(
        f'{self._path}: claims {rows} rows, which a file of {file_bytes} bytes'
        ' cannot hold; it is damaged'
      )

  def _stored(self) -> dict[str, str]:
    stored = {
      key: value
      for key, value in (self._file.metadata.metadata or {}).items()
      if key not in _OTHER_METADATA
    }
    if sum(len(k) + len(v) for k, v in stored.items()) > limits.METADATA_BYTES:
      raise refusals.LogError(
        f'{self._path}: has more than {limits.METADATA_BYTES} bytes of metadata'
      )
    try:
      return {k.decode(): v.decode() for k, v in stored.items()}
    except UnicodeDecodeError as e:
      raise refusals.LogError(f'{self._path}: its metadata are not UTF-8, {e}') from e


def _is_list(kind: pa.DataType) -> bool:
  return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_bytes(kind: pa.DataType) -> bool:
  types = pa.types
  return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _as_large_text(ids: pa.Array) -> pa.Array:
  """Returns the same bytes as large_string, unchecked."""
  raw = ids.cast(pa.large_binary() if pa.types.is_large_string(ids.type) else pa.binary()).cast(
    pa.large_binary()
  )
  return raw.view(pa.large_string())


def _id_type(path: str, given: pa.DataType) -> pa.DataType:
  """Returns int64 or large_string for the type of ids that the file has."""
  types = pa.types
  kind = given.value_type if types.is_dictionary(given) else given
  if types.is_integer(kind):
    return pa.int64()
  if types.is_string(kind) or types.is_large_string(kind):
    return pa.large_string()
  hint = '; for bytes give --columns=device_id=hex(NAME)' if _is_bytes(kind) else ''
  raise refusals.LogError(f'{path}: device_id must be text or whole numbers, is {given}{hint}')
