"""Checks of bundles that have logs: everything is computed again from the logs and compared."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

from fl_dpftrl.bundles import checks as checks_lib
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import strategy_files, writing
from fl_dpftrl.files import json_files
from fl_dpftrl.logs import keys
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.strategies import files
from fl_dpftrl.text import messages

_DIGEST_LINE = 65  # bytes


class Examined(NamedTuple):
  """A bundle that was examined.

  Attributes:
    bundle: the bundle.
    checks: all checks.
    runs: the runs as they are accounted together, as far as they can be read.
    statement: the statement, computed again; None if it cannot be.
  """

  bundle: checks_lib.Opened
  checks: tuple[checks_lib.Check, ...]
  runs: tuple[runs_lib.Run, ...]
  statement: statement_lib.Statement | None

  @property
  def fits(self) -> bool:
    """True if every check passed but that of the guarantee, which may be void."""
    return all(check.passed for check in self.checks if check.name != 'guarantee')


def examine(
  bundle: checks_lib.Opened,
  digest: str | None = None,
  progress: Callable[[str], None] = lambda text: None,
) -> Examined:
  """Checks a bundle that `write_bundle` wrote; arguments and errors as for `verify`."""
  if bundle.manifest.public:
    raise ValueError(f'{bundle.folder}: is a public bundle, and one with logs is needed')
  checks = checks_lib.of_files(bundle, digest)
  runs: list[runs_lib.Run] = []
  strategies: list[files.StrategyFile] = []
  for place in range(1, len(bundle.manifest.runs) + 1):
    checked, strategy = strategy_files.check(
      bundle, f'strategy of run {place}', manifest_lib.strategy_name(place)
    )
    checks.append(checked)
    strategies += [strategy] if strategy else []
    checked, run = _check_rounds(bundle, place, strategy, progress)
    checks.append(checked)
    runs += [run] if run else []
  more, statement = _check_statement(bundle, strategies, runs, checks, progress)
  if statement:
    runs = runs_lib.together(runs)
  return Examined(bundle, (*checks, *more), tuple(runs), statement)


def _check_rounds(
  bundle: checks_lib.Opened,
  place: int,
  strategy: files.StrategyFile | None,
  progress: Callable[[str], None],
) -> tuple[checks_lib.Check, runs_lib.Run | None]:
  name = f'rounds of run {place}'
  if strategy is None:
    return checks_lib.Check(name, ('not checked, as the strategy cannot be read',)), None
  try:
    logs = [bundle.folder / log for log in bundle.manifest.logs(place)]
    run = bundle.manifest.runs[place - 1].open(logs, strategy.strategy)
    wrong = _chain(bundle.folder / manifest_lib.rounds_name(place), run, progress)
  except (ValueError, OSError) as error:
    return checks_lib.Check(name, (messages.one_line(error),)), None
  return checks_lib.Check(name, wrong, f'{run.log.num_rounds} chained digests computed again'), run


def _chain(
  path: pathlib.Path, run: runs_lib.Run, progress: Callable[[str], None]
) -> tuple[str, ...]:
  """Compares the chained digests with the log; returns what does not fit."""
  first, last = None, ''
  with open(path, 'rb') as stream:
    for t, last in enumerate(writing.chained(run, progress)):
      if first is None and stream.read(_DIGEST_LINE) != f'{last}\n'.encode():
        first = t
    more = first is None and stream.read(1)
  wrong = []
  if first is not None:
    wrong.append(f'round {first} is the first whose devices do not give its digest')
  if more:
    wrong.append(f'{path.name} has digests of more rounds than {run.log.num_rounds}')
  for shard in run.log.shards if len(run.log.shards) == 1 else ():
    if shard.metadata.get(keys.CHAIN_KEY, last) != last:
      wrong.append('the rows are not those whose digest the writer of the log computed')
  return tuple(wrong)


def _check_statement(
  bundle: checks_lib.Opened,
  strategies: list[files.StrategyFile],
  runs: list[runs_lib.Run],
  before: list[checks_lib.Check],
  progress: Callable[[str], None],
) -> tuple[list[checks_lib.Check], statement_lib.Statement | None]:
  """Checks the statement and the guarantee; returns the statement too, where it can be had."""
  if len(runs) < len(bundle.manifest.runs):
    return checks_lib.without_statement('not checked, as a log or strategy cannot be read'), None
  try:
    statement = writing.statement_of(runs, bundle.manifest.guarantee, progress)
    stored = json_files.read(bundle.folder / manifest_lib.STATEMENT)
  except (ValueError, OSError) as error:
    return checks_lib.without_statement(error), None
  beside: dict[str, str] = {}
  for place, (file, facts) in enumerate(zip(strategies, statement.runs), 1):
    beside |= strategy_files.differences(manifest_lib.strategy_name(place), file, facts)
  own = writing.document(statement, bundle.folder)
  differing = checks_lib.differences(stored, own, 'the log and the strategy', beside)
  detail = 'every figure computed again, to the last digit'
  fits = all(check.passed for check in before) and not differing
  checked = checks_lib.Check('statement', differing, detail)
  return [checked, checks_lib.of_guarantee(statement, fits)], statement
