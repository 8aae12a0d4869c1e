"""Logs of rows that are given, without a file."""

import dataclasses

import pyarrow as pa

from fl_dpftrl.logs import layouts, participation_log, table_rows


def log_of(rows, num_rounds, **changes):
  """Returns a log of pairs of a round and a device id, with other attributes changed."""
  columns = {'round': pa.array([t for t, _ in rows], pa.int64()), 'device_id': [d for _, d in rows]}
  return dataclasses.replace(log_of_table(pa.table(columns), num_rounds), **changes)


def log_of_table(table, num_rounds):
  """Returns a log of columns `round` and `device_id`, text or int64."""
  is_number = pa.types.is_integer(table.schema.field('device_id').type)
  id_type = pa.int64() if is_number else pa.large_string()
  schema = pa.schema([('round', pa.int64()), ('device_id', id_type)])
  columns = layouts.PLAIN
  shard = participation_log.Shard(
    path='log',
    metadata={},
    num_rounds=num_rounds,
    id_type=id_type,
    tables=lambda below: iter(
      [table_rows.checked('log', table, schema, columns, num_rounds=below)]
    ),
    sha256=lambda: '0' * 64,
  )
  return participation_log.Log((shard,), num_rounds)
