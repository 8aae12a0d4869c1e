"""The page of a study: its table, figures and what they mean, in one HTML file."""

import base64
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from experiments.stackoverflow.study import results, sentences, study_file, table
from fl_dpftrl.reports import page

CAPTIONS = {
  'accuracy_by_epsilon': 'Test accuracy by ε, at the learning rate chosen on validation data.',
  'difference_to_best': 'Test accuracy below the best mechanism of the same ε, with 95 % intervals'
  ' over seeds. A filled mark is worse by more than seeds explain, a hollow one is not told apart.',
  'accuracy_by_round': 'Validation accuracy by round, at the chosen learning rate.',
  'accuracy_by_rate': 'Validation accuracy by server learning rate, of the seeds that choose it.'
  ' The chosen rate has a ring.',
  'accuracy_by_noise': 'Test accuracy by the noise that each loss predicts for the model. A'
  ' large point is a mechanism at one ε, a small one a run.',
}
_TEMPLATE = pathlib.Path(__file__).with_name('study.html')


def leading(rows: Sequence[results.Row], names: Iterable[str]) -> str | None:
  """Returns the name of the figure that a page begins with; None where there is no figure.

  With one ε, differences to the best mechanism show more than accuracy by ε.
  """
  epsilons = {row.setting.epsilon for row in rows} - {None}
  wanted = ('accuracy_by_epsilon', 'difference_to_best')
  wanted = wanted if len(epsilons) > 1 else wanted[::-1]
  return next((name for name in (*wanted, *CAPTIONS) if name in names), None)


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
  first = leading(rows, images)
  shots = {
    name: (name.replace('_', ' '), base64.b64encode(images[name]).decode('ascii'), caption)
    for name, caption in CAPTIONS.items()
    if name in images
  }
  return page.render(
    _TEMPLATE,
    title=study.title,
    kind='study',
    embedded={'title': study.title, 'head': table.HEAD, 'rows': shown},
    facts=facts,
    summary=sentences.summary(rows),
    glance_head=sentences.GLANCE_HEAD,
    glance=sentences.glance(rows),
    advice=[*sentences.untuned(rows), *sentences.few_seeds(rows)],
    levels=table.levels(rows),
    notes=table.notes(study),
    verdicts=sentences.verdicts(rows),
    baseline=sentences.baseline(rows),
    independent=sentences.against_independent(rows),
    first=[image for name, image in shots.items() if name == first],
    images=[image for name, image in shots.items() if name != first],
    predictions=sentences.predictions(rows),
    flags=study.flags,
  )
