"""What a participation log says happened.

The counting is done by an embedded relational engine, so that a log of tens of
millions of rows needs no loop here.
"""

import dataclasses
import os
from typing import NamedTuple, Sequence

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import shards as shards_lib

_LISTED_GAPS = 10

_SEPARATIONS = """
CREATE TEMP TABLE participation AS
SELECT
  device_id,
  round,
  round - lag(round) OVER (PARTITION BY device_id ORDER BY round) AS separation
FROM log
"""

_CLOSEST = """
SELECT device_id, round - separation, round
FROM participation
WHERE separation IS NOT NULL
ORDER BY separation, device_id, round
LIMIT 1
"""

_PATTERNS = """
CREATE TEMP TABLE pattern AS
SELECT rounds, count(*) AS devices FROM (
  SELECT list(round ORDER BY round) AS rounds FROM log GROUP BY device_id
) GROUP BY rounds
"""


_GAPS = """
SELECT after + 1, round - 1 FROM (
  SELECT round, lag(round, 1, -1) OVER (ORDER BY round) AS after
  FROM (SELECT DISTINCT round FROM log UNION ALL SELECT ?)
) WHERE round > after + 1
ORDER BY after
LIMIT ?
"""


class LogFile(NamedTuple):
  """A file that was read: its name without folders, rows, and SHA-256."""

  name: str
  num_participations: int
  sha256: str


class Witness(NamedTuple):
  """Two participations of one device that are as close as any in the log."""

  device_id: str | int
  first_round: int
  second_round: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ObservedParticipation:
  """What happened, counted from a log.

  Attributes:
    num_rounds: n, rows of noise consumed.
    num_devices: devices that took part at least once.
    num_participations: rows.
    min_sep: b, the smallest difference between two rounds of one device;
      num_rounds where no device took part twice.
    max_participations: k, the most rounds of one device.
    separations: for each difference between successive rounds of a device that
      occurred, how often; ascending.
    participations: for each number of rounds that a device took part in, how
      many devices; ascending.
    witness: an example of min_sep; None where no device took part twice.
    rounds_without_participants: how many rows of noise nobody contributed to.
    first_gaps: the first few runs of such rounds, each with its first and last.
    files: what was read.
    warnings: what a reader should know, in lines.
    void_reason: why the log's writer says that there is no guarantee, or None.
    noise_multiplier: of the run, as the log's writer states it, or None.
    strategy_sha256: digest of the run's strategy, likewise.
  """

  num_rounds: int
  num_devices: int
  num_participations: int
  min_sep: int
  max_participations: int
  separations: dict[int, int]
  participations: dict[int, int]
  witness: Witness | None
  rounds_without_participants: int
  first_gaps: tuple[tuple[int, int], ...]
  files: tuple[LogFile, ...] = ()
  warnings: tuple[str, ...] = ()
  void_reason: str | None = None
  noise_multiplier: str | None = None
  strategy_sha256: str | None = None
  _patterns: pa.ListArray = dataclasses.field(repr=False)

  def patterns(self) -> list[np.ndarray]:
    """The distinct patterns: the ascending rounds of one device, int64."""
    lengths = pc.list_value_length(self._patterns).to_numpy()
    rounds = self._patterns.flatten().to_numpy()
    return np.split(rounds, np.cumsum(lengths)[:-1])


def read_log(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    num_rounds: int | None = None,
) -> ObservedParticipation:
  """Counts what happened from a log's files.

  Args:
    paths: one or more files, folders or globs, the shards of one log.
    num_rounds: rows of noise consumed, where the files do not say.

  Raises:
    LogError: naming the file, and the row where one is at fault.
  """
  if isinstance(paths, (str, os.PathLike)):
    paths = [paths]
  shards = [shards_lib.read(path) for path in shards_lib.find(paths)]
  head = shards[0]
  for shard in shards[1:]:
    _check_agreement(head, shard)
  log = pa.concat_tables([shard.table for shard in shards])
  if not log.num_rows:
    raise shards_lib.LogError(f'{head.path}: the log is empty')
  num_rounds, warnings = _num_rounds(head, log, num_rounds)
  try:
    observed = observe(log, num_rounds=num_rounds)
  except _WrongRow as e:
    raise shards_lib.LogError(f'{_place(shards, log, e)}: {e}') from None
  if observed.rounds_without_participants:
    first, last = observed.first_gaps[0]
    warnings.append(
        f'{observed.rounds_without_participants} of {num_rounds} rounds have no'
        f' participants, the first of them {first}'
        + (f' to {last}' if last > first else '')
        + '; if rows are missing from the log, every figure is too small'
    )
  return dataclasses.replace(
      observed,
      files=tuple(
          LogFile(os.path.basename(s.path), s.table.num_rows, s.sha256)
          for s in shards
      ),
      warnings=tuple(warnings),
      void_reason=head.metadata.get(shards_lib.VOID_KEY),
      noise_multiplier=head.metadata.get(shards_lib.NOISE_MULTIPLIER_KEY),
      strategy_sha256=head.metadata.get(shards_lib.STRATEGY_KEY),
  )


