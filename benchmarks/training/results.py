"""Results of the training benchmark, and their table."""

import dataclasses
import statistics
from typing import Any

from benchmarks import sides
from benchmarks.training import cases

NUM_SENTENCES = cases.NUM_CLIENTS * cases.NUM_SENTENCES
HEADINGS = (
  'model',
  'side',
  'batch',
  'sentences/s',
  'pass, s',
  'computed, s',
  'of the central rate',
  'of it, computed',
)


@dataclasses.dataclass(frozen=True)
class Measured:
  """Result of one side of a case.

  Attributes:
    passes: `seconds` and `cpu_seconds` of each pass, of all its processes.
    failures: reasons in one line each why processes gave no result.
  """

  passes: tuple[dict[str, float], ...] = ()
  failures: tuple[str, ...] = ()

  def median(self, name: str) -> float | None:
    if not self.passes:
      return None
    return statistics.median(p[name] for p in self.passes)


@dataclasses.dataclass(frozen=True)
class Row:
  """Results of all sides of a case."""

  case: cases.Case
  found: dict[str, Measured]

  def share(self, side: str, name: str = 'seconds') -> float | None:
    """Returns a side's rate relative to the faster loop in TensorFlow alone."""
    own = self.found[side].median(name)
    loops = [m.median(name) for s, m in self.found.items() if not s.isdecimal()]
    if own is None or None in loops:
      return None
    return min(loops) / own

  def cells(self) -> list[list[str]]:
    """One list per side, with a string for each of HEADINGS."""
    return [self._cells(side) for side in self.found]

  def _cells(self, side: str) -> list[str]:
    measured = self.found[side]
    seconds, computed = map(measured.median, ('seconds', 'cpu_seconds'))
    federated = side.isdecimal()
    shares = [self.share(side, name) for name in ('seconds', 'cpu_seconds')]
    return [
      self.case.size,
      'federated' if federated else side,
      side if federated else str(cases.CENTRAL_BATCH),
      f'{NUM_SENTENCES / seconds:.0f}' if seconds else f'failed: {measured.failures[-1]}',
      sides.digits(seconds) if seconds else '',
      sides.digits(computed) if computed else '',
      *('' if share is None else f'{share:.2f}' for share in shares),
    ]

  def as_json(self) -> dict[str, Any]:
    return {
      'setting': dataclasses.asdict(self.case),
      'sides': {
        side: {
          **dataclasses.asdict(measured),
          'share': self.share(side),
          'share_computed': self.share(side, 'cpu_seconds'),
        }
        for side, measured in self.found.items()
      },
    }


def table(rows: list[Row]) -> str:
  """Returns the table in Markdown."""
  return sides.table(HEADINGS, [cells for row in rows for cells in row.cells()])
