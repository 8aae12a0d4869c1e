"""Tables in Parquet, read a batch of rows at a time."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from fl_dpftrl.logs import id_columns, limits, log_tables, refusals, table_columns, table_rows

_BATCH_ROWS = 1 << 18
_BATCH_COHORTS = 1 << 5
# Arrow's own copies of what is said elsewhere.
_OTHER_METADATA = (b'ARROW:schema', b'pandas')


class ParquetReader:
  """A Parquet table that is open for reading; see `readers`."""

  def __init__(self, path: str, file: BinaryIO, columns: table_columns.TableColumns):
    """Opens a file, which must be seekable, and reads its metadata."""
    self._path, self._columns = path, columns
    self._file = pq.ParquetFile(file, page_checksum_verification=True, buffer_size=1 << 16)
    schema = self._file.schema_arrow
    self.names = schema.names
    self._in_file, self._folder_values = columns.placed(path, schema.names)
    self._check_size(file.seek(0, 2))
    types = {own: schema.field(name).type for own, name in self._in_file.items()}
    self._lists = [
      name
      for name, kind in columns.kinds.items()
      if kind == table_columns.IDS and name in types and table_rows.is_list(types[name])
    ]
    self.schema = pa.schema((name, self._type(name, types.get(name))) for name in columns.kinds)
    self.metadata = log_tables.opened(path, self._stored())

  def _type(self, name: str, stored: pa.DataType | None) -> pa.DataType:
    """Returns the type of a column's checked values, from its type in the file if it is there."""
    has_rows = self._file.metadata.num_rows > 0  # Else the types of its columns say nothing.
    if self._columns.kinds[name] == table_columns.ROUND:
      if has_rows and stored is not None and not pa.types.is_integer(stored):
        raise refusals.LogError(f'{self._path}: {name} must be whole numbers, is {stored}')
      return pa.int64()
    if not has_rows or (name in self._lists and not self._has_devices(name)):
      return pa.null()
    if stored is None:
      return pa.large_string()
    return _id_type(self._path, name, stored.value_type if name in self._lists else stored)

  def tables(self) -> Iterator[pa.Table]:
    """Yields its rows in order; raises like the constructor."""
    num_missing = self._file.metadata.num_rows
    for batch in self._file.iter_batches(
      _BATCH_COHORTS if self._lists else _BATCH_ROWS, columns=list(self._in_file.values())
    ):
      columns = {own: batch.column(name) for own, name in self._in_file.items()}
      columns |= self._columns.repeated(self._folder_values, batch.num_rows)
      for name, kind in self._columns.kinds.items():
        if kind == table_columns.ROUND:
          columns[name] = columns[name].cast(pa.int64())
      yield pa.table({name: columns[name] for name in self.schema.names})
      num_missing -= batch.num_rows
    if num_missing:  # Headers of pages have no checksums.
      raise refusals.LogError(f'{self._path}: has not the number of rows that it states; damaged')

  def _has_devices(self, name: str) -> bool:
    """Returns whether a column of lists has an id, so that its type says something."""
    in_file = self._in_file[name]
    batches = self._file.iter_batches(_BATCH_COHORTS, columns=[in_file])
    return any(len(batch.column(in_file).flatten()) for batch in batches)

  def _check_size(self, file_bytes: int) -> None:
    rows = self._file.metadata.num_rows
    if not 0 <= rows <= limits.max_rows(file_bytes):
      raise refusals.LogError(
        f'{self._path}: claims {rows} rows, which a file of {file_bytes} bytes'
        ' cannot hold; it is damaged'
      )

  def _stored(self) -> dict[str, str]:
    metadata = self._file.metadata.metadata or {}
    stored = {key: metadata[key] for key in metadata if key not in _OTHER_METADATA}
    if sum(len(k) + len(v) for k, v in stored.items()) > limits.METADATA_BYTES:
      raise refusals.LogError(
        f'{self._path}: has more than {limits.METADATA_BYTES} bytes of metadata'
      )
    try:
      return {k.decode(): v.decode() for k, v in stored.items()}
    except UnicodeDecodeError as e:
      raise refusals.LogError(f'{self._path}: its metadata are not UTF-8, {e}') from e


def _id_type(path: str, name: str, stored: pa.DataType) -> pa.DataType:
  """Returns int64 or large_string for the type of ids that the file has, or null for none."""
  kind = stored.value_type if pa.types.is_dictionary(stored) else stored
  if pa.types.is_null(kind):
    return kind
  if id_columns.is_text(kind):
    return pa.large_string()
  if pa.types.is_integer(kind):
    return pa.int64()
  hint = '; write bytes as hexadecimal text' if 'binary' in str(kind) else ''
  raise refusals.LogError(f'{path}: {name} must be text or whole numbers, is {stored}{hint}')
