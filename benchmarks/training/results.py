"""Results of the training benchmark, and their table."""

import dataclasses
import statistics
from typing import Any

from benchmarks import sides
from benchmarks.training import cases

HEADINGS = (
  'model',
  'side',
  'batch',
  'sentences/s',
  'pass, s',
  'computed, s',
  'of the central rate',
  'of it, computed',
  'ms a client beside steps',
  'over the peer',
  'over it, computed',
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
  found: dict[cases.Side, Measured]

  def _least(self, batch: int, kinds: tuple[str, ...], name: str) -> float | None:
    """Returns the least median of the sides of some kinds; None where one has none."""
    found = [m.median(name) for s, m in self.found.items() if s.batch == batch and s.what in kinds]
    return None if not found or None in found else min(v for v in found if v is not None)

  def share(self, side: cases.Side, name: str = 'seconds') -> float | None:
    """Returns a side's rate relative to the faster loop in TensorFlow alone."""
    own = self.found[side].median(name)
    loop = self._least(side.batch, (cases.CENTRAL, cases.KERAS), name)
    return None if own is None or loop is None else loop / own

  def over_peer(self, side: cases.Side, name: str = 'seconds') -> float | None:
    """Returns a federated side's time relative to the peer's best."""
    own = self.found[side].median(name)
    best = self._least(side.batch, (cases.PEER,), name)
    if side.what != cases.FEDERATED or own is None or best is None:
      return None
    return own / best

  def fixed_milliseconds(self, side: cases.Side) -> float | None:
    """Returns the time of a federated client beside its steps of SGD."""
    own = self.found[side].median('seconds')
    loop = self._least(side.batch, (cases.CENTRAL,), 'seconds')
    if side.what != cases.FEDERATED or own is None or loop is None:
      return None
    return 1e3 * (own - loop) / self.case.clients

  def cells(self) -> list[list[str]]:
    """One list per side, with a string for each of HEADINGS."""
    return [self._cells(side) for side in self.found]

  def _cells(self, side: cases.Side) -> list[str]:
    measured = self.found[side]
    seconds, computed = map(measured.median, ('seconds', 'cpu_seconds'))
    num_sentences = self.case.clients * self.case.sentences
    shares = [
      self.share(side),
      self.share(side, 'cpu_seconds'),
      self.fixed_milliseconds(side),
      self.over_peer(side),
      self.over_peer(side, 'cpu_seconds'),
    ]
    return [
      self.case.size,
      side.name,
      str(side.batch),
      f'{num_sentences / seconds:.0f}' if seconds else f'failed: {measured.failures[-1]}',
      sides.digits(seconds) if seconds else '',
      sides.digits(computed) if computed else '',
      *('' if share is None else f'{share:.2f}' for share in shares),
    ]

  def as_json(self) -> dict[str, Any]:
    return {
      'setting': dataclasses.asdict(self.case),
      'sides': [
        {
          'side': side.name,
          'batch': side.batch,
          **dataclasses.asdict(measured),
          'share': self.share(side),
          'share_computed': self.share(side, 'cpu_seconds'),
          'fixed_milliseconds': self.fixed_milliseconds(side),
          'over_peer': self.over_peer(side),
          'over_peer_computed': self.over_peer(side, 'cpu_seconds'),
        }
        for side, measured in self.found.items()
      ],
    }


def table(rows: list[Row]) -> str:
  """Returns the table in Markdown."""
  return sides.table(HEADINGS, [cells for row in rows for cells in row.cells()])
