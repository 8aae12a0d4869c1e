"""How cost grows with the size.

Each row is of a process of its own: seconds and processor seconds of the call alone, and the most
resident memory of the process. The limit is measured in the same process. A slope is that from the
size before on logarithmic axes: 1 is proportional.

- **gate**: opens the ledger of a run with a loss budget, in which each device took part once.
- **ledger**: closes a log of rounds of 10 devices.
- **replay**: `dpftrl.replay` of a log of 2,000 rounds, its digest included.
- **simulate**: 2,000 rounds of 650 reports, with their log.
- **round**: a durable round of 10 updates in float32, with BLT noise.
"""

import dataclasses
import itertools
import math
import tempfile
from typing import Any

from benchmarks import runner
from benchmarks.runner import Side, call, ratio

CORES = 2
# What grows; powers of ten of the least size, of the largest, and of those that run by name only.
KINDS = {
  'gate': ('devices', 4, 7, 7),
  'ledger': ('rounds', 2, 5, 5),
  'replay': ('rows', 5, 7, 8),
  'simulate': ('devices', 4, 7, 7),
  'round': ('parameters', 4, 7, 8),
}
WRITTEN = 'gate', 'ledger', 'replay'
TABLE = (
  'call={case.kind}|size={case.size:,} {unit}|seconds={seconds:.3g}|slope={seconds_slope:.2f}|'
  'of processors={cpu_seconds:.3g}|MiB={mib:.0f}|slope={mib_slope:.2f}|limit, s={limit:.2g}|'
  'over it={over:,.0f}|limit={limited_by}|beside it={note}'
)


@dataclasses.dataclass(frozen=True)
class Case:
  """A call and its size; a large one runs by its name only."""

  kind: str
  size: int
  large: bool = False


CASES = {
  f'scale-{kind}-1e{power}': Case(kind, 10**power, power > largest)
  for kind, (_, least, largest, most) in KINDS.items()
  for power in range(least, most + 1)
}


def measure(name: str, case: Case) -> dict[str, Any]:
  """Returns the figures of a case, whose files another process writes before."""
  runner.CACHE.mkdir(exist_ok=True)
  with tempfile.TemporaryDirectory(dir=runner.CACHE, ignore_cleanup_errors=True) as folder:
    if case.kind in WRITTEN:
      writing = call('scale', f'write_{case.kind}', case.size, folder)
      runner.once(Side(writing, timeout=3600.0, read=len))
    side = Side(call('scale', case.kind, case.size, folder), 2, 1800.0)
    runs = runner.turns(name, {case.kind: side}, 1)[case.kind]
  if runs.failures:
    raise ValueError(f'{name}: {runs.failures[-1]}')
  figures = {'case': case, 'unit': KINDS[case.kind][0], 'mib': runs.peak_mebibytes, 'note': ''}
  figures |= {'seconds_slope': None, 'mib_slope': None} | runs.result
  return figures | {'over': ratio(figures['seconds'], figures['limit'])}


def draw(rows_of: dict[str, list[dict[str, Any]]]) -> bytes:
  """Returns the figure as SVG: time with its limit, and memory."""
  from fl_dpftrl.support import style  # Loads matplotlib.

  panels = style.Figure(figsize=(11, 4.5), layout='constrained').subplots(1, 2)
  for place, (kind, rows) in enumerate(rows_of.items()):
    sizes = [row['case'].size for row in rows]
    for axes, name in zip(panels, ('seconds', 'mib')):
      power = rows[-1][f'{name}_slope']
      text = kind if power is None else f'{kind}, slope {power:.2f}'
      axes.plot(sizes, [row[name] for row in rows], 'o-', color=f'C{place}', label=text)
    panels[0].plot(sizes, [row['limit'] for row in rows], ':', color=f'C{place}')
  for axes, title in zip(panels, ('seconds; dotted: the limit', 'MiB')):
    style.dress(axes)
    axes.set(xscale='log', yscale='log', xlabel='devices, rounds, rows or parameters', ylabel=title)
    axes.legend(frameon=False, fontsize=9)
  return style.image(panels[0].figure, 'svg')


def main(options: runner.Options) -> int:
  """Measures the selected sizes, and writes the page and its figure."""
  rows = [measure(name, case) for name, case in options.select(CASES).items()]
  rows_of = {k: [row for row in rows if row['case'].kind == k] for k in KINDS}
  rows_of = {kind: some for kind, some in rows_of.items() if some}
  for before, row in itertools.chain(*map(itertools.pairwise, rows_of.values())):
    growth = math.log(row['case'].size / before['case'].size)
    for name in ('seconds', 'mib'):
      row[f'{name}_slope'] = math.log(row[name] / before[name]) / growth
  stem = runner.stem(options, 'scale')
  blocks = [f'![Time and memory by size]({stem}.svg)', runner.table(TABLE, rows)]
  about = runner.versions('numpy', 'pyarrow', 'numba')
  runner.write(options, __doc__, 'scale', blocks, rows, about)
  (options.output / f'{stem}.svg').write_bytes(draw(rows_of))
  return 0
