"""Predictions between published production runs of the same language.

Source: McMahan et al. 2024, BLT-DP-FTRL, table 4: report goal, rounds, min-sep
and participations of the runs with BLT.
"""

import dataclasses
import sys
from typing import Any

from benchmarks import sides
from fl_dpftrl.simulation import fitting, recording, scenario

PHONES = scenario.Scenario(population=1, report_goal=10)

TIMERS = tuple(24.0 * days for days in (1, 2, 3, 4, 7, 14))


@dataclasses.dataclass(frozen=True)
class Language:
  """Two runs; population and timer are fitted to the first.

  Attributes:
    name: name of the language.
    known: run to fit.
    other: run to predict.
    scale: scale of the fit; the prediction is at full size.
  """

  name: str
  known: fitting.Row
  other: fitting.Row
  scale: int


_PT_PT = fitting.Row(3000, 430, 92, 4), fitting.Row(6000, 320, 49, 6)
_PT_BR = fitting.Row(6500, 2000, 2001, 1), fitting.Row(12000, 2000, 1181, 2)

LANGUAGES = (
  Language('pt-PT', *_PT_PT, scale=5),
  Language('pt-PT', *_PT_PT[::-1], scale=5),
  Language('pt-BR', *_PT_BR, scale=20),
  Language('pt-BR', *_PT_BR[::-1], scale=20),
)


@dataclasses.dataclass(frozen=True)
class Prediction:
  """Prediction of the other run from a fit."""

  language: Language
  fit: fitting.Fit
  min_sep: int
  max_participations: int
  days: float

  @property
  def off(self) -> float:
    """Relative error of the predicted min-sep."""
    return self.min_sep / self.language.other.apart - 1.0

  def as_json(self) -> dict[str, Any]:
    return {**dataclasses.asdict(self), 'fit': self.fit._asdict(), 'off': self.off}


def predict(language: Language) -> Prediction:
  """Fits the known run and simulates the other."""
  found = fitting.fit(
    language.known,
    PHONES,
    timers=TIMERS,
    scale=language.scale,
    progress=lambda line: print(f'{language.name}: {line}', file=sys.stderr),
  )
  phones = dataclasses.replace(
    PHONES,
    population=found.num_devices,
    report_goal=language.other.report_goal,
    timer_hours=found.timer_hours,
  )
  other = recording.simulate(phones, num_rounds=language.other.num_rounds)
  return Prediction(language, found, other.min_sep, other.max_participations, other.days)


def page(predictions: list[Prediction]) -> str:
  """Returns the table in Markdown."""
  rows = []
  for p in predictions:
    known, other = p.language.known, p.language.other
    rows.append(
      [
        p.language.name,
        f'{known.report_goal:,}: {known.min_sep} / {known.max_participations}',
        f'{p.fit.num_devices:,}',
        f'{p.fit.timer_hours / 24:g}',
        f'{other.report_goal:,}: {other.min_sep} / {other.max_participations}',
        f'{p.min_sep} / {p.max_participations}',
        f'{100 * p.off:+.1f} %',
      ]
    )
  return '\n'.join(
    [
      '# Published runs of production that predict each other',
      '',
      'For one published run of each language, the smallest population that'
      ' explains it is found, with its timer in days (1, 2, 3, 4, 7 or 14). The'
      ' fit is at a scale of 1 to 5 or 1 to 20; at full size it then predicts the'
      ' other run. Cells show min-sep / participations. A min-sep of 2001 in 2000'
      ' rounds means that no device took part twice.',
      '',
      sides.table(
        (
          'language',
          'known, report goal',
          'population',
          'timer, days',
          'other',
          'predicted',
          'min-sep off',
        ),
        rows,
      ),
    ]
  )
