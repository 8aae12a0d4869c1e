"""Chained digests of the rounds of a log.

H_t = SHA-256(H_{t−1} ‖ t ‖ D_t), with t as 8 bytes, little-endian. D_t is the digest of round
t's rows, sorted by device id, as `logs.digests` computes it; a round without devices counts as one
of text. Digest t thus fixes the cohorts of all rounds up to t. H_{−1} is the SHA-256 of a fixed
text.
"""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import digests

_EMPTY = bytes.fromhex(digests.Rows(timestamps=False).stated(pa.string())[digests.ROWS_KEY])

START = hashlib.sha256(b'fl_dpftrl.bundle.rounds.1').digest()
"""The digest before the first round."""


def of_rows(before: bytes, t: int, rows: digests.Rows, id_type: pa.DataType) -> bytes:
  """Returns H_t.

  Args:
    before: H_{t−1}.
    t: round, from 0.
    rows: digests of the round's rows, sorted by device id.
    id_type: of `device_id`, string or int64.
  """
  cohort = bytes.fromhex(rows.stated(id_type)[digests.ROWS_KEY]) if rows.num_rows else _EMPTY
  return hashlib.sha256(before + t.to_bytes(8, 'little') + cohort).digest()


def of_cohort(before: bytes, t: int, ids: pa.Array) -> bytes:
  """Returns H_t of a cohort whose device ids, string or int64, are in any order."""
  rows = digests.Rows(timestamps=False)
  if len(ids):
    ordered = ids.take(pc.sort_indices(ids))
    rows.update(pa.table({'round': np.full(len(ids), t, np.int64), 'device_id': ordered}))
  return of_rows(before, t, rows, ids.type)


def of_table(table: pa.Table, num_rounds: int) -> bytes:
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
  ids = ids if isinstance(ids, pa.Array) else ids.combine_chunks()
  digest = START
  for t, (first, end) in enumerate(zip(bounds, bounds[1:])):
    digest = of_cohort(digest, t, ids.slice(first, end - first))
  return digest
