"""The runs of a population by its ledger, each compared with its folder where that is there."""

import dataclasses
import functools
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fl_dpftrl.claims import population_claim
from fl_dpftrl.logs import (
  keys,
  ledger_format,
  participation_log,
  population_ledger,
  refusals,
  unit_tables,
)
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.files import documents, files
from fl_dpftrl.participation.rules import population_budgets
from fl_dpftrl.prove.replaying import opened_runs
from fl_dpftrl.support.files import paths
from fl_dpftrl.support.text import messages


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationRuns:
  """The runs of a population, and the budget that they draw on.

  Attributes:
    folder: of the population, or of evidence.
    runs: as `open_run` returns them; the rows of each are those of the ledger.
    budget: as a statement has it.
    mu: the largest μ of a class.
    chance: δ₀ of the whole numbers of all runs.
    reasons: why the ledger contradicts the budgets; none if it keeps to them.
    warnings: lines that a reader should know.
  """

  folder: pathlib.Path
  runs: tuple[opened_runs.RecordedRun, ...]
  budget: population_budgets.PopulationBudget
  mu: float
  chance: float
  reasons: tuple[str, ...]
  warnings: tuple[str, ...]


def is_population(path: Any) -> bool:
  """Returns whether a path is the folder of a population."""
  is_path = isinstance(path, (str, os.PathLike))
  return is_path and (paths.local(path) / population_ledger.NAME).exists()


def opened(
  folder: str | os.PathLike[str], units: Sequence[unit_tables.Given] = (), *, is_copy: bool = False
) -> PopulationRuns:
  """Counts every charge of a population anew, and compares its ledger with the folders of its runs.

  Args:
    folder: of the population.
    units: where other units have a budget, the tables of who owns which device: one of all runs,
      or one for each.
    is_copy: whether the folder is that of evidence, without runs to compare with.

  Raises:
    LogError: for a ledger that is damaged or of an earlier moment, and a run with other rounds.
    ValueError: without a run that has a round, and for another number of tables.
  """
  folder = paths.local(folder)
  path = str(folder / population_ledger.NAME)
  state = population_claim.PopulationState(
    functools.partial(strategy_of, folder), path=path, is_checked=True
  )
  logs = dict[str, participation_log.Log | str]()
  # Logs are read before the ledger: what they have, it has.
  for record in [] if is_copy else population_ledger.read(folder):
    # The state refuses a record without them.
    if record.kind == population_ledger.OPENED and {'folder', 'run'} <= {*record.content}:
      logs[record.content['run']] = _newest_log(folder, record.content)
  cohorts: list[list[list[Any]]] = []
  for record in population_ledger.read(folder, is_copy=is_copy):
    state.take(record)
    if record.kind == population_ledger.OPENED:
      cohorts.append([])
    if record.kind == population_ledger.RESERVED:
      cohorts[record.content['run']] += record.content['cohorts']
  tables: list[Any] = [unit_tables.opened(table) for table in units] or [None]
  # Evidence has none of runs without a round.
  places = [place for place, rounds in enumerate(cohorts) if rounds or not is_copy]
  if len(tables) not in (1, len(places)):
    raise ValueError(f'units must be one table, or one for each of {len(places)} runs')
  runs, warnings, reasons = list[opened_runs.RecordedRun](), list[str](), list(state.passed)
  for place, (run, rounds) in enumerate(zip(state.runs, cohorts)):
    run_log = logs.get(run.identity, 'it was opened meanwhile')
    if not is_copy:
      warnings += _compared(path, place, run, run_log)
    if rounds:
      log = _log(path, run, [(cohort[0], cohort[1]) for cohort in rounds])
      table = tables[places.index(place) % len(tables)]
      if table is None and isinstance(run_log, participation_log.Log):
        table = opened_runs.names_beside(run_log)
      runs.append(opened_runs.RecordedRun.of(log, run.claim.strategy, table))
      reasons += _other_owners(place, rounds, table)
  if not runs:
    raise ValueError(f'{folder}: no run of the population has a round yet')
  claim = state.claim
  return PopulationRuns(
    folder=folder,
    runs=tuple(runs),
    budget=population_budgets.PopulationBudget(
      epsilons=claim.epsilons,
      delta=claim.delta,
      name=claim.unit,
      num_ended=sum(run.has_ended for run in state.runs),
      num_withdrawn=state.num_withdrawn,
    ),
    mu=claim.mu(claim.largest),
    chance=state.chance,
    reasons=tuple(reasons),
    warnings=tuple(warnings),
  )


def given(runs: Any, units: Sequence[unit_tables.Given] = ()) -> PopulationRuns | None:
  """Returns the population that is given, or whose folder is; None for runs."""
  if is_population(runs):
    return opened(runs, units)
  return runs if isinstance(runs, PopulationRuns) else None


def store(population: PopulationRuns, folder: pathlib.Path, units: str) -> None:
  """Copies the ledger, the strategies and the tables of a population into a folder of evidence."""
  with population_ledger.copied(population.folder) as ledger:
    shutil.copyfile(ledger, folder / ledger.name)
  for path in (population.folder / population_ledger.STRATEGIES).iterdir():
    shutil.copyfile(path, folder / path.name)
  for place, run in enumerate(population.runs):
    if run.units is not None:
      run.units.save(folder / f'run-{place + 1}-{units}')


