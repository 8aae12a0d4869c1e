"""Results of the two sides of a comparison, and their formatting."""

import dataclasses
import statistics
from collections.abc import Sequence

from benchmarks import process


@dataclasses.dataclass(frozen=True)
class Side:
  """Result of one side of a case.

  Attributes:
    seconds: time of each successful run, from start to end of its process.
    cpu_seconds: processor time of each successful run.
    peak_mebibytes: peak resident memory over all runs.
    figures: result; None if there was none.
    failures: reasons in one line each why runs gave no result.
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
    """Returns this side with one more failed run."""
    return dataclasses.replace(self, failures=(*self.failures, why))

  def finished(self, done: process.Finished, **found) -> 'Side':
    """Returns this side with one more run and the fields that it found."""
    return dataclasses.replace(
      self,
      seconds=(*self.seconds, done.seconds),
      cpu_seconds=(*self.cpu_seconds, done.cpu_seconds),
      peak_mebibytes=max(self.peak_mebibytes or 0.0, done.peak_mebibytes),
      **found,
    )

  def note(self) -> str:
    """Outcome of the latest run, in a few words."""
    return self.failures[-1] if self.failures else f'{self.seconds[-1]:.2f} s'


def time(side: Side) -> str:
  """Formats median (least–most), or the reason why there is none."""
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
  """Formats seconds with at most three digits and two decimals."""
  return f'{seconds:.{2 if seconds < 10 else 1 if seconds < 100 else 0}f}'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table, padded so that its source is readable."""
  lines = [[c.replace('|', '\\|') for c in row] for row in (headings, *rows)]
  widths = [max(map(len, column)) for column in zip(*lines)]
  rule = ['-' * w for w in widths]
  return '\n'.join(
    f'| {" | ".join(cell.ljust(w) for cell, w in zip(cells, widths))} |'
    for cells in (lines[0], rule, *lines[1:])
  )
