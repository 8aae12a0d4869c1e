"""The peer's side: the embedded engine's bare query, and nothing else.

    peer.py FILE.parquet THREADS   prints the minimal separation
"""

import sys

import duckdb

_QUERY = '''
SELECT min(s) FROM (
  SELECT round - lag(round) OVER (PARTITION BY device_id ORDER BY round) AS s
  FROM read_parquet($path))
'''


def min_sep(path: str, threads: int) -> int | None:
  """Rounds between the closest participations of a device, if one has two."""
  with duckdb.connect(':memory:', config={'threads': threads}) as engine:
    # It would be on stdout too.
    engine.execute('SET enable_progress_bar = false')
    return engine.execute(_QUERY, {'path': path}).fetchone()[0]


if __name__ == '__main__':
  print(min_sep(sys.argv[1], int(sys.argv[2])))
