"""Logs in Parquet, read a batch of rows at a time and checked by digests."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl.logs import digests, limits, refusals
from fl_dpftrl.logs import layout as layout_lib

_BATCH_ROWS = 1 << 18
_BATCH_COHORTS = 1 << 5
# Arrow's own copies of what is said elsewhere.
_OTHER_METADATA = (b'ARROW:schema', b'pandas')


class Reader:
  """A Parquet log that is open for reading; see `reader_program.Reader`."""

  def __init__(
    self,
    path: str,
    file: BinaryIO,
    layout: layout_lib.Layout = layout_lib.PLAIN,
    *,
    timestamps: bool = False,
  ):
    """Opens a file, which must be seekable, and reads its metadata.

    Args:
      path: name of the file, for messages.
      file: the file.
      layout: where it has its columns.
      timestamps: whether its column `timestamp` is read too, as it is.

    Raises:
      LogError, OSError, pa.ArrowException: if it cannot be read.
    """
    self._path = path
    self._file = pq.ParquetFile(file, page_checksum_verification=True, buffer_size=1 << 16)
    schema = self._file.schema_arrow
    self._in_file = layout.columns(path, schema.names)
    self._given = layout.given(path, schema.names)
    kinds = {own: schema.field(name).type for own, name in self._in_file.items()}
    rounds, ids = kinds.get('round', pa.int64()), kinds.get('device_id', pa.large_string())
    self._lists = pa.types.is_list(ids) or pa.types.is_large_list(ids)
    if self._lists:
      ids = ids.value_type
    self._bytes = pa.types.is_fixed_size_binary(ids) or (_is_bytes(ids) and layout.hexadecimal)
    if layout.hexadecimal and not self._bytes:
      raise refusals.LogError(f'{path}: device_id must be bytes, is {ids}')
    if not pa.types.is_integer(rounds):
      raise refusals.LogError(f'{path}: round must be whole numbers, is {rounds}')
    self._check_size(file.seek(0, 2))
    id_type = pa.large_string() if self._bytes else _id_type(path, ids)
    fields = [('round', pa.int64()), ('device_id', id_type)]
    self.metadata, self._stated = digests.opened(path, self._stored(), schema)
    self._timed = timestamps and digests.TIMESTAMPS_KEY in self._stated
    if timestamps:
      refusals.check_names(path, schema.names, ['timestamp'])
      self._in_file['timestamp'] = 'timestamp'
      kind = schema.field('timestamp').type
      if self._timed and kind != digests.TIMESTAMP:
        raise refusals.LogError(f'{path}: timestamp must be {digests.TIMESTAMP}, is {kind}')
      fields.append(('timestamp', kind))
    self.schema = pa.schema(fields)

  def tables(self) -> Iterator[pa.Table]:
    """Yields its rows in order; raises like the constructor."""
    rows = digests.Rows(timestamps=self._timed)
    for batch in self._file.iter_batches(
      _BATCH_COHORTS if self._lists else _BATCH_ROWS, columns=list(self._in_file.values())
    ):
      table = self._table(batch)
      yield table  # Rows are checked there: what is digested has no nulls.
      if self._stated:
        rows.update(table)
    if self._stated:
      digests.check(self._path, self._stated, rows, self.schema.field('device_id').type)

  def _table(self, batch: pa.RecordBatch) -> pa.Table:
    """Returns the rows of a batch in the schema that all tables have."""
    columns = {own: batch.column(name) for own, name in self._in_file.items()}
    columns |= layout_lib.repeated(self._given, batch.num_rows)
    if self._lists:
      parents = pc.list_parent_indices(columns['device_id'])
      flat = pc.list_flatten(columns.pop('device_id'))
      columns = {name: column.take(parents) for name, column in columns.items()}
      columns['device_id'] = flat
    ids = columns['device_id']
    if self._bytes:
      texts = [None if value is None else value.hex() for value in ids.to_pylist()]
      columns['device_id'] = pa.array(texts, pa.large_string())
    elif not pa.types.is_integer(self.schema.field('device_id').type):
      columns['device_id'] = _as_large_text(ids)
    return pa.table(
      [columns[field.name].cast(field.type) for field in self.schema], schema=self.schema
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


def _is_bytes(kind: pa.DataType) -> bool:
  return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _as_large_text(ids: pa.Array) -> pa.Array:
  """Returns ids as large_string, unchecked: bytes are no text until the rule has seen them."""
  if pa.types.is_dictionary(ids.type):
    ids = ids.cast(ids.type.value_type)
  raw = ids.cast(pa.large_binary() if pa.types.is_large_string(ids.type) else pa.binary())
  return raw.cast(pa.large_binary()).view(pa.large_string())


def _id_type(path: str, given: pa.DataType) -> pa.DataType:
  """Returns int64 or large_string for the type of ids that the file has."""
  kind = given.value_type if pa.types.is_dictionary(given) else given
  if pa.types.is_integer(kind):
    return pa.int64()
  if pa.types.is_string(kind) or pa.types.is_large_string(kind):
    return pa.large_string()
  hint = '; for bytes give --columns=device_id=hex(NAME)' if _is_bytes(kind) else ''
  raise refusals.LogError(f'{path}: device_id must be text or whole numbers, is {given}{hint}')
