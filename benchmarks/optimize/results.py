"""Results of the optimisation benchmark, and their table."""

import dataclasses
from typing import Any

from benchmarks import sides
from benchmarks.optimize import cases

HEADINGS = (
  'setting',
  'ours, s',
  'peer, s',
  'faster',
  'ours, RmsLoss / MaxLoss',
  'peer, RmsLoss / MaxLoss',
  "our loss over the peer's",
  'ours, MiB',
  'peer, MiB',
)


@dataclasses.dataclass(frozen=True)
class Side(sides.Side):
  """Result of one side of a case.

  Its figures are rms_loss, max_loss and memory_copies, evaluated by the same
  code for both sides.

  Attributes:
    own_loss: loss of the objective as the side itself reports it.
  """

  own_loss: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
  """Results of both sides of a case."""

  case: cases.Case
  ours: Side
  peer: Side

  @property
  def speedup(self) -> float | None:
    """Median seconds of the peer over ours."""
    if not (self.ours.seconds and self.peer.seconds):
      return None
    return self.peer.median / self.ours.median

  @property
  def excess(self) -> float | None:
    """Relative excess of our loss over the peer's, in the case's objective."""
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
      sides.time(self.ours),
      sides.time(self.peer),
      '' if self.speedup is None else f'{self.speedup:.1f}×',
      losses(self.ours),
      losses(self.peer),
      '' if self.excess is None else percent(self.excess),
      sides.memory(self.ours),
      sides.memory(self.peer),
    ]


def setting(case: cases.Case) -> str:
  """Returns a short description of a case."""
  words = [case.mechanism.replace('_', ' ')]
  if case.num_buffers is not None:
    words.append(f'{case.num_buffers} buffers' if case.num_buffers else 'buffers chosen')
  if case.num_bands is not None:
    words.append(f'{case.num_bands} bands')
  apart = case.min_sep if case.max_participations > 1 else '–'
  schema = f'({case.num_rounds}, {apart}, {case.max_participations})'
  return f'{", ".join(words)}, {schema}, {case.objective}'


def losses(side: Side) -> str:
  if side.figures is None:
    return ''
  return f'{side.figures["rms_loss"]:.4f} / {side.figures["max_loss"]:.4f}'


def percent(share: float) -> str:
  """Formats a share with its sign, but without a sign if it rounds to zero."""
  text = f'{100.0 * share:+.2f}'
  return f'{"0.00" if float(text) == 0.0 else text} %'


def table(rows: list[Row]) -> str:
  """Returns the table in Markdown."""
  return sides.table(HEADINGS, [row.cells() for row in rows])
