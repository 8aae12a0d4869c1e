"""Peer's side of the benchmark: DuckDB's bare query.

peer.py FILE.parquet THREADS   prints the minimal separation
"""

import sys

import duckdb

_QUERY = """
SELECT min(s) FROM (
  SELECT round - lag(round) OVER (PARTITION BY device_id ORDER BY round) AS s
  FROM read_parquet($path))
"""


def min_sep(path: str, threads: int) -> int | None:
  """Returns the smallest separation of one device's rounds; None if none."""
  with duckdb.connect(':memory:', config={'threads': threads}) as engine:
    # The progress bar would be printed to stdout too.
    engine.execute('SET enable_progress_bar = false')
    return engine.execute(_QUERY, {'path': path}).fetchone()[0]


if __name__ == '__main__':
  print(min_sep(sys.argv[1], int(sys.argv[2])))
