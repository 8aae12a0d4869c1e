"""What was measured, and the table of it."""

import dataclasses
import statistics
from typing import Any

from benchmarks.optimize import cases

HEADINGS = (
    'setting', 'ours, s', 'peer, s', 'faster', 'ours, RmsLoss / MaxLoss',
    'peer, RmsLoss / MaxLoss', 'our loss over the peer\'s', 'ours, MiB', 'peer, MiB',
)


@dataclasses.dataclass(frozen=True)
class Side:
  """What one side made of a case.

  Attributes:
    seconds: of each run that gave a result, from start to end of its process.
    cpu_seconds: computed in each.
    peak_mebibytes: of resident memory, the most of any run.
    figures: rms_loss, max_loss and memory_copies, by the same yardstick for both
      sides; None where there was no result.
    own_loss: the loss of the objective as the side itself reports it.
    failures: why runs gave no result, in a line each.
  """

  seconds: tuple[float, ...] = ()
  cpu_seconds: tuple[float, ...] = ()
  peak_mebibytes: float | None = None
  figures: dict[str, float] | None = None
  own_loss: float | None = None
  failures: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Row:
  """Both sides of a case."""

  case: cases.Case
  ours: Side
  peer: Side

  @property
  def speedup(self) -> float | None:
    """Median seconds of the peer over ours."""
    if not (self.ours.seconds and self.peer.seconds):
      return None
    return statistics.median(self.peer.seconds) / statistics.median(
        self.ours.seconds
    )

  @property
  def excess(self) -> float | None:
    """Our loss over the peer's, less 1, in the objective of the case."""
    if not (self.ours.figures and self.peer.figures):
      return None
    name = f'{self.case.objective}_loss'
    return self.ours.figures[name] / self.peer.figures[name] - 1.0

  def as_json(self) -> dict[str, Any]:
    return {
        'setting': dataclasses.asdict(self.case),
        'ours': dataclasses.asdict(self.ours),
        'peer': dataclasses.asdict(self.peer),
        'speedup': self.speedup,
        'excess_loss': self.excess,
    }

  def cells(self) -> list[str]:
    """One string for each of HEADINGS."""
    return [
        setting(self.case),
        time(self.ours),
        time(self.peer),
        '' if self.speedup is None else f'{self.speedup:.1f}×',
        losses(self.ours),
        losses(self.peer),
        '' if self.excess is None else percent(self.excess),
        memory(self.ours),
        memory(self.peer),
    ]


def setting(case: cases.Case) -> str:
  """A case in the fewest words."""
  words = [case.mechanism.replace('_', ' ')]
  if case.num_buffers is not None:
    words.append(
        f'{case.num_buffers} buffers' if case.num_buffers else 'buffers chosen'
    )
  if case.num_bands is not None:
    words.append(f'{case.num_bands} bands')
  apart = case.min_sep if case.max_participations > 1 else '–'
  schema = f'({case.num_rounds}, {apart}, {case.max_participations})'
  return f'{", ".join(words)}, {schema}, {case.objective}'


def time(side: Side) -> str:
  """Median (least–most), or why there is none."""
  if not side.seconds:
    return f'failed: {side.failures[-1]}' if side.failures else ''
  text = digits(statistics.median(side.seconds))
  if len(side.seconds) > 1:
    text += f' ({digits(min(side.seconds))}–{digits(max(side.seconds))})'
  if side.failures:
    text += f', {len(side.failures)} failed'
  return text


def losses(side: Side) -> str:
  if side.figures is None:
    return ''
  return f'{side.figures["rms_loss"]:.4f} / {side.figures["max_loss"]:.4f}'


def memory(side: Side) -> str:
  return '' if side.peak_mebibytes is None else f'{side.peak_mebibytes:.0f}'


def percent(share: float) -> str:
  """With its sign, but no sign of what rounds to nothing."""
  text = f'{100.0 * share:+.2f}'
  return f'{"0.00" if float(text) == 0.0 else text} %'


def digits(seconds: float) -> str:
  """Three digits at most, two decimals at most."""
  return f'{seconds:.{2 if seconds < 10 else 1 if seconds < 100 else 0}f}'


def table(rows: list[Row]) -> str:
  """A table in Markdown, padded so that it also reads as it stands."""
  lines = [
      [c.replace('|', '\\|') for c in cells]
      for cells in ([*HEADINGS], *(row.cells() for row in rows))
  ]
  widths = [max(map(len, column)) for column in zip(*lines)]
  rule = ['-' * w for w in widths]
  return '\n'.join(
      f'| {" | ".join(cell.ljust(w) for cell, w in zip(cells, widths))} |'
      for cells in (lines[0], rule, *lines[1:])
  )
