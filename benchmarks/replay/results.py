"""Results of the replay benchmark, and their table."""

import dataclasses
from typing import Any

from benchmarks import sides
from benchmarks.replay import cases

HEADINGS = (
  'log',
  'rows',
  'min-sep',
  'ours, s',
  'bare query, s',
  'ours over bare',
  'ours, rows/s',
  'ours, MiB',
  'bare query, MiB',
)


@dataclasses.dataclass(frozen=True)
class Row:
  """Results of both sides of a case; figures hold each side's min_sep."""

  case: cases.Case
  ours: sides.Side
  peer: sides.Side

  @property
  def ratio(self) -> float | None:
    """Median seconds of ours over the peer's."""
    if not (self.ours.seconds and self.peer.seconds):
      return None
    return self.ours.median / self.peer.median

  @property
  def rows_per_second(self) -> float | None:
    if not self.ours.seconds:
      return None
    return self.case.num_participations / self.ours.median

  @property
  def min_sep(self) -> int | None:
    """Min-sep that both sides found."""
    found = self.ours.figures or self.peer.figures
    return found and found['min_sep']

  def as_json(self) -> dict[str, Any]:
    return {
      'setting': dataclasses.asdict(self.case),
      'rows': self.case.num_participations,
      'ours': dataclasses.asdict(self.ours),
      'peer': dataclasses.asdict(self.peer),
      'ratio': self.ratio,
      'rows_per_second': self.rows_per_second,
    }

  def cells(self) -> list[str]:
    """One string for each of HEADINGS."""
    rate = self.rows_per_second
    return [
      f'{self.case.size}, {self.case.ids} ids',
      f'{self.case.num_participations:,}',
      '' if self.min_sep is None else str(self.min_sep),
      sides.time(self.ours),
      sides.time(self.peer),
      '' if self.ratio is None else f'{self.ratio:.1f}×',
      '' if rate is None else f'{rate / 1e6:.2f} M',
      sides.memory(self.ours),
      sides.memory(self.peer),
    ]


def table(rows: list[Row]) -> str:
  """Returns the table in Markdown."""
  return sides.table(HEADINGS, [row.cells() for row in rows])
