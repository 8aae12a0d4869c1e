"""The statement by which a warehouse counts the participation of a run, and its table of terms.

It is one text for BigQuery, Snowflake, Spark, Databricks, Postgres, Redshift, Trino, DuckDB and
SQLite. It reads `participation` (round, device_id) and `gram` (i, j, x), and gives rows
(kind, num, amount, device_id), as `counted` reads them. A squared sensitivity is a sum over pairs
of rounds of one device, where CᵀC has no negative entries.
"""

import hashlib
import math

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import id_columns
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.files import documents
from fl_dpftrl.support import checks

MOST_ROUNDS = 10_000
"""Most rounds of a run whose terms are a table."""

TOLERANCE = 1e-9
"""Relative errors that sums of a warehouse may have."""

_SCALE = 1 << 20
_SAVED = {
  'bigquery': 'bq load --source_format=PARQUET DATASET.gram gram.parquet; save the result as CSV',
  'databricks': 'read_files(.., format => "parquet"); save the result as Parquet or CSV',
  'duckdb': "CREATE TABLE gram AS FROM 'gram.parquet'; COPY (the statement) TO 'result.parquet'",
  'postgres': r'\copy gram FROM gram.csv CSV HEADER; save the result with \copy .. CSV HEADER',
  'redshift': 'COPY gram FROM .. FORMAT AS PARQUET; save the result as CSV',
  'snowflake': 'COPY INTO gram, with MATCH_BY_COLUMN_NAME; save the result as CSV',
  'spark': 'spark.read.parquet; save the result as one Parquet file',
  'sqlite': '.import --csv into a gram with columns INTEGER, INTEGER, REAL; .headers on; .mode csv',
  'trino': 'a table over gram.parquet; save the result as Parquet or CSV',
}
DIALECTS = tuple(_SAVED)
"""Engines that run the statement."""

_TEXT = """\
-- fl-dpftrl: counts of a run of {num_rounds} rounds, for {dialect}.
-- participation: a view with a row for each device of each round's cohort, and with the columns
--   round      whole numbers, 0 to {last}: rows of noise, those of failed rounds included
--   device_id  text or whole numbers, compared byte by byte; bytes as text in hexadecimal
-- gram: the table that was written with this text, with i and j BIGINT, x double precision.
--   {saved}
-- Run it as it stands, as one statement, on a table that does not change meanwhile.
-- The result names devices: it is as confidential as the table.
WITH marked AS (
  SELECT device_id, round,
    LAG(round) OVER (PARTITION BY device_id ORDER BY round) AS earlier,
    ROW_NUMBER() OVER (PARTITION BY device_id ORDER BY round) AS place
  FROM participation
),
separations AS (
  SELECT round - earlier AS apart, COUNT(*) AS times, MIN(device_id) AS device_id
  FROM marked WHERE earlier IS NOT NULL GROUP BY round - earlier
),
nearest AS (
  SELECT apart, device_id FROM separations WHERE apart = (SELECT MIN(apart) FROM separations)
),
terms AS (SELECT i * {most_rounds} + j AS pair, x FROM gram),
squares AS (
  SELECT a.device_id AS device_id, SUM(t.x) AS square
  FROM participation a
  JOIN participation b ON a.device_id = b.device_id AND a.round <= b.round
  JOIN terms t ON t.pair = CAST(a.round AS BIGINT) * {most_rounds} + b.round
  GROUP BY a.device_id
),
bins AS (
  SELECT CAST(CEIL((LN(square) / LN(2) + 64) * 256 - {tolerance}) AS BIGINT) AS bin FROM squares
),
largest AS (
  SELECT square, MIN(device_id) AS device_id FROM squares
  WHERE square >= (SELECT MAX(square) FROM squares) * (1 - {tolerance}) GROUP BY square
)
SELECT 'closest' AS kind, MIN(m.earlier) AS num, MIN(m.round) AS amount, m.device_id AS device_id
  FROM marked m JOIN nearest c ON m.device_id = c.device_id AND m.round - m.earlier = c.apart
  GROUP BY m.device_id
UNION ALL SELECT 'exposed', p.round, 1, p.device_id
  FROM participation p JOIN largest e ON p.device_id = e.device_id
UNION ALL SELECT 'missing', COUNT(*), 0, device_id FROM participation
  WHERE CAST(device_id AS {text}) IN ({marks}) GROUP BY device_id
UNION ALL SELECT 'cohort', round, COUNT(*), NULL FROM participation GROUP BY round
UNION ALL SELECT 'newcomers', round, COUNT(*), NULL FROM marked WHERE place = 1 GROUP BY round
UNION ALL SELECT 'separation', apart, times, NULL FROM separations
UNION ALL SELECT 'place', place, COUNT(*), NULL FROM marked GROUP BY place
UNION ALL SELECT 'bin', bin, COUNT(*), NULL FROM bins GROUP BY bin
UNION ALL SELECT 'rounds', COUNT(*), COUNT(round), NULL FROM participation
UNION ALL SELECT 'devices', COUNT(*), COUNT(device_id), NULL FROM participation
UNION ALL SELECT 'gram', COUNT(*), CAST(FLOOR(SUM(x) * {scale}) AS BIGINT), NULL FROM gram
UNION ALL SELECT 'made_for', {made_for}, {num_rounds}, NULL
"""


