"""Replaying a log: fl-dpftrl and a bare query.

Each run is a cold process. Ours is `fl-dpftrl replay`: every fact and guarantee of the statement,
including the file's SHA-256. The bare query only finds the minimal separation. Seconds are the
median (least–most) of all runs.
"""

import dataclasses
import json
import pathlib
from typing import Any

from benchmarks import runner
from benchmarks.runner import Side, call, ratio

CORES = 2
FLAGS = ('--noise_multiplier=8', '--delta=1e-6', '--json')
LOGS = runner.CACHE / 'replay'


@dataclasses.dataclass(frozen=True)
class Case:
  """Log, and the strategy that it is replayed with; a large one runs once, without the peer."""

  num_devices: int
  num_rounds: int
  cohort: int
  ids: str = 'integer'
  strategy: str = 'blt-b400'
  large: bool = False

  @property
  def num_participations(self) -> int:
    """Number of rows."""
    return self.num_rounds * self.cohort

  @property
  def path(self) -> pathlib.Path:
    """File of the log."""
    sizes = f'devices{self.num_devices}-rounds{self.num_rounds}-cohort{self.cohort}'
    return LOGS / f'{self.ids}-{sizes}.parquet'

  @property
  def command(self) -> list[str]:
    """The `fl-dpftrl replay` command."""
    log, strategy = f'--log={self.path}', f'--strategy={self.strategy}'
    return [runner.PROGRAM, 'replay', log, strategy, *FLAGS]


CASES = {
  **{f'replay-13M-{ids}': Case(3_000_000, 2000, 6500, ids) for ids in ('integer', 'text')},
  'replay-1B': Case(320_000_000, 2000, 505_000, large=True),
}
TABLE = (
  'log={name}, {case.ids} ids|rows={case.num_participations:,}|min-sep={ours.result}|'
  'ours, s={ours}|bare query, s={peer}|ours over bare={over:.1f}|ours, M rows/s={rate:.2f}|'
  'ours, MiB={ours:MiB}|bare query, MiB={peer:MiB}'
)


def generate(case: Case) -> None:
  """Writes the log of a case if it is not there."""
  if not case.path.exists():
    case.path.parent.mkdir(parents=True, exist_ok=True)
    sizes = case.num_devices, case.num_rounds, case.cohort, case.ids
    writing = call('logs', 'write', str(case.path), *sizes)
    runner.once(Side(writing, timeout=7200.0, read=lambda output: None, shows_progress=True))


def measure(name: str, case: Case, repeats: int) -> dict[str, Any]:
  """Runs both sides in turn; ours has failed if the peer found another min-sep."""
  sides = {'ours': Side(case.command, 2, 3600.0, lambda output: json.loads(output)['min_sep'])}
  if not case.large:
    sides['peer'] = Side(call('duckdb', 'min_sep', str(case.path), CORES), 2)
  runs = {'peer': runner.Runs(), **runner.turns(name, sides, 1 if case.large else repeats)}
  ours, expected = runs['ours'], runs['peer'].result
  if ours.results and expected not in (None, ours.result):
    ours.failures.append(f'min_sep is {ours.result}, the bare query says {expected}')
  over = ratio(ours.median, runs['peer'].median)
  rate = ratio(1e-6 * case.num_participations, ours.median)
  return dict(name=name.split('-')[1], case=case, over=over, rate=rate, **runs)


def main(options: runner.Options) -> int:
  """Replays the selected logs and writes the page."""
  selected = options.select(CASES)
  for case in selected.values():
    generate(case)
  rows = [measure(name, case, options.repeats) for name, case in selected.items()]
  about = runner.versions('duckdb', 'pyarrow', 'numpy')
  runner.write(options, __doc__, 'replay', [runner.table(TABLE, rows)], rows, about)
  return int(runner.any_failed(rows))
