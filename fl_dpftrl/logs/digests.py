"""Digests that a log carries of its own rows and metadata.

A flipped bit in a Parquet file can give other rows, and no error. The digests are of the values
in their order, not of bytes of the file: they grow with the rows, so that a log is digested
while it is written, a round at a time, and checked while it is read once.

They guard against damage. Whoever changes a log on purpose can digest it anew.

The rounds have chained digests too. H_t = SHA-256(H_{t−1} ‖ t ‖ D_t), with t as 8 bytes,
little-endian. D_t is the digest of round t's rows, sorted by device id; a round without devices
counts as one of text. Digest t thus fixes the cohorts of all rounds up to t. H_{−1} is the
SHA-256 of a fixed text.
"""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import refusals

ROWS_KEY = 'fl_dpftrl.rows_sha256'
TIMESTAMPS_KEY = 'fl_dpftrl.timestamps_sha256'
METADATA_KEY = 'fl_dpftrl.metadata_sha256'
KEYS = (ROWS_KEY, TIMESTAMPS_KEY, METADATA_KEY)

_FIELD_ID_KEY = b'PARQUET:field_id'
_FIELD_ID = 0x666C6470  # 'fldp', of the first column
_ADVICE = 'take another copy, or write rows that were changed on purpose with write_log'
TIMESTAMP = pa.timestamp('us', tz='UTC')
"""The type of timestamps that are digested."""

START = hashlib.sha256(b'fl_dpftrl.bundle.rounds.1').digest()
"""The chained digest before the first round."""

_NONE = -(2**63)  # A time that no log has, for one that is missing.


class Rows:
  """Digests of the rows so far, column by column.

  The digests do not depend on how the rows were cut into tables. Rounds enter as int32, whole
  numbers as int64, text as its lengths and its bytes, times as int64 microseconds; all
  little-endian.
  """

  def __init__(self, *, timestamps: bool):
    """Starts with no rows.

    Args:
      timestamps: whether tables have a column `timestamp` that is digested.
    """
    self._columns = {n: hashlib.sha256() for n in ('round', 'lengths', 'ids')}
    self._times = hashlib.sha256() if timestamps else None
    self.num_rows = 0  # so far

  def update(self, table: pa.Table) -> None:
    """Adds rows: `round`, `device_id`, and `timestamp` where it is digested."""
    if not table.num_rows:
      return
    rounds = table.column('round').to_numpy()
    self._columns['round'].update(rounds.astype('<i4').data)
    for chunk in table.column('device_id').chunks:
      self._add_ids(chunk)
    if self._times is not None:
      times = pc.fill_null(table.column('timestamp').cast(pa.int64()), _NONE)
      times = times.to_numpy()
      self._times.update(np.ascontiguousarray(times, '<i8').data)
    self.num_rows += table.num_rows

  def _add_ids(self, ids: pa.Array) -> None:
    if pa.types.is_integer(ids.type):
      values = np.ascontiguousarray(ids.to_numpy(), '<i8')
      self._columns['ids'].update(values.data)
      return
    if not len(ids):
      return
    raw = ids.cast(pa.large_binary())
    lengths = pc.binary_length(raw).to_numpy().astype('<i4')
    self._columns['lengths'].update(lengths.data)
    _, offsets, data = raw.buffers()
    bounds = np.frombuffer(offsets, np.int64)[raw.offset :]
    if data is not None:
      part = data.slice(int(bounds[0]), int(bounds[len(raw)] - bounds[0]))
      self._columns['ids'].update(part)

  def stated(self, id_type: pa.DataType) -> dict[str, str]:
    """Returns the metadata that state the digests of the rows so far.

    Args:
      id_type: of `device_id` in the file.
    """
    whole = hashlib.sha256(b'int64' if pa.types.is_integer(id_type) else b'text')
    whole.update(self.num_rows.to_bytes(8, 'little'))
    for column in self._columns.values():
      whole.update(column.digest())
    result = {ROWS_KEY: whole.hexdigest()}
    if self._times is not None:
      result[TIMESTAMPS_KEY] = self._times.hexdigest()
    return result