def observe(log: pa.Table, *, num_rounds: int) -> ObservedParticipation:
  """Counts what happened from columns `round` and `device_id`.

  Args:
    log: at least one row, without nulls, rounds at least 0.
    num_rounds: rows of noise consumed.

  Raises:
    ValueError: for a device twice in a round, or a round that is not below
      num_rounds.
  """
  with duckdb.connect(':memory:', config={'threads': 2}) as engine:
    engine.register('log', log)
    query = lambda text, *values: engine.execute(text, values).fetchall()
    last, devices, rounds_present = query("""
        SELECT max(round), count(DISTINCT device_id), count(DISTINCT round)
        FROM log""")[0]
    if last >= num_rounds:
      raise _WrongRow(
          f'round {last} is beyond the {num_rounds} rounds of the log', last
      )
    engine.execute(_SEPARATIONS)
    closest = query(_CLOSEST)
    witness = Witness(*closest[0]) if closest else None
    if witness and witness.first_round == witness.second_round:
      raise _WrongRow(
          f'device {witness.device_id!r} is twice in round'
          f' {witness.first_round}',
          witness.first_round,
          witness.device_id,
      )
    separations = query("""
        SELECT separation, count(*) FROM participation
        WHERE separation IS NOT NULL GROUP BY 1 ORDER BY 1""")
    gaps = query(_GAPS, num_rounds, _LISTED_GAPS)
    engine.execute(_PATTERNS)
    participations = query("""
        SELECT len(rounds), sum(devices)::BIGINT FROM pattern
        GROUP BY 1 ORDER BY 1""")
    patterns = engine.sql(
        'SELECT rounds FROM pattern ORDER BY rounds'
    ).to_arrow_table()
  return ObservedParticipation(
      num_rounds=num_rounds,
      num_devices=devices,
      num_participations=log.num_rows,
      min_sep=separations[0][0] if separations else num_rounds,
      max_participations=participations[-1][0],
      separations=dict(separations),
      participations=dict(participations),
      witness=witness,
      rounds_without_participants=num_rounds - rounds_present,
      first_gaps=tuple(gaps),
      _patterns=pa.concat_arrays(patterns.column(0).chunks),
  )


class _WrongRow(ValueError):
  """A row at fault, known by its round and perhaps its device."""

  def __init__(
      self, message: str, round_index: int, device_id: str | int | None = None
  ):
    super().__init__(message)
    self.round_index = round_index
    self.device_id = device_id


def _place(
    shards: Sequence[shards_lib.Shard], log: pa.Table, wrong: _WrongRow
) -> str:
  """File and row of the last row that matches."""
  matches = pc.equal(log.column('round'), wrong.round_index)
  if wrong.device_id is not None:
    matches = pc.and_(
        matches, pc.equal(log.column('device_id'), wrong.device_id)
    )
  row = int(np.flatnonzero(matches.to_numpy())[-1])
  for shard in shards:
    if row < shard.table.num_rows:
      return f'{shard.path}, row {row + 1}'
    row -= shard.table.num_rows
  raise AssertionError(wrong)


def _check_agreement(
    first: shards_lib.Shard, other: shards_lib.Shard
) -> None:
  if first.claims != other.claims:
    keys = sorted(first.claims.keys() | other.claims.keys())
    key = next(k for k in keys if first.claims.get(k) != other.claims.get(k))
    raise shards_lib.LogError(
        f'{other.path}: {key} is {other.claims.get(key)!r}, but'
        f' {first.claims.get(key)!r} in {first.path}; they are not shards of'
        ' one log'
    )
  kinds = [s.table.schema.field('device_id').type for s in (first, other)]
  if kinds[0] != kinds[1]:
    names = ['whole numbers' if k == pa.int64() else 'text' for k in kinds]
    raise shards_lib.LogError(
        f'{other.path}: device_id is {names[1]}, but {names[0]} in'
        f' {first.path}'
    )


def _num_rounds(
    first: shards_lib.Shard, log: pa.Table, given: int | None
) -> tuple[int, list[str]]:
  """n, from the metadata, or as given, or from the last round."""
  stated = first.num_rounds
  if given is not None and given < 1:
    raise shards_lib.LogError(f'num_rounds must be at least 1, got {given}')
  if stated is not None:
    if given is not None and given != stated:
      raise shards_lib.LogError(
          f'{first.path}: its num_rounds is {stated}, not {given}'
      )
    return stated, []
  if given is not None:
    return given, []
  num_rounds = pc.max(log.column('round')).as_py() + 1
  return num_rounds, [
      f'{first.path} does not say how many rounds consumed noise; taken to be'
      f' its last round plus one, {num_rounds}. Burnt rounds after it would be'
      ' missing: give --num_rounds'
  ]
