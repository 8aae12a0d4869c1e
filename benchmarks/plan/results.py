"""Results of the planning benchmark, and their tables."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks import sides
from benchmarks.plan import cases, judge
from fl_dpftrl.planning import forecast as forecast_lib

LIMIT = 0.02
"""Accepted relative excess of the plan's loss over that of hindsight."""

HEADINGS = (
  'run',
  'copies',
  'recommended',
  'best in hindsight',
  'loss above it',
  'within 2 %',
  'as planned for',
  'ε predicted',
  'ε of the logs',
)


@dataclasses.dataclass(frozen=True)
class Row:
  """Results of a case: simulations, verdicts on plans, and the command."""

  case: cases.Case
  outcomes: Sequence[forecast_lib.Outcome]
  verdicts: Sequence[judge.Verdict]
  command: sides.Side

  @property
  def passes(self) -> bool:
    return all(verdict.excess <= LIMIT for verdict in self.verdicts)

  def as_json(self) -> dict[str, Any]:
    return {
      'setting': dataclasses.asdict(self.case),
      'outcomes': [dataclasses.asdict(o) for o in self.outcomes],
      'verdicts': [
        {**dataclasses.asdict(v), 'excess': v.excess, 'is_covered': v.is_covered}
        for v in self.verdicts
      ],
      'command': dataclasses.asdict(self.command),
    }

  def lines(self) -> list[list[str]]:
    """Cells for HEADINGS, one line per memory limit."""
    by_copies = collections.defaultdict(list)
    for verdict in self.verdicts:
      by_copies[verdict.max_copies].append(verdict)
    return [
      [
        self.case.name,
        f'at most {most:,}',
        _names(v.recommended for v in verdicts),
        _names(v.best for v in verdicts),
        spread([100.0 * v.excess for v in verdicts], '{:.2f}') + ' %',
        f'{sum(v.excess <= LIMIT for v in verdicts)} of {len(verdicts)}',
        f'{sum(v.is_covered for v in verdicts)} of {len(verdicts)}',
        spread([v.predicted_epsilon for v in verdicts], '{:.2f}'),
        spread([v.epsilon for v in verdicts], '{:.2f}'),
      ]
      for most, verdicts in by_copies.items()
    ]

  def forecast(self) -> str:
    """Summary of the simulations in one line."""
    of = lambda name, form='{}': spread([getattr(o, name) for o in self.outcomes], form)
    took = sides.time(self.command) or 'not run'
    if self.command.seconds:
      took += f' s, {sides.memory(self.command)} MiB'
    return (
      f'- {self.case.name} (`{" ".join(self.case.words)}`):'
      f' {len(self.outcomes)} simulations, b {of("min_sep")}, k'
      f' {of("max_participations")}, days {of("days", "{:.1f}")}.'
      f' The whole command: {took}.'
    )


def spread(values: Sequence[float], form: str) -> str:
  """Formats the minimum and the maximum, or one value if they read alike."""
  return '–'.join(dict.fromkeys(form.format(f(values)) for f in (min, max)))


def _names(labels) -> str:
  counts = collections.Counter(labels)
  if len(counts) == 1:
    return next(iter(counts))
  return ', '.join(f'{label} ({n})' for label, n in counts.most_common())


def table(rows: Sequence[Row]) -> str:
  """Returns the table in Markdown."""
  return sides.table(HEADINGS, [line for row in rows for line in row.lines()])
