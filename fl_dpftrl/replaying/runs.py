"""Runs: a log, and the noise that entered its rounds."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.accounting import run_noise
from fl_dpftrl.centralized import sampling as sampling_lib
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files, paths
from fl_dpftrl.logs import keys, layout, noise_record, refusals
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from fl_dpftrl.text import messages

# Keys of a run in a file of runs.
_REQUIRED = ('log', 'strategy')
_KINDS: dict[str, type | tuple[type, ...]] = {
  'log': (str, list),
  'strategy': str,
  'noise_multiplier': (int, float),
  'num_rounds': int,
  'declared_num_rounds': int,
  'declared_min_sep': int,
  'declared_max_participations': int,
  'columns': str,
  'first_round': int,
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Run:
  """A log with the noise of its rounds.

  Attributes:
    log: participation log.
    noise: noise of the same number of rounds.
    declared_schema: schema that was declared before the run, if any: of all rounds that were
      declared, of which the run may have had fewer.
    schema_in_log: whether the log's metadata state that schema, as it was written before round 0.
    sampling: scheme by which training drew its batches, if stated.

  Raises:
    ValueError: if the noise or the sampling is for another number of rounds; for a declared schema
      that is a fixed separation, or of fewer rounds than the log or more than the strategy has.
  """

  log: log_lib.Log
  noise: run_noise.RunNoise
  declared_schema: schemas.MinSep | None = None
  schema_in_log: bool = False
  sampling: sampling_lib.Scheme | None = None

  def __post_init__(self):
    if self.noise.num_rounds != self.log.num_rounds:
      raise ValueError(
        f'noise is of {self.noise.num_rounds} rounds, but the log has {self.log.num_rounds}'
      )
    if self.declared_schema is not None:
      self._check_declared(self.declared_schema)
    if self.sampling is not None and self.sampling.num_rounds != self.log.num_rounds:
      raise ValueError(
        f'sampling is of {self.sampling.num_rounds} rounds, but the log has {self.log.num_rounds}'
      )

  def _check_declared(self, declared: schemas.MinSep) -> None:
    if isinstance(declared, schemas.FixedSeparation):  # The least separation cannot confirm it.
      raise ValueError('declared_schema must be a MinSep, got a FixedSeparation')
    if declared.num_rounds < self.log.num_rounds:
      raise ValueError(
        f'declared_num_rounds={declared.num_rounds} must be at least the {self.log.num_rounds}'
        ' rounds of the log: no declared guarantee covers rounds beyond those that were declared'
      )
    try:
      self.noise.until(declared.num_rounds)
    except ValueError as e:
      raise ValueError(f'declared_num_rounds={declared.num_rounds}: {e}') from e

  @classmethod
  def of(
    cls,
    log: log_lib.Log,
    strategy: base.Strategy,
    *,
    noise_multiplier: float | None = None,
    declared_schema: schemas.MinSep | None = None,
    sampling: sampling_lib.Scheme | None = None,
  ) -> 'Run':
    """Returns the run of a log.

    Args:
      log: participation log.
      strategy: C.
      noise_multiplier: std(Z) / clip_norm; None if the log states it.
      declared_schema: see the class; None to take it from the log.
      sampling: see the class.

    Raises:
      LogError: if the log has more rounds than the strategy can run, or its metadata are
        malformed.
      ValueError: as `RunNoise` and `Run` do, and if neither the argument nor the log gives the
        multiplier.
    """
    path = log.shards[0].path
    recorded = noise_record.read(log.metadata)
    if noise_multiplier is None:
      noise_multiplier = recorded.noise_multiplier
      if noise_multiplier is None:
        raise ValueError(f'noise_multiplier is needed: {path} does not say it')
    try:
      base.check_num_rounds(strategy, log.num_rounds)
    except ValueError as e:
      raise refusals.LogError(f'{path}: {e}') from e
    in_log = None if declared_schema else keys.declared_schema(log.metadata)
    return cls(
      log=log,
      noise=run_noise.RunNoise(
        log.num_rounds, strategy, noise_multiplier, recorded.clip_norm, recorded.arithmetic
      ),
      declared_schema=declared_schema or in_log,
      schema_in_log=in_log is not None,
      sampling=sampling,
    )


def together(runs: Run | Sequence[Run]) -> list[Run]:
  """Returns runs of one population as they are accounted together.

  A schema that the log of one run records is left out where another run has none.

  Raises:
    ValueError: without any run, and if a schema was declared for some of them alone.
  """
  runs = [runs] if isinstance(runs, Run) else list(runs)
  if not runs:
    raise ValueError('runs must hold at least one run')
  if any(run.declared_schema is None for run in runs):
    runs = [
      dataclasses.replace(r, declared_schema=None, schema_in_log=False) if r.schema_in_log else r
      for r in runs
    ]
  declared_schemas(run.declared_schema for run in runs)
  return runs


def declared_schemas(declared: Iterable[schemas.MinSep | None]) -> list[schemas.MinSep]:
  """Returns the declared schemas of all runs; none if no run has one.

  Raises:
    ValueError: if some runs alone have one.
  """
  declared = list(declared)
  known = [schema for schema in declared if schema is not None]
  if known and len(known) < len(declared):
    raise ValueError('declared must be given for each run, or for none')
  return known


def id_type(runs: Sequence[Run]) -> pa.DataType:
  """Returns the type of device ids in all runs; null if none has a device.

  Raises:
    LogError: if they differ, so that devices cannot be told to be the same.
  """
  logs = [run.log for run in runs if run.log.id_type != pa.null()] or [runs[0].log]
  for log in logs:
    if log.id_type != logs[0].id_type:
      raise refusals.LogError(
        f'{log.shards[0].path}: device_id is of another type than in the logs before, so that'
        ' devices cannot be told to be the same'
      )
  return logs[0].id_type


def numbered(table: pa.Table, first_round: int) -> pa.Table:
  """Returns the table of a log with its rounds counted from first_round on."""
  if not first_round:
    return table
  rounds = pc.add(table.column('round'), first_round)
  return table.set_column(0, 'round', rounds)


def read(path: str | os.PathLike[str]) -> list[Run]:
  """Reads the runs of one population that a JSON file lists.

  Example: {"runs": [{"log": "first.parquet", "strategy": "blt-b400", "noise_multiplier": 8.0},
  …]}. Further keys of a run are num_rounds, declared_num_rounds, declared_min_sep,
  declared_max_participations, columns and first_round. The noise multiplier may be left out if the
  log states it. Paths are relative to the file.

  Raises:
    ValueError: naming the file, the run by its place from 1, and the key.
    OSError: if it cannot be read.
  """
  path = paths.local(path)
  document = json_files.read(path)
  entries = document.get('runs') if isinstance(document, dict) else None
  if not (isinstance(entries, list) and entries and len(document) == 1):
    raise ValueError(f'{path}: must be an object with a list of "runs" alone')
  runs = []
  for place, entry in enumerate(entries, 1):
    try:
      runs.append(_run(entry, path.parent))
    except ValueError as e:
      raise ValueError(f'{path}, run {place}: {e}') from e
  return runs


def _run(entry: Any, folder: pathlib.Path) -> Run:
  if not isinstance(entry, dict):
    raise ValueError(f'must be an object, got {messages.quoted(entry)}')
  for key in _REQUIRED:
    if key not in entry:
      raise ValueError(f'{key} is missing')
  for key, value in entry.items():
    if key not in _KINDS:
      raise ValueError(f'{messages.quoted(key)} is none of {", ".join(_KINDS)}')
    if isinstance(value, bool) or not isinstance(value, _KINDS[key]):
      raise ValueError(f'{key} must not be {messages.quoted(value)}')
  logs = entry['log'] if isinstance(entry['log'], list) else [entry['log']]
  if not logs or not all(isinstance(path, str) for path in logs):
    raise ValueError(f'log must not be {messages.quoted(entry["log"])}')
  strategy = entry['strategy']
  if os.path.isfile(folder / strategy):
    strategy = folder / strategy
  arguments = {key: value for key, value in entry.items() if key not in _REQUIRED}
  if 'noise_multiplier' in entry:
    arguments['noise_multiplier'] = float(entry['noise_multiplier'])
  return open_run([folder / path for path in logs], strategy, **arguments)


def open_run(
  logs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
  strategy: files.Given,
  *,
  noise_multiplier: float | None = None,
  num_rounds: int | None = None,
  declared_num_rounds: int | None = None,
  declared_min_sep: int | None = None,
  declared_max_participations: int | None = None,
  columns: str | None = None,
  first_round: int = 0,
) -> Run:
  """Opens the participation log of a run.

  Args:
    logs: one or more files, folders or globs, the shards of one log.
    strategy: C as it was run, or its strategy file or name in matrices/.
    noise_multiplier: std(Z) / clip norm; None if the log states it.
    num_rounds: rows of noise consumed, if the log does not say.
    declared_num_rounds: rounds that were declared before the run: the most that it could have.
      Without it, the schema that was recorded in the log before round 0 is taken.
    declared_min_sep: min-sep that was declared with them; 1 if None.
    declared_max_participations: maximum participations that were declared with them.
    columns: where the log has its columns, as in 'round=step,device_id=user_id'; None for their
      own names. 'device_id=hex(NAME)' is a column of bytes.
    first_round: number of the log's first round.

  Raises:
    LogError: if the log cannot be believed.
    ValueError: if an argument is out of range or missing, or the strategy file is malformed.
  """
  strategy = files.resolved(strategy)
  log = log_lib.read_log(logs, num_rounds=num_rounds, layout=layout.parse(columns, first_round))
  declared = None
  for name, value in (
    ('declared_min_sep', declared_min_sep),
    ('declared_max_participations', declared_max_participations),
  ):
    if value is not None and declared_num_rounds is None:
      raise ValueError(
        f'{name}={value} needs declared_num_rounds, the number of rounds that was declared before'
        ' the run: it may have ended early because of what it released'
      )
  if declared_num_rounds is not None:
    declared = schemas.MinSep(
      num_rounds=declared_num_rounds,
      min_sep=1 if declared_min_sep is None else declared_min_sep,
      max_participations=declared_max_participations,
    )
  return Run.of(log, strategy, noise_multiplier=noise_multiplier, declared_schema=declared)
