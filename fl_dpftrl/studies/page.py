"""Pages of a study: one HTML file, or Markdown with its figures beside it, to be committed."""

import base64
import datetime
import importlib.metadata
import pathlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fl_dpftrl.drawing import style
from fl_dpftrl.files import durable
from fl_dpftrl.reports import page
from fl_dpftrl.studies import metric as metric_lib
from fl_dpftrl.studies import results, sentences, table
from fl_dpftrl.text import messages

if TYPE_CHECKING:
  from fl_dpftrl.studies.study import Study

_PACKAGES = ('tensorflow', 'tensorflow-federated', 'numpy', 'scipy')
_MOST_MISSING = 20  # settings that are named
_FACTS = (
  ('dataset', 'data set'),
  ('num_parameters', 'model parameters'),
  ('num_devices', 'devices'),
  ('num_rounds', 'rounds'),
  ('report_goal', 'report goal'),
  ('min_sep', 'min-sep of a run'),
  ('delta', 'δ'),
)


def captions(metric: metric_lib.Metric) -> dict[str, str]:
  """Returns the captions of all figures, by name."""
  name, key = metric.name, metric.key
  return {
    f'{key}_by_epsilon': f'Mean test {name} by ε with its 95 % interval over seeds, at the learning'
    ' rate chosen on validation data.',
    'difference_to_best': f'Test {name} {metric.worse} the best mechanism of the same ε, with 95 %'
    ' intervals over seeds. A filled mark is worse by more than seeds explain, a hollow one is not'
    ' told apart.',
    f'{key}_by_round': f'Validation {name} by round, at the chosen learning rate.',
    f'{key}_by_rate': f'Validation {name} by server learning rate, of the seeds that choose it. The'
    ' chosen rate has a ring.',
    f'{key}_by_noise': f'Test {name} by the noise that each loss predicts for the model. A large'
    ' point is a mechanism at one ε, a small one a run.',
  }


def leading(rows: Sequence[results.Row], names: Iterable[str]) -> str | None:
  """Returns the name of the figure that a page begins with; None where there is no figure.

  With one ε, differences to the best mechanism show more than values by ε.
  """
  epsilons, metric = results.levels(rows), rows[0].metric
  wanted = (f'{metric.key}_by_epsilon', 'difference_to_best')
  wanted = wanted if len(epsilons) > 1 else wanted[::-1]
  return next((name for name in (*wanted, *captions(metric)) if name in names), None)


def facts(study: 'Study') -> list[tuple[str, str]]:
  """Returns names and values that describe the runs, and what they took."""
  summaries = [result.summary for result in study.results if result.summary]
  seconds = datetime.timedelta(seconds=round(sum(s['seconds'] for s in summaries)))
  described = [
    ('runs that have ended', str(len(summaries))),
    ('seeds', ', '.join(map(str, study.design.seeds))),
    ('time of all rounds (h:min:s), one run after another', str(seconds)),
  ]
  for name, words in _FACTS:
    values = list(dict.fromkeys(str(s[name]) for s in summaries if name in s))
    if values:
      described.append((words, messages.one_line(', '.join(values))))
  return described


def study_page(study: 'Study', images: Mapping[str, bytes]) -> str:
  """Returns the page in HTML.

  Args:
    study: the study.
    images: PNG files by the names of `captions`.
  """
  design, rows = study.design, study.rows
  first = leading(rows, images)
  shots = {
    name: (name.replace('_', ' '), base64.b64encode(images[name]).decode('ascii'), caption)
    for name, caption in captions(design.metric).items()
    if name in images
  }
  return page.render(
    'study.html',
    title=design.title,
    kind='study',
    embedded={'title': design.title, 'head': table.head(design.metric), 'rows': table.cells(rows)},
    facts=facts(study),
    summary=sentences.summary(rows),
    glance=sentences.glance(rows),
    advice=[*sentences.untuned(rows), *sentences.few_seeds(rows)],
    levels=table.levels(rows),
    notes=table.notes(design, rows),
    verdicts=sentences.verdicts(rows),
    baseline=sentences.baseline(rows),
    independent=sentences.against_independent(rows),
    first=[image for name, image in shots.items() if name == first],
    images=[image for name, image in shots.items() if name != first],
    predictions=sentences.predictions(rows),
    flags=design.flags,
  )


def check_target(target: pathlib.Path, *, argument: str = 'target') -> None:
  """Raises ValueError naming the argument unless a path can be that of a page, NAME.md."""
  if target.suffix != '.md':
    raise ValueError(f'{argument}={messages.quoted(str(target))} must be a file NAME.md')


