"""Checks of bundles that have logs: everything is computed again from the logs and compared."""

import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from fl_dpftrl.bundles import checks as checks_lib
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import strategy_files, writing
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.logs import keys
from fl_dpftrl.replaying import embedded, replay
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.strategies import files
from fl_dpftrl.text import messages

_DIGEST_LINE = 65  # bytes


class Examined(NamedTuple):
  """A bundle that was examined.

  Attributes:
    folder: the bundle.
    manifest: its manifest.
    checks: all checks.
    opened: the runs as they are accounted together, as far as they can be read.
    statement: the statement, computed again; None if it cannot be.
  """

  folder: pathlib.Path
  manifest: manifest_lib.Manifest
  checks: tuple[checks_lib.Check, ...]
  opened: tuple[runs_lib.Run, ...]
  statement: statement_lib.Statement | None

  @property
  def fits(self) -> bool:
    """True if every check passed but that of the guarantee, which may be void."""
    return all(check.passed for check in self.checks if check.name != 'guarantee')


def examined(
  folder: str | os.PathLike[str],
  engine: replay.Engine = embedded.count,
  progress: Callable[[str], None] = lambda text: None,
) -> Examined:
  """Opens and examines a bundle that `write_bundle` wrote; errors as for `verify`."""
  found = checks_lib.find(folder)
  manifest = checks_lib.parsed(found)
  if manifest.public:
    raise ValueError(f'{found.folder}: is a public bundle, and one with logs is needed')
  return examine(found, manifest, engine, progress)


def examine(
  found: checks_lib.Found,
  manifest: manifest_lib.Manifest,
  engine: replay.Engine = embedded.count,
  progress: Callable[[str], None] = lambda text: None,
) -> Examined:
  """Checks a bundle that `write_bundle` wrote; errors as for `verify`."""
  checks = list(checks_lib.of_files(found, manifest))
  opened: list[runs_lib.Run] = []
  strategies: list[files.StrategyFile] = []
  for place in range(1, len(manifest.runs) + 1):
    checked, strategy = strategy_files.check(
      found.folder,
      f'strategy of run {place}',
      manifest_lib.strategy_name(place),
      made_by=manifest.made_by,
      listed=manifest.files,
    )
    checks.append(checked)
    strategies += [strategy] if strategy else []
    checked, run = _check_rounds(
      found.folder, manifest, place, strategy.strategy if strategy else None, progress
    )
    checks.append(checked)
    opened += [run] if run else []
  more, statement = _check_statement(
    found.folder, manifest, strategies, opened, checks, engine, progress
  )
  together = tuple(runs_lib.together(opened)) if statement else tuple(opened)
  return Examined(found.folder, manifest, (*checks, *more), together, statement)


def _check_rounds(
  folder: pathlib.Path,
  manifest: manifest_lib.Manifest,
  place: int,
  strategy: base.Strategy | None,
  progress: Callable[[str], None],
) -> tuple[checks_lib.Check, runs_lib.Run | None]:
  name = f'rounds of run {place}'
  if strategy is None:
    return checks_lib.Check(name, ('not checked, as the strategy cannot be read',)), None
  try:
    logs = [folder / log for log in manifest.logs(place)]
    run = manifest.runs[place - 1].open(logs, strategy)
    found = _chain(folder / manifest_lib.rounds_name(place), run, progress)
  except (ValueError, OSError) as error:
    return checks_lib.Check(name, (_sentence(error),)), None
  return checks_lib.Check(name, found, f'{run.log.num_rounds} chained digests computed again'), run


def _chain(
  path: pathlib.Path, run: runs_lib.Run, progress: Callable[[str], None]
) -> tuple[str, ...]:
  """Compares the chained digests with the log; returns what does not fit."""
  first, last = None, ''
  with open(path, 'rb') as stream:
    for t, last in enumerate(writing.of(run, progress)):
      if first is None and stream.read(_DIGEST_LINE) != f'{last}\n'.encode():
        first = t
    more = first is None and stream.read(1)
  found = []
  if first is not None:
    found.append(f'round {first} is the first whose devices do not give its digest')
  if more:
    found.append(f'{path.name} has digests of more rounds than {run.log.num_rounds}')
  for shard in run.log.shards if len(run.log.shards) == 1 else ():
    if shard.metadata.get(keys.CHAIN_KEY, last) != last:
      found.append('the rows are not those whose digest the writer of the log computed')
  return tuple(found)


def _check_statement(
  folder: pathlib.Path,
  manifest: manifest_lib.Manifest,
  strategies: list[files.StrategyFile],
  opened: list[runs_lib.Run],
  before: list[checks_lib.Check],
  engine: replay.Engine,
  progress: Callable[[str], None],
) -> tuple[tuple[checks_lib.Check, ...], statement_lib.Statement | None]:
  """Checks the statement and the guarantee; returns the statement too, where it can be had."""
  why = ''
  if len(opened) < len(manifest.runs):
    why = 'not checked, as a log or strategy cannot be read'
  else:
    try:
      statement = writing.statement_of(opened, manifest.guarantee, engine, progress)
      stored = json_files.read(folder / manifest_lib.STATEMENT)
    except (ValueError, OSError) as error:
      why = _sentence(error)
  if why:
    return (checks_lib.Check('statement', (why,)), checks_lib.unconfirmed()), None
  beside: dict[str, str] = {}
  for place, (file, run, facts) in enumerate(zip(strategies, opened, statement.runs), 1):
    name = manifest_lib.strategy_name(place)
    beside |= strategy_files.differences([name], [file], run.noise, facts.schema)
  own = writing.document(statement, folder)
  differing = checks_lib.differences(stored, own, 'the log and the strategy', beside)
  detail = 'every figure computed again, to the last digit'
  fits = all(check.passed for check in before) and not differing
  checked = checks_lib.Check('statement', differing, detail)
  return (checked, checks_lib.of_guarantee(statement, fits)), statement


def _sentence(error: object) -> str:
  return messages.one_line(error)
