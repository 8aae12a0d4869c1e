"""The page of a study: its table, figures and what they mean, in one HTML file."""

import base64
import pathlib
from collections.abc import Mapping, Sequence

from experiments.stackoverflow.study import figures, results, study_file, table
from fl_dpftrl.reports import page

CAPTIONS = {
  'accuracy_by_epsilon': 'Test accuracy by ε, at the learning rate chosen on validation data.',
  'accuracy_by_round': 'Validation accuracy by round, at the chosen learning rate.',
  'accuracy_by_rate': 'Validation accuracy by server learning rate. A best rate at an end of'
  ' its grid asks for a wider one.',
  'accuracy_by_noise': 'Test accuracy by the noise that each loss predicts for the model. A'
  ' point is a mechanism at one ε.',
}
_TEMPLATE = pathlib.Path(__file__).with_name('study.html')


def study_page(
  study: study_file.Study,
  rows: Sequence[results.Row],
  *,
  images: Mapping[str, bytes],
  facts: Sequence[tuple[str, str]],
) -> str:
  """Returns the page.

  Args:
    study: the study.
    rows: its rows.
    images: PNG files by the names of `CAPTIONS`.
    facts: names and values that describe the runs.
  """
  shown = table.cells(rows)
  return page.render(
    _TEMPLATE,
    title=study.title,
    kind='study',
    embedded={'title': study.title, 'head': table.HEAD, 'rows': shown},
    facts=facts,
    head=(f'{table.HEAD[1]} at ε', *table.HEAD[2:]),
    rows=[(f'{mechanism} at {epsilon}', *cells) for epsilon, mechanism, *cells in shown],
    notes=table.notes(study),
    verdicts=verdicts(rows),
    images=[
      (name.replace('_', ' '), base64.b64encode(images[name]).decode('ascii'), caption)
      for name, caption in CAPTIONS.items()
      if name in images
    ],
    predictions=predictions(rows),
    flags=study.flags,
  )


def verdicts(rows: Sequence[results.Row]) -> list[str]:
  """Returns a sentence for each ε: the best mechanism, ties, and clear losers."""
  sentences = []
  levels = dict.fromkeys(r.setting.epsilon for r in rows if r.setting.epsilon is not None)
  for epsilon in levels:
    level = [r for r in rows if r.setting.epsilon == epsilon and r.mean is not None]
    if not level:
      sentences.append(f'ε = {epsilon:g}: no run has ended.')
      continue
    best = max(level, key=lambda row: row.mean)
    groups: dict[str, list[str]] = {}
    for row in sorted(level, key=lambda row: -row.mean):
      if row is not best:
        groups.setdefault(row.verdict, []).append(row.setting.label)
    parts = [f'{best.setting.label} has the best mean accuracy, {100 * best.mean:.2f} %']
    for verdict, words in (
      ('tied with the best', 'not told apart from it by these seeds'),
      ('worse', 'below it by more than seeds explain'),
      ('unknown: one seed', 'below it in the one seed that there is, which proves no order'),
    ):
      if groups.get(verdict):
        parts.append(f'{words}: {", ".join(groups[verdict])}')
    sentences.append(f'ε = {epsilon:g}: {"; ".join(parts)}.')
  return sentences


def predictions(rows: Sequence[results.Row]) -> list[str]:
  """Returns sentences on how well each loss predicts the order of accuracies."""
  found = [results.correlation(rows, measure) for measure in figures.MEASURES]
  if all(ranked.pooled is None for ranked in found):
    return ['There are too few settings for a rank correlation.']
  sentences = [
    'The noise in the model is known before any training: loss × effective noise multiplier ×'
    ' clip norm / report goal. A rank correlation of −1 with test accuracy means that it puts'
    ' all mechanisms in the right order.'
  ]
  for ranked in found:
    within = (
      f'; within one ε, where the noise multiplier plays no part, the mean is'
      f' {figures.correlation_text(ranked.within)}'
      if ranked.within is not None
      else ''
    )
    sentences.append(
      f'Noise {figures.MEASURES[ranked.measure]}: Spearman’s ρ is'
      f' {figures.correlation_text(ranked.pooled)} over {ranked.settings} settings{within}.'
    )
  return sentences
