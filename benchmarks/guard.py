"""The guard and its log, round by round.

6,500 devices a round of 3,000,000, text as ids, each durable before the next one; the guard chooses
them among 9,000. Early are rounds 5 % to 10 % of the run (100 to 200 of 2,000), late the last 5 %;
medians of computing time, to which the clock adds waiting for the disk and other programs. The
longest round includes growth of the table of devices and the disk. The claim is that a round costs
its own cohort: late rounds take at most 1.2 times as long as early ones.
"""

from benchmarks import runner
from benchmarks.runner import Side, call

MOST = 1.2
TABLE = (
  'side={side}|rounds={rounds:,}|ms a round, early={early_ms:.1f}|late={late_ms:.1f}|'
  'late / early={ratio:.2f}|longest={longest_ms:.0f}|by the clock={clock_ms:.1f}|'
  'ending (s)={closing_seconds:.1f}|log (MiB)={log_mib:.0f}|resident (MiB)={resident_mib:.0f}'
)


def main(options: runner.Options) -> int:
  """Measures the log alone and the guard, for 2,000 rounds or --rounds."""
  rows = []
  for side in ('log', 'guard'):
    command = call('aggregator', 'guarded', side, options.rounds or 2000)
    rows.append({'side': side, **runner.once(Side(command, timeout=1800.0))})
  runner.write(
    options, __doc__, 'guard', [runner.table(TABLE, rows)], rows, runner.versions('pyarrow')
  )
  return int(any(row['ratio'] > MOST for row in rows))