def publish(
  study: 'Study',
  target: pathlib.Path,
  *,
  how: str,
  image_kind: str = 'png',
  about: Sequence[str] = (),
) -> None:
  """Writes the page in Markdown, and its figures and results.csv into a folder beside it.

  Nothing in the study's folder is written, so that the study may be running.

  Args:
    study: results of the study, complete or not.
    target: path of the page, NAME.md; the folder is NAME.
    how: command lines that train the study and write the page.
    image_kind: kind of the figures, 'png' or 'svg'.
    about: sentences on what is trained and what the study does not show.

  Raises:
    OSError: if a file cannot be written.
    ValueError: naming an argument that does not fit, or if no run has ended.
  """
  check_target(target)
  if image_kind not in ('png', 'svg'):
    raise ValueError(f'image_kind={image_kind!r} cannot be shown by a page: give png or svg')
  if all(result.status == results.WAITING for result in study.results):
    raise ValueError(f'{study.folder} has no run of this study that has ended')
  beside = target.with_suffix('')
  beside.mkdir(parents=True, exist_ok=True)
  results.write_csv(beside / 'results.csv', results.lines(study.design, study.results))
  names = []
  for name, figure in study.figures().items():
    content = style.image(figure, image_kind)
    durable.write_durably(beside / f'{name}.{image_kind}', content)
    names.append(f'{name}.{image_kind}')
  for stale in beside.iterdir():
    if stale.stem in captions(study.design.metric) and stale.name not in names:
      stale.unlink()
  text = _markdown(study, names=names, beside=beside.name, how=how, about=about)
  durable.write_durably(target, text.encode())


def _markdown(
  study: 'Study', *, names: Sequence[str], beside: str, how: str, about: Sequence[str]
) -> str:
  design, rows = study.design, study.rows
  shown = {name.partition('.')[0]: f'{beside}/{name}' for name in names}
  first, last = leading(rows, shown), f'{design.metric.key}_by_noise'
  drawn = {
    name: f'{caption}\n\n![{caption}]({shown[name]})'
    for name, caption in captions(design.metric).items()
    if name in shown
  }
  parts = [
    f'# {design.title}',
    *([drawn[first].partition('\n\n')[2]] if first else []),
    sentences.summary(rows),
    *_missing(study),
    '## At a glance',
    table.grid(sentences.glance(rows)),
    *sentences.untuned(rows),
    *sentences.few_seeds(rows),
    *(['## What is trained', _bullets(about)] if about else []),
    '## Results',
    *_tables(rows),
    _bullets(table.notes(design, rows)),
    f'Each run is a line of [results.csv]({beside}/results.csv).',
    '## Order of the mechanisms',
    _bullets([*sentences.verdicts(rows), *sentences.baseline(rows)]),
    '## Correlated against independent noise',
    _bullets(sentences.against_independent(rows) or ['The study has no independent noise.']),
    '## Further figures',
    *(text for name, text in drawn.items() if name not in (first, last)),
    '## What the losses predict',
    _bullets(sentences.predictions(rows)),
    *([drawn[last]] if last in drawn and last != first else []),
  ]
  described = {**dict(facts(study)), **_versions()}
  parts += [
    '## What it took',
    _bullets(f'{name}: {value}' for name, value in described.items()),
    '## Flags of every run',
    '```\n' + '\n'.join(design.flags) + '\n```',
    '## Train it again',
    'The figures, the tables and the sentences on this page are computed from the results of the'
    ' runs. These commands train the study and write the page:',
    f'```\n{how}\n```',
  ]
  return '\n\n'.join(parts) + '\n'


def _tables(rows: Sequence[results.Row]) -> list[str]:
  """Returns the parts of a table for each ε."""
  parts = []
  for title, shared, lines in table.levels(rows):
    parts += [f'### {title}']
    parts += [f'{shared}.'] if shared else []
    parts += [table.grid(lines)] if lines else []
  return parts


def _missing(study: 'Study') -> list[str]:
  """Returns a paragraph on the runs that have not ended; none if all have."""
  design, rows, cell_results = study.design, study.rows, study.results
  ended = sum(result.status in (results.DONE, results.DIVERGED) for result in cell_results)
  # A setting without a chosen rate has no cells of the other seeds yet.
  undecided = sum(row.server_learning_rate is None for row in rows)
  total = len(cell_results) + undecided * (len(design.seeds) - design.tuning_seeds)
  if ended == total:
    return []
  absent: dict[str, int] = {}
  for result in cell_results:
    if result.status in (results.WAITING, results.FAILED):
      setting = result.cell.setting
      level = '' if setting.epsilon is None else f' at ε = {setting.epsilon:g}'
      absent[setting.label + level] = absent.get(setting.label + level, 0) + 1
  named = [f'{name} ({count})' for name, count in absent.items()]
  more = f' and {len(named) - _MOST_MISSING} more' if len(named) > _MOST_MISSING else ''
  without = sum(not row.tests for row in rows)
  unheard = f', and {without} of {len(rows)} settings have no result yet' if without else ''
  return [
    f'**This study is not complete:** {ended} of {total} runs have ended{unheard}. Its order may'
    f' change. Runs are missing of {", ".join(named[:_MOST_MISSING])}{more}.'
  ]


def _bullets(lines) -> str:
  return '\n'.join(f'- {line}' for line in lines)


def _versions() -> Mapping[str, str]:
  """Returns the versions installed here, with which the page is made."""
  named = [f'Python {platform.python_version()}']
  for name in _PACKAGES:
    try:
      named.append(f'{name} {importlib.metadata.version(name)}')
    except importlib.metadata.PackageNotFoundError:
      continue
  return {'versions': ', '.join(named)}
