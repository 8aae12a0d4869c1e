"""Simulating populations.

Each run is a cold process that writes the log. Ours is `fl-dpftrl simulate`, which draws a round
while the one before is written. The limit draws as many devices at random, then counts and writes
them, in one thread, without timers, availability, dropout or late reports.
"""

import json
import tempfile
from typing import Any, NamedTuple

from benchmarks import runner
from benchmarks.runner import Side, call, ratio

CORES = 2


class Case(NamedTuple):
  """Population to simulate: its devices, report goal, n and timer."""

  num_devices: int
  report_goal: int
  num_rounds: int
  timer: str

  @property
  def num_participations(self) -> int:
    """Number of rows of the log."""
    return self.num_rounds * self.report_goal


# The number of participations is constant, the number of devices grows.
GROWING = [Case(n, 6500, 2000, '--timer_rounds=10') for n in (100_000, 1_000_000, 10_000_000)]
TABLE = (
  'devices={case.num_devices:,}|participations={case.num_participations:,}|timer={case.timer}|'
  'min-sep={min_sep}|ours, s={ours}|limit, s={limit}|over it={over:.1f}|'
  'µs a participation={microseconds:.2f}|MiB={ours:MiB}'
)


def measure(case: Case, repeats: int) -> dict[str, Any]:
  """Runs both sides in turn."""
  sizes = case.num_devices, case.report_goal, case.num_rounds
  names = ('population', 'report_goal', 'num_rounds')
  flags = [f'--{name}={size}' for name, size in zip(names, sizes)]
  with tempfile.TemporaryDirectory() as folder:
    log = f'{folder}/log.parquet'
    ours = [runner.PROGRAM, 'simulate', *flags, case.timer, '--seed=1', f'--output={log}', '--json']
    sides = {
      'ours': Side(ours, timeout=1800.0, read=json.loads),
      'limit': Side(call('logs', 'limit', *sizes, log), timeout=1800.0),
    }
    runs = runner.turns(f'{case.num_devices} devices', sides, repeats)
  ours, limit = runs.values()
  # Process start and imports are in it.
  microseconds = ratio(1e6 * (ours.median or 0.0), case.num_participations)
  min_sep = (ours.result or {}).get('min_sep')
  over = ratio(ours.median, limit.median)
  return dict(case=case, min_sep=min_sep, over=over, microseconds=microseconds, **runs)


def main(options: runner.Options) -> int:
  """Simulates each population and writes the page."""
  production = Case(10_000_000, 6500, 2000, '--timer_hours=72')
  cases = [production, *GROWING]
  if options.rounds:
    cases = [case._replace(num_rounds=options.rounds) for case in cases]
  rows = [measure(case, options.repeats) for case in cases]
  blocks = [runner.table(TABLE, rows)]
  if not runner.any_failed(rows):
    times = [row['microseconds'] for row in rows[1:]]
    blocks.append(
      'With timers of 10 rounds, between the fewest and the most devices, the longest time per'
      f' participation is {max(times) / min(times):.2f}× the shortest.'
    )
  versions = runner.versions('numpy', 'pyarrow')
  runner.write(options, __doc__, 'population', blocks, rows, versions)
  return int(runner.any_failed(rows))
