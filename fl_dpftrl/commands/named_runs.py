"""Runs that flags of `replay` name: by a log, by counts, by their folders, or by a population's."""

import argparse
import os
from typing import Any

from fl_dpftrl.commands import flags
from fl_dpftrl.logs import layouts
from fl_dpftrl.participation.rules import sampling as schemes
from fl_dpftrl.prove.replaying import opened_runs, population_runs

# Flags of a log; the folder of a run states them.
_DECLARED = ('declared_num_rounds', 'declared_min_sep', 'declared_max_participations')
_FACTS = ('noise_multiplier', 'num_rounds', *_DECLARED)
OF_ONE_RUN = (
  *('log', 'from_counts', 'strategy', 'noise_multiplier', 'num_rounds', 'columns', 'first_round'),
  *('missing', 'units', *_DECLARED, *flags.SAMPLING),
)

FILES = (
  *('participation.*', 'released.[cm]*', 'population.[lm]*', 'claim.json', 'strategy.json'),
  *('units.parquet', 'model.npz', 'strategies/*'),
)
"""Files in the folder of a run, or of a population, that no report may replace."""


def opened(
  args: argparse.Namespace,
) -> tuple[list[opened_runs.RecordedRun], population_runs.PopulationRuns | None]:
  """Opens the runs, and their population if its folder is given; ValueError for flags apart."""
  population = _population(args)
  return list(population.runs) if population else _runs(args), population


def _runs(args: argparse.Namespace) -> list[opened_runs.RecordedRun]:
  options = _opening(args)
  logs = args.runs or [args.log]
  tables = _tables(args)
  opened = [
    opened_runs.open_run(log, args.strategy, **options, **table) for log, table in zip(logs, tables)
  ]
  draws = flags.sampling(args, opened[0].claim.strategy, opened[0].log.num_rounds)
  if draws is None:
    return opened
  if isinstance(draws, schemes.Batches) and args.num_parts is None:
    raise ValueError('--num_parts is needed: no log shows of how many parts its batches were drawn')
  if opened[0].claim.participation:
    raise ValueError('--sampling does not go with a declared schema, which says who takes part')
  return [opened[0].claiming(draws)]


def _population(args: argparse.Namespace) -> population_runs.PopulationRuns | None:
  """Returns the population whose folder is given; None for runs."""
  folders = [path for path in args.runs if population_runs.is_population(path)]
  if not folders:
    return None
  if len(args.runs) > 1:
    raise ValueError(f'{folders[0]} is a population: give it alone, as it has all of its runs')
  passed = [n for n in OF_ONE_RUN if n != 'units' and getattr(args, n) not in (None, [])]
  if passed:
    raise ValueError(f'--{passed[0]} does not go with a population, whose ledger says it')
  return population_runs.opened(folders[0], args.units or ())


def _tables(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Returns the table of units as an option for each run; each of several sites may have its own.

  A person of runs that are not disjoint needs one table of all, whatever the number of its files.
  """
  given, number = args.units, max(len(args.runs), 1)
  if args.sites in (None, 'shared') or not given or len(given) == 1:
    return [{'units': given}] * number
  if len(given) != number:
    raise ValueError(f'--units must be one table for all {number} folders, or {number} tables')
  return [{'units': [table]} for table in given]


def _opening(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the options with which runs are opened; ValueError where flags exclude others."""
  passed = [name for name in OF_ONE_RUN if getattr(args, name) not in (None, [])]
  where = {'columns': args.columns, 'first_round': args.first_round or 0, 'missing': args.missing}
  try:
    layouts.parse(**where)
  except ValueError as error:  # It begins with the name of the argument, which is that of the flag.
    raise ValueError(f'--{error}') from error
  facts = {name: getattr(args, name) for name in _FACTS}
  if args.runs:
    for path in filter(os.path.isfile, args.runs):
      raise ValueError(f'{path} is a file, and no folder of a run; give it as --log={path}')
    for name in passed:
      if name not in ('num_rounds', 'units', *where):
        raise ValueError(f'--{name} does not go with {args.runs[0]}: the folder of a run states it')
    return {'num_rounds': args.num_rounds, **where}
  if args.from_counts is not None:
    for name in ('log', 'columns', 'first_round', 'units', *flags.SAMPLING):
      if name in passed:
        raise ValueError(f'--{name} does not go with --from_counts, which holds no rows')
    for name in ('strategy', 'noise_multiplier', 'num_rounds'):
      if name not in passed:
        raise ValueError(f'--{name} is needed with --from_counts')
    return {'from_counts': args.from_counts, 'missing': args.missing, **facts}
  for name in ('log', 'strategy'):
    if name not in passed:
      raise ValueError(f'--{name} is needed, or the folder of a run')
  declared = [name for name in _DECLARED if name in passed]
  if declared and args.units:
    raise ValueError(
      f'--{declared[0]} is of devices, and does not go with --units: only a log that cites the'
      ' table has declared figures by person'
    )
  return {**facts, **where}
