"""Runs: a log, and the noise that entered its rounds."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import (
  claim_json,
  keys,
  layouts,
  ledger_format,
  participation_log,
  refusals,
  unit_tables,
)
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import per_units, separations
from fl_dpftrl.prove.replaying import counted, device_tallies, traces
from fl_dpftrl.support.files import json_files, paths
from fl_dpftrl.support.text import messages

_LOG = 'participation.'


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RecordedRun:
  """A log with the claim of its run.

  Attributes:
    log: participation log; without rows where counts are given in its place.
    claim: what is claimed of the run, by its log and by whoever replays.
    stated: the claim that the log states, as `Claim.to_json` gives it; None if it states none.
    tally: counts that stand for the rows of the log; None if the rows are to be counted.
    units: who owns which device; None where each device is a unit of its own.
    recorded: participation that the log or the folder states, whatever is claimed; None if none is.

  Raises:
    LogError: for a table of units that is not the one which the log cites.
  """

  log: participation_log.Log
  claim: run_claim.Claim
  stated: json_files.Object | None = None
  tally: device_tallies.Tally | None = None
  units: unit_tables.UnitTable | None = None
  recorded: Participation | None = None

  def __post_init__(self):
    if self.recorded is None:
      object.__setattr__(self, 'recorded', self._recorded())
    self.claim.answers.after(self.log.num_rounds)  # Raises ValueError for more rounds.
    path = self.log.path
    if self.claim.canaries and keys.RUN_KEY not in self.log.metadata:
      raise refusals.LogError(f'{path}: names no run, by which its canaries are told from devices')
    if self.units is None and (self.log.units or self.by_unit_declared):
      raise ValueError(
        f'{path}: is of a run of units that own devices: give their table, as units (--units)'
      )
    if self.units is None:
      return
    cited = self.log.units
    if cited:
      self.units.check_cited(cited, self.log.num_rounds)
    elif self.claim.participation:  # Whoever made the table may have known what was released.
      object.__setattr__(self, 'claim', dataclasses.replace(self.claim, participation=None))

  def __repr__(self) -> str:
    noise = f'noise_multiplier={self.claim.noise_multiplier:g}'
    run = f'{self.claim.strategy.family}, {noise}, {self.log.num_rounds} rounds, {self.log.path}'
    return f'RecordedRun({run})'

  def _recorded(self) -> Participation | None:
    if self.stated is None:
      return self.claim.participation
    try:
      document = self.stated['participation']
      return document and registry.from_json(document)
    except (KeyError, TypeError, AttributeError) as error:
      raise ValueError(f'{self.log.path}: participation: {messages.one_line(error)}') from None

  @property
  def by_unit_declared(self) -> bool:
    """True where the participation of units was declared, rather than that of devices."""
    return isinstance(self.claim.participation, per_units.PerUnit)

  @property
  def unit(self) -> str:
    """The unit of privacy in words: 'device', or as a participation of units says."""
    if self.units is None:
      return 'device'
    return self.claim.answers.unit if self.by_unit_declared else per_units.PerUnit.name

  @property
  def canary_ids(self) -> pa.Array | None:
    """Ids of the run's canaries, of the type of its log; None for a run without."""
    canaries = self.claim.canaries
    return canaries and canaries.ids(self.log.metadata[keys.RUN_KEY], self.log.id_type)

  def claiming(self, participation: Participation | None) -> 'RecordedRun':
    """Returns the run with another participation, or none, in its claim."""
    claim = dataclasses.replace(self.claim, participation=participation)
    return dataclasses.replace(self, claim=claim)

  def by_unit(self, table: pa.Table) -> pa.Table:
    """Returns a row for each owner of the devices of rows; LogError for a row without one."""
    units: Any = self.units
    rounds, device_ids = table.column('round').to_numpy(), table.column('device_id')
    places, numbers = units.owners(device_ids.combine_chunks(), rounds)
    missing = np.setdiff1d(np.arange(len(rounds)), places)
    if missing.size:
      t, device_id = int(rounds[missing[0]]), device_ids[int(missing[0])].as_py()
      raise refusals.LogError(
        f'{self.log.place(t, device_id)}: nobody owns device {messages.quoted(device_id)} in round'
        f' {t + self.log.layout.first_round} by {units.path}; a table has every device of the log'
      )
    return pa.table({'round': rounds[places], 'device_id': units.ids(numbers)})

  def check(self, terms: guarantees.Terms) -> None:
    """Raises ValueError where no guarantee is known, or counts cannot confirm what it rests on."""
    participation = self.claim.answers
    participation.check(self.claim.strategy, terms)
    if self.from_counts and participation.needs_rows:
      kind = type(participation).__name__
      raise ValueError(f'counts cannot confirm a {kind}; replay the log itself')

  @property
  def from_counts(self) -> bool:
    """True if the run has counts without a log, whose violations cannot be counted."""
    return self.tally is not None

  @property
  def schema_in_log(self) -> bool:
    """True if the log states the declared schema, as it was written before round 0."""
    participation = self.claim.to_json()['participation']
    is_recorded = self.stated is not None and self.stated['participation'] == participation
    return bool(self.claim.declared) and is_recorded

  @classmethod
  def of(
    cls,
    log: participation_log.Log,
    strategy: base.Strategy,
    units: unit_tables.UnitTable | None = None,
    **said: Any,
  ) -> 'RecordedRun':
    """Returns the run of a log; `said` has attributes of the claim, None for those of the log."""
    path = log.path
    try:
      base.check_num_rounds(strategy, log.num_rounds)
      stated = claim_json.read(log.metadata)
      claim = None
      if stated:
        claim = run_claim.Claim.from_json(stated | run_claim.described(strategy), strategy)
    except ValueError as e:
      raise refusals.LogError(f'{path}: {e}') from e
    attributes = {name: value for name, value in said.items() if value is not None}
    if claim is not None:
      claim = dataclasses.replace(claim, **attributes)
    elif 'noise_multiplier' in attributes:
      claim = run_claim.Claim(strategy=strategy, **attributes)
    else:
      raise ValueError(f'noise_multiplier is needed: {path} does not say it')
    return cls(log=log, claim=claim, stated=stated, units=units)