def marked(schema: pa.Schema) -> pa.Schema:
  """Returns a schema whose columns say that the file has digests.

  Without this mark, a flipped bit that hides all metadata would hide the digests too.
  """
  fields = [
    field.with_metadata({_FIELD_ID_KEY: str(_FIELD_ID + index)})
    for index, field in enumerate(schema)
  ]
  return pa.schema(fields, schema.metadata)


def _is_marked(schema: pa.Schema) -> bool:
  ids = {(field.metadata or {}).get(_FIELD_ID_KEY) for field in schema}
  return any(str(_FIELD_ID + i).encode() in ids for i in range(len(schema)))


def sealed(metadata: Mapping[str, str], rows: Mapping[str, str]) -> dict[str, str]:
  """Returns metadata with the digests of the rows and of the metadata itself."""
  result = {**metadata, **rows}
  return {**result, METADATA_KEY: _of_metadata(result)}


def _of_metadata(metadata: Mapping[str, str]) -> str:
  canonical = json.dumps(sorted(metadata.items()), ensure_ascii=True)
  return hashlib.sha256(canonical.encode()).hexdigest()


def opened(
  path: str, stored: Mapping[str, str], schema: pa.Schema
) -> tuple[dict[str, str], dict[str, str]]:
  """Splits a file's metadata into those of the log and the digests of its rows, if it has any.

  Args:
    path: the file.
    stored: its metadata.
    schema: of the file, as Arrow gives it.
  """
  given = dict(stored)
  of_metadata = given.pop(METADATA_KEY, None)
  of_rows = {key: given[key] for key in KEYS if key in given}
  if not of_rows and of_metadata is None and not _is_marked(schema):
    return given, {}
  if of_metadata != _of_metadata(given):
    raise refusals.LogError(f'{path}: its metadata are not those of {METADATA_KEY}; {_ADVICE}')
  return {k: v for k, v in given.items() if k not in KEYS}, of_rows


def check(path: str, stated: Mapping[str, str], rows: Rows, id_type: pa.DataType) -> None:
  """Raises LogError unless the rows that were read match the stated digests.

  Args:
    path: the file.
    stated: the digests of its rows; those of columns not read are ignored.
    rows: digests of all rows that were read.
    id_type: type of `device_id`.
  """
  computed = rows.stated(id_type)
  for key, value in stated.items():
    if computed.get(key, value) != value:
      raise refusals.LogError(f'{path}: its rows are not those of {key}; {_ADVICE}')


def chained(before: bytes, t: int, rows: Rows, id_type: pa.DataType) -> bytes:
  """Returns H_t.

  Args:
    before: H_{t−1}.
    t: round, from 0.
    rows: digests of the round's rows, sorted by device id.
    id_type: of `device_id`, string or int64.
  """
  cohort = bytes.fromhex(rows.stated(id_type if rows.num_rows else pa.string())[ROWS_KEY])
  return hashlib.sha256(before + t.to_bytes(8, 'little') + cohort).digest()


def ordered(ids: pa.Array) -> pa.Array:
  """Returns device ids in the order in which the digest of a cohort takes them."""
  return ids.take(pc.sort_indices(ids))


def chained_cohort(before: bytes, t: int, ids: pa.Array) -> bytes:
  """Returns H_t of a cohort; its device ids are string or int64, and in order."""
  rows = Rows(timestamps=False)
  if len(ids):
    rows.update(pa.table({'round': np.full(len(ids), t, np.int64), 'device_id': ids}))
  return chained(before, t, rows, ids.type)


def chained_table(table: pa.Table, num_rounds: int) -> bytes:
  """Returns the digest of the last round of a table of rows, in any order.

  Args:
    table: columns `round`, int64, and `device_id`, string or int64.
    num_rounds: rounds of the log.
  """
  rounds = table.column('round').to_numpy()
  if (np.diff(rounds) < 0).any():
    order = np.argsort(rounds, kind='stable')
    table, rounds = table.take(order), rounds[order]
  bounds = np.searchsorted(rounds, np.arange(num_rounds + 1)).tolist()
  ids = table.column('device_id').combine_chunks()
  digest = START
  for t, (first, end) in enumerate(zip(bounds, bounds[1:])):
    digest = chained_cohort(digest, t, ordered(ids.slice(first, end - first)))
  return digest
