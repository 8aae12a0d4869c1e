"""PrivateAggregator beside bare NumPy.

100 updates of 4,050,748 parameters a round, BLT noise, medians of rounds in processes of their own.
The claim is at most 1.3 times a bare loop that clips and sums the same updates, plus the row of
noise. Small rounds have 10 parameters and 10 devices, each on disk before its mean is there: the
claim is that their time stays the same. Where they are reserved, 64 are recorded at a time. Means.
"""

from benchmarks import runner
from benchmarks.runner import Side, call

MOST = 1.3
SIDES = 'bare', 'row', 'aggregator'
LARGE = 'side={side}|ms a round={ms:.0f}|memory beside the updates (MiB)={mib:.0f}'
SMALL = (
  'recorded at a time={reserve}|rounds={rounds:,}|ms a round, early={early_ms:.2f}|'
  'late={late_ms:.2f}|of processor time={cpu_ms:.2f}|resident (MiB)={resident_mib:.0f}'
)


def main(options: runner.Options) -> None:
  """Measures each side; 20,000 small rounds or --rounds."""
  large = [
    {'side': name, **runner.once(Side(call('aggregator', 'large', name, 6)))} for name in SIDES
  ]
  rounds = options.rounds or 20_000
  small = []
  for reserve in (1, 64):
    command = call('aggregator', 'small', rounds, reserve)
    small.append({'reserve': reserve, **runner.once(Side(command, timeout=1800.0))})
  bare, row, ours = (one['ms'] for one in large)
  holds = 'holds' if ours <= MOST * bare + row else 'does not hold'
  verdict = (
    f'The aggregator takes {ours / bare:.2f} times the loop, and {ours / (bare + row):.2f} times'
    f' the loop and a row; the claim {holds}.'
  )
  blocks = [runner.table(LARGE, large), verdict, '## Small rounds', runner.table(SMALL, small)]
  data = {'large': large, 'small': small}
  runner.write(options, __doc__, 'loop', blocks, data, runner.versions('numpy'))
