"""Logs of rows that are given, without a file."""

import dataclasses

import pyarrow as pa

from fl_dpftrl.logs import log as log_lib


def log_of(rows, num_rounds, **changes):
  """Returns a log of pairs of a round and a device id, with other attributes changed."""
  columns = {'round': pa.array([t for t, _ in rows], pa.int64()), 'device_id': [d for _, d in rows]}
  return dataclasses.replace(log_lib.of_table(pa.table(columns), num_rounds=num_rounds), **changes)
