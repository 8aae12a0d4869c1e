"""DuckDB as the peer of a replay, and as a warehouse."""

import pathlib

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


def count(log: str, statement: str, gram: str, result: str) -> None:
  """Writes the result of the statement for warehouses over a log."""
  with duckdb.connect(config={'threads': 2}) as engine:
    engine.execute(f"CREATE VIEW participation AS SELECT * FROM read_parquet('{log}')")
    engine.execute(f"CREATE TABLE gram AS SELECT * FROM read_parquet('{gram}')")
    text = pathlib.Path(statement).read_text('utf-8').strip().rstrip(';')
    engine.execute(f"COPY ({text}) TO '{result}' (FORMAT parquet)")