Given = RecordedRun | str | os.PathLike[str]


def together(runs: Given | Sequence[Given], *, local_ids: bool = False) -> list[RecordedRun]:
  """Returns runs of one population, opened, as they are accounted together.

  A schema that the log of one run states is left out where another run has none. Schemes by which
  participation was drawn amplify only one run; ValueError if one is given for several. Ids of all
  runs must be of one type, unless they are local to each.
  """
  every = [runs] if isinstance(runs, (RecordedRun, str, os.PathLike)) else runs
  recorded_runs = [run if isinstance(run, RecordedRun) else open_run(run) for run in every]
  if not recorded_runs:
    raise ValueError('runs must hold at least one run')
  if not all(run.claim.declared for run in recorded_runs):
    recorded_runs = [run.claiming(None) if run.schema_in_log else run for run in recorded_runs]
  if len(recorded_runs) > 1 and any(run.claim.is_drawn and not run.stated for run in recorded_runs):
    raise ValueError(
      'sampling is for one run: guarantees of batches that were drawn are not composed over several'
    )
  if len({run.claim.declared is None for run in recorded_runs}) > 1:
    raise ValueError('declared must be given for each run, or for none')
  if len({(run.unit, run.units is None) for run in recorded_runs}) > 1:
    raise ValueError('units must be given for each run, and have one name')
  identities = [run.log.metadata.get(keys.RUN_KEY) for run in recorded_runs]
  for place, identity in enumerate(identities):
    if identity is not None and identity in identities[:place]:
      raise refusals.LogError(
        f'{recorded_runs[place].log.path}: is of a run that is given already, and a run that went'
        ' on in a copy used its rows of noise twice; give each run once'
      )
  if not local_ids:
    _check_ids(recorded_runs)
  return recorded_runs


def _check_ids(runs: Sequence[RecordedRun]) -> None:
  """Raises an error unless the ids of devices, and those of units, are of one kind in all runs."""
  logs = [run.log for run in runs if run.log.id_type != pa.null()]
  for log in logs:
    if log.id_type != logs[0].id_type:
      raise refusals.LogError(
        f'{log.path}: device_id is of another type than in the logs before, so that'
        ' devices cannot be told to be the same'
      )
  if len({run.units is not None and run.units.id_type for run in runs}) > 1:
    raise ValueError('units must have ids of one type in all runs')


