"""Privacy report as one self-contained HTML page.

The page separates what is proven, assumed and not covered. Each figure is in the page to the last
digit, in a <data> element that names the statement's field. The statement itself is embedded as
JSON. The page of a publishable statement holds no more than that statement.
"""

import importlib.metadata
import os
import platform
from collections.abc import Sequence

import numpy as np

from fl_dpftrl import version
from fl_dpftrl.prove.replaying import (
  assumption_sentences,
  publication,
  run_facts,
  statements,
  verdicts,
)
from fl_dpftrl.prove.reports import page, report_figures, settings
from fl_dpftrl.support.files import durable
from fl_dpftrl.support.text import roundings

Setting = settings.Setting

_PACKAGES = ('numpy', 'dp-accounting', 'pyarrow')

_SHARES = (0.01, 0.05, 0.1)  # of false positives


def write_report(
  path: str | os.PathLike[str], statement: statements.Statement, *, setting: Setting
) -> None:
  """Writes the report in one durable step; one that is not for publication is private."""
  durable.write_durably(path, report(statement, setting).encode(), private=statement.confidential)


def report(statement: statements.Statement, setting: Setting) -> str:
  """Returns the page that `write_report` writes."""
  if not statement.confidential:
    setting = setting.publishable()
  void = statement.void_reason or statement.worst_case.void_reason
  head = statement.headline
  mu = None if void else head.guarantee.mu
  size = statement.group_size
  noun, unit, planned = 'device', setting.unit, statement.planned
  if planned and planned.participation.unit == 'example':
    noun, unit = 'example', 'an example' if unit == Setting.unit else unit
  if statement.runs[0].units is not None:
    noun = statement.unit
    unit = f'{_a(noun)}, with all devices that it owns'
  return page.render(
    'privacy.html',
    title=': '.join(filter(None, ('Privacy report', setting.run))),
    kind='statement',
    statement=statement,
    setting=setting,
    void=void,
    is_of_population=planned is not None and planned.is_of_population,
    budget=planned and planned.budget,
    head=head,
    adjacency=statement.adjacency.replace('_', '-'),
    unit=unit if size == 1 else f'{unit}, {size} of them together',
    unit_of_noun=unit,
    noun=noun,
    a_noun=_a(noun),
    kept_rows=_rows([run.units.max_rows if run.units else 0 for run in statement.runs]),
    declared_rows=_rows([getattr(planned and planned.participation, 'max_rows', 0)]),
    clip_norm=_clip_norm(statement),
    verdict=setting.claimed and verdicts.verdict(statement, setting.claimed),
    questions=verdicts.QUESTIONS,
    to_quote=verdicts.to_quote(statement),
    is_stated=all(run.claim_in_log for run in statement.runs),
    groups=assumption_sentences.GROUPS,
    assumptions=assumption_sentences.grouped(statement),
    figures={
      'losses': _losses(statement, void, noun),
      'runs': [_participation(run, noun) for run in statement.runs],
      'trade_off': None if mu is None else report_figures.curve(mu),
      'errors': [(s, report_figures.least_false_negatives(mu, s)) for s in _SHARES] if mu else [],
    },
    command=setting.command if statement.confidential else publication.command(statement),
    versions=[
      ('fl_dpftrl', version.__version__),
      ('python', platform.python_version()),
      *((package, importlib.metadata.version(package)) for package in _PACKAGES),
    ],
    embedded=statement.to_json(),
  )


def _rows(most: Sequence[int]) -> str:
  """Returns words for the most devices of one unit in a round; none where there are no units."""
  largest = max(most)
  return f', with at most {largest} of its devices in a round' if largest else ''


def _a(noun: str) -> str:
  return f'an {noun}' if noun[0] in 'aeiou' else f'a {noun}'


def _clip_norm(statement: statements.Statement) -> str:
  """Returns the one clip norm of all runs in words."""
  runs = statement.runs
  norms = [run.claim.first_clip_norm for run in runs]
  recorded = {norm for norm in norms if norm is not None}
  if len(recorded) > 1 or any(run.claim.adaptive_clipping for run in runs):
    return 'that of each round, see above'
  return roundings.exact(*recorded) if recorded else 'not recorded'


def _participation(run: run_facts.RunFacts, noun: str) -> list[report_figures.Figure]:
  """Draws the participations in a run; nothing if for publication."""
  counted = run.counted_units
  if counted is None or not counted.num_devices:
    return []
  title, label = f'{noun.capitalize()}s by participations', f'rounds {_a(noun)} took part in'
  counts = counted.participations.pairs()
  shown = [report_figures.histogram(counts, title=title, x_label=label)]
  if separations := counted.separations.pairs():
    label = f'rounds between two participations of {_a(noun)}'
    title, mark = 'Rounds between participations', (run.min_sep, f'min-sep {run.min_sep:,}')
    shown.append(report_figures.histogram(separations, title=title, x_label=label, mark=mark))
  return shown


def _losses(
  statement: statements.Statement, void: str | None, noun: str
) -> report_figures.Figure | None:
  """Draws the privacy loss of actual devices; None if for publication, or without noise."""
  per_device, worst = statement.per_device, statement.worst_case.rho
  if per_device is None or not per_device.rho_histogram:
    return None
  mark, most = None, max(run.max_participations for run in statement.runs)
  if statement.group_size == 1 and worst is not None:  # Others are for many devices.
    mark = (worst, f'worst case: {"void" if void else f"ρ = {roundings.up(worst)}"}')
  bars, planned = per_device.rho_histogram, statement.planned
  if mark and worst and planned and planned.is_endless:
    bars = [(low / worst, high / worst, count) for low, high, count in bars]
    return report_figures.spread(
      _joined(bars, most),
      title=f'{noun.capitalize()}s by share of the budget',
      x_label=f'share that {_a(noun)} has spent, of Q ≤ B²',
      mark=(1.0, 'all of it'),
    )
  return report_figures.spread(
    _joined(bars, most),
    title=f'{noun.capitalize()}s by ρ',
    x_label=f'ρ (zCDP) of {_a(noun)}',
    mark=mark,
  )


def _joined(bars: Sequence[tuple[float, float, int]], most: int) -> list[tuple[float, float, int]]:
  """Joins bars into at most so many of equal width: ρ grows by steps with participations."""
  low, high, number = bars[0][0], bars[-1][1], min(most, len(bars))
  counts = np.zeros(number, int)
  for start, end, count in bars:
    place = 0.5 * (start + end) - low
    counts[min(number - 1, int(number * place / (high - low)) if high > low else 0)] += count
  edges = np.linspace(low, high, number + 1).tolist()
  return list(zip(edges, edges[1:], counts.tolist()))
