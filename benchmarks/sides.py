"""What the sides of a comparison took, and how tables show it."""

import dataclasses
import statistics
from typing import Sequence

from benchmarks import process


@dataclasses.dataclass(frozen=True)
class Side:
  """What one side made of a case.

  Attributes:
    seconds: of each run that gave a result, from start to end of its process.
    cpu_seconds: computed in each.
    peak_mebibytes: of resident memory, the most of any run.
    figures: what was found; None where there was no result.
    failures: why runs gave no result, in a line each.
  """

  seconds: tuple[float, ...] = ()
  cpu_seconds: tuple[float, ...] = ()
  peak_mebibytes: float | None = None
  figures: dict[str, float] | None = None
  failures: tuple[str, ...] = ()

  @property
  def median(self) -> float | None:
    return statistics.median(self.seconds) if self.seconds else None

  def failed(self, why: str) -> 'Side':
    """This with one more run that gave no result."""
    return dataclasses.replace(self, failures=(*self.failures, why))

  def finished(self, done: process.Finished, **found) -> 'Side':
    """This with one more run, and the fields that it found."""
    return dataclasses.replace(
        self,
        seconds=(*self.seconds, done.seconds),
        cpu_seconds=(*self.cpu_seconds, done.cpu_seconds),
        peak_mebibytes=max(self.peak_mebibytes or 0.0, done.peak_mebibytes),
        **found,
    )

  def note(self) -> str:
    """How the latest run went."""
    return self.failures[-1] if self.failures else f'{self.seconds[-1]:.2f} s'


def time(side: Side) -> str:
  """Median (least–most), or why there is none."""
  if not side.seconds:
    return f'failed: {side.failures[-1]}' if side.failures else ''
  text = digits(side.median)
  if len(side.seconds) > 1:
    text += f' ({digits(min(side.seconds))}–{digits(max(side.seconds))})'
  if side.failures:
    text += f', {len(side.failures)} failed'
  return text


def memory(side: Side) -> str:
  return '' if side.peak_mebibytes is None else f'{side.peak_mebibytes:.0f}'


def digits(seconds: float) -> str:
  """Three digits at most, two decimals at most."""
  return f'{seconds:.{2 if seconds < 10 else 1 if seconds < 100 else 0}f}'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table in Markdown, padded so that it also reads as it stands."""
  lines = [[c.replace('|', '\\|') for c in row] for row in (headings, *rows)]
  widths = [max(map(len, column)) for column in zip(*lines)]
  rule = ['-' * w for w in widths]
  return '\n'.join(
      f'| {" | ".join(cell.ljust(w) for cell, w in zip(cells, widths))} |'
      for cells in (lines[0], rule, *lines[1:])
  )