def open_run(
  logs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
  strategy: files.Given | None = None,
  *,
  noise_multiplier: float | None = None,
  num_rounds: int | None = None,
  declared_num_rounds: int | None = None,
  declared_min_sep: int | None = None,
  declared_max_participations: int | None = None,
  columns: str | Mapping[str, str] | None = None,
  first_round: int = 0,
  missing: str | None = None,
  units: unit_tables.Given | None = None,
  from_counts: str | os.PathLike[str] | None = None,
) -> RecordedRun:
  """Opens a run by its folder, by its participation log, or by counts of it.

  A run's folder has its log, `participation.*`, and strategy.json. A log that states no claim, such
  as one of another system, has that of the folder's claim.json.

  Args:
    logs: folder of a run; or, with a strategy, one or more files, folders or globs, the shards of
      one log.
    strategy: C as it was run, or its strategy file or name in matrices/; None for a run's folder.
    noise_multiplier: std(Z) / clip norm; None if the log states it.
    num_rounds: rows of noise consumed, if the log does not say.
    declared_num_rounds: rounds that were declared before the run: the most that it could have.
      Without it, the schema that was recorded in the log before round 0 is taken.
    declared_min_sep: min-sep that was declared with them; 1 if None.
    declared_max_participations: maximum participations that were declared with them.
    columns: where the log has its columns, as in 'round=step,device_id=user_id', or a mapping;
      None for their own names.
    first_round: number of the log's first round.
    missing: texts that mean a missing id, as in 'NULL,unknown'; '' for none, None for the usual.
    units: table of who owns which device, or its files: what is then shown is of people, or other
      units, rather than of devices. A table that was made after the run gives no declared figures.
    from_counts: Parquet or CSV file of counts, in place of a log: of the rows that the statement of
      `fl-dpftrl sql` gave, or that --write_counts wrote. It needs strategy, noise_multiplier and
      num_rounds, and goes without columns, first_round and units.

  Raises:
    LogError: if the log cannot be believed, or the table of units is not the one that it cites.
    ValueError: if an argument is out of range or missing, or the strategy file is malformed.
  """
  where = layouts.parse(columns, first_round, missing)
  schema = _declared_schema(
    declared_num_rounds, min_sep=declared_min_sep, max_participations=declared_max_participations
  )
  if from_counts is not None:
    if logs is not None or columns or first_round or units is not None:
      raise ValueError('logs, columns, first_round and units do not go with from_counts: no rows')
    if strategy is None or noise_multiplier is None or num_rounds is None:
      raise ValueError('from_counts needs strategy, noise_multiplier and num_rounds')
    strategy = files.resolved(strategy, num_rounds)
    claim = run_claim.Claim(
      strategy=strategy, noise_multiplier=noise_multiplier, participation=schema
    )
    log, tally = counted.read(from_counts, claim, num_rounds, missing)
    return RecordedRun(log=log, claim=claim, tally=tally)
  if logs is None:
    raise ValueError('logs is needed: a log, or the folder of a run; or from_counts')
  table = None if units is None else unit_tables.opened(units, first_round)
  folder, shown = None, dict[pathlib.Path, int]()
  if strategy is None:
    if noise_multiplier is not None or schema or not isinstance(logs, (str, os.PathLike)):
      raise ValueError('strategy is needed with a log: only the folder of a run states what it was')
    folder = paths.local(logs)
    logs, strategy = _log_path(folder), folder / files.NAME
    shown = traces.shown(folder)
  strategy = files.resolved(strategy)
  log = participation_log.read_log(logs, num_rounds=num_rounds, layout=where)
  traces.check(shown, log.path, log.num_rounds)
  if folder is not None:
    table = names_beside(log) if table is None else table
    return _run_of_folder(folder, log, strategy, table)
  return RecordedRun.of(
    log, strategy, table, noise_multiplier=noise_multiplier, participation=schema
  )


def names_beside(log: participation_log.Log) -> unit_tables.UnitTable | None:
  """Returns the table of names in a run's folder, where its log cites one; None without."""
  path = pathlib.Path(log.path).with_name(unit_tables.NAME)
  return unit_tables.opened(path) if log.units and path.exists() else None


def _log_path(folder: pathlib.Path) -> pathlib.Path:
  """Returns the only log of a run's folder, which may be one that is not closed yet."""
  if not folder.is_dir():
    hint = '; give a log to open_run, with its strategy' if folder.is_file() else ''
    raise ValueError(f'{messages.quoted(str(folder))} is no folder of a run{hint}')
  names = set(os.listdir(folder))
  if ledger_format.path_of(ledger_format.NAME).name in names:
    names.add(ledger_format.NAME)
  ledgers = (ledger_format.SUFFIX, *ledger_format.SIDES)
  logs = [name for name in names if name.startswith(_LOG) and not name.endswith(ledgers)]
  if len(logs) != 1:
    hint = ': it is evidence, which `verify` reads' if 'SHA256SUMS' in names else ''
    raise ValueError(f'{folder} must hold one log, {_LOG}parquet, and has {len(logs)}{hint}')
  return folder / logs[0]


def _run_of_folder(
  folder: pathlib.Path,
  log: participation_log.Log,
  strategy: base.Strategy,
  units: unit_tables.UnitTable | None,
) -> RecordedRun:
  """Returns the run of a folder; ValueError for a claim.json that is not that of its log."""
  path, stated = folder / run_claim.NAME, claim_json.read(log.metadata)
  if stated is not None:
    if path.exists():
      claim_json.check_file(path, stated, log.metadata.get(keys.RUN_KEY))
    return RecordedRun.of(log, strategy, units)
  if not path.exists():
    raise ValueError(f'{path} is missing, and the log does not state its claim')
  document, identity = claim_json.read_file(path)
  if identity is not None:  # Such a log would have digests of its rows.
    raise refusals.LogError(
      f'{log.path}: states no run, and {path} is of one: put the log back as the run wrote it'
    )
  try:
    claim = run_claim.Claim.from_json(document, strategy)
    return RecordedRun(log=log, claim=claim, units=units)
  except ValueError as e:
    raise ValueError(f'{path}: {e}') from e


def _declared_schema(num_rounds: int | None, **limits: int | None) -> separations.MinSep | None:
  """Returns the schema of the arguments of `open_run`; None if none is declared."""
  declared = {name: value for name, value in limits.items() if value is not None}
  if num_rounds is not None:
    return separations.MinSep(num_rounds, **declared)
  for name, value in declared.items():
    raise ValueError(
      f'declared_{name}={value} needs declared_num_rounds, the number of rounds that was declared'
      ' before the run: it may have ended early because of what it released'
    )
  return None