def file_names(population: PopulationRuns, units: str) -> set[str]:
  """Returns the names of files in evidence of a population; units: ends those of tables."""
  digests = (run.claim.to_json()['strategy']['sha256'] for run in population.runs)
  strategies = [path.name for digest in digests for path in population.folder.glob(f'{digest}.*')]
  tables = [f'run-{i}-{units}' for i, run in enumerate(population.runs, 1) if run.units]
  return {population_ledger.NAME, *strategies, *tables}


def strategy_of(folder: pathlib.Path, digest: str) -> base.Strategy:
  """Returns the strategy of a run by its digest; LogError without its file."""
  place = folder / population_ledger.STRATEGIES
  path = (place if place.is_dir() else folder) / f'{digest}.json'
  if not path.exists():
    raise refusals.LogError(f'{path}: is missing; copy the strategies of the population too')
  try:
    strategy = files.load_strategy(path)
  except (ValueError, OSError) as error:
    raise refusals.LogError(f'{path}: {messages.one_line(error)}') from error
  if documents.strategy_digest(strategy) != digest:
    raise refusals.LogError(f'{path}: is another strategy than its name says')
  return strategy


def _newest_log(folder: pathlib.Path, content: Any) -> participation_log.Log | str:
  """Returns the log with most rounds of a run, by its folder when it was opened, or why none is.

  It may have been moved with the population, or the population may be a copy of an earlier moment.
  """
  places = (content.get('beside', content['folder']), content['folder'])
  logs, problems = list[participation_log.Log](), list[str]()
  for path in dict.fromkeys(os.path.normpath(folder.resolve() / place) for place in places):
    try:
      logs.append(participation_log.read_log(pathlib.Path(path, ledger_format.NAME)))
    except (ValueError, OSError) as error:
      problems.append(messages.one_line(error, 160))
  if not logs:
    return problems[0]
  run = content['run']
  return max(logs, key=lambda log: (log.metadata.get(keys.RUN_KEY) == run, log.num_rounds))


def _compared(
  path: str, place: int, run: population_claim.ReservedRun, log: participation_log.Log | str
) -> Iterator[str]:
  """Yields a warning for a run without its log; LogError for one that has other rounds."""
  name = f'run {place + 1} ({messages.one_line(pathlib.Path(run.folder).name, 60)})'
  if isinstance(log, str):
    if run.num_rounds:
      yield f'{name}: its rounds are those of the ledger of the population, as {log}'
    return
  metadata = log.metadata
  if metadata.get(keys.RUN_KEY) != run.identity:
    yield f'the folder of {name} has another run now; its rounds are those of the ledger'
    return
  if log.num_rounds > run.num_rounds:
    raise refusals.LogError(
      f'{path}: has {run.num_rounds} rounds of {name}, and its log has {log.num_rounds}: it is of'
      ' an earlier moment; put the newest back'
    )
  if metadata.get(keys.CHAIN_KEY) != run.heads[log.num_rounds - 1].hex():
    raise refusals.LogError(f'{path}: has other cohorts of {name} than its log')


def _other_owners(
  place: int, rounds: Sequence[Sequence[Any]], table: unit_tables.UnitTable | None
) -> Iterator[str]:
  """Yields why a ledger charged others than the owners of the devices by their table."""
  for t, (kind, text, *owners) in enumerate(rounds):
    if owners and table is not None and text:
      units, rows = population_claim.charged(kind, text, *owners)
      _, numbers = table.owners(ledger_format.ids_of(kind, text), t)
      distinct, counts = np.unique(numbers, return_counts=True)
      expected = dict(zip(table.ids(distinct).to_pylist(), counts.tolist()))
      if expected != dict(zip(units.to_pylist(), np.asarray(rows).tolist())):
        yield f'round {t} of run {place + 1} charged others than the owners of its devices'
    elif text and bool(owners) != (table is not None):
      yield f'round {t} of run {place + 1} did not charge the owners of its devices'


def _log(
  path: str, run: population_claim.ReservedRun, rounds: list[tuple[str, str]]
) -> participation_log.Log:
  """Returns the log of a run by the ledger of its population."""
  kinds = {kind[:1] for kind, text in rounds if text}
  id_type = {
    (): pa.null(),
    (ledger_format.NUMBERS,): pa.int64(),
    (ledger_format.TEXT,): pa.large_string(),
  }[tuple(kinds)]
  cited = list[tuple[int, str]]()
  for t, (kind, _) in enumerate(rounds):
    citation = kind[2:]
    cited += [(t, citation)] if citation != (cited[-1][1] if cited else '') else []
  state = ledger_format.State(
    run.claim.to_metadata(),
    bytes.fromhex(run.identity),
    run.num_rounds,
    run.head,
    frozenset(kinds),
    units=tuple(cited),
  )

  def tables(num_rounds: int | None = None) -> Iterator[pa.Table]:
    for t, (kind, text) in enumerate(rounds):
      if text:
        ids = ledger_format.ids_of(kind, text).cast(id_type)
        yield pa.table({'round': np.full(len(ids), t, np.int64), 'device_id': ids})

  shard = participation_log.Shard(
    path, state.metadata(), run.num_rounds, id_type, tables, lambda: run.head.hex()
  )
  return participation_log.Log((shard,), run.num_rounds)