def statement(strategy: base.Strategy, num_rounds: int, dialect: str) -> str:
  """Returns the statement that counts a run.

  Raises:
    ValueError: for a dialect that is not among DIALECTS.
  """
  checks.one_of(DIALECTS, dialect=dialect)
  return _TEXT.format(
    dialect=dialect,
    text='STRING' if dialect in ('bigquery', 'databricks', 'spark') else 'VARCHAR',
    marks=', '.join(_literal(mark, dialect) for mark in ('', *id_columns.MISSING)),
    last=num_rounds - 1,
    made_for=made_for(strategy, num_rounds),
    most_rounds=MOST_ROUNDS,
    num_rounds=num_rounds,
    saved=_SAVED[dialect],
    scale=_SCALE,
    tolerance=TOLERANCE,
  )


def _literal(mark: str, dialect: str) -> str:
  """Returns a text in SQL, without a backslash in quotes, which some engines read as an escape."""
  code = 'CHAR(92)' if dialect == 'sqlite' else 'CHR(92)'
  return f"{code} || '{mark[1:]}'" if mark.startswith('\\') else f"'{mark}'"


def made_for(strategy: base.Strategy, num_rounds: int) -> int:
  """Returns a number below 2^60 that tells strategies, numbers of rounds and texts apart."""
  about = f'{documents.strategy_digest(strategy)} {num_rounds} {_SCALE} {TOLERANCE}'
  text = f'{about} {_TEXT[_TEXT.index("WITH ") :]}'  # A comment may change.
  return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def gram(strategy: base.Strategy, num_rounds: int) -> pa.Table:
  """Returns the terms of squared sensitivities, by pairs of rounds i ≤ j.

  They are x = X[i, i], and 2 X[i, j] for i < j, of X = CᵀC; those of 0 are left out.

  Raises:
    ValueError: for more than MOST_ROUNDS rounds, or than the strategy has, and if X has a negative
      entry, so that the sum of a device's terms is not its square.
  """
  base.check_num_rounds(strategy, num_rounds)
  if num_rounds > MOST_ROUNDS:
    raise ValueError(
      f'num_rounds={num_rounds} must be at most {MOST_ROUNDS} for counts; replay the log itself'
    )
  entries, terms = strategy.gram_entries(num_rounds), []
  for i in range(num_rounds):
    j = np.arange(i, num_rounds)
    x = entries(np.full(j.size, i), j) * np.where(j > i, 2.0, 1.0)
    if not (x >= 0.0).all():
      raise ValueError(
        f'strategy: this {strategy.family} has negative entries of CᵀC, so no counts give the loss'
        ' of a device; replay the log itself'
      )
    some = np.flatnonzero(x)
    terms.append((np.full(some.size, i), j[some], x[some]))
  return pa.table(dict(zip('ijx', map(np.concatenate, zip(*terms)))))


def checksum(gram: pa.Table) -> tuple[int, int]:
  """Returns the number of terms and their scaled sum, as the statement gives them."""
  x = gram.column('x').to_numpy()
  return x.size, math.floor(math.fsum(x) * _SCALE)
