"""A page in Markdown of a study's results, complete or not, to be committed."""

import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence

from experiments.stackoverflow.study import command, page, results, sentences, study_file, table
from fl_dpftrl.files import durable
from fl_dpftrl.text import messages

_PACKAGES = ('tensorflow', 'tensorflow-federated', 'numpy', 'scipy')
_MOST_MISSING = 20  # settings that are named


def publish(
  path: pathlib.Path, folder: pathlib.Path, target: pathlib.Path, *, figures: str = 'png'
) -> None:
  """Writes the page, and its figures and results.csv into a folder beside it.

  Nothing is trained, and nothing in the study's folder is written, so that the
  study may be running.

  Args:
    path: study file.
    folder: folder of the study, with all of its strategies.
    target: path of the page, NAME.md; the folder is NAME.
    figures: kind of the figures, 'png' or 'svg'.

  Raises:
    OSError: if a file cannot be read or written.
    ValueError: naming a file or setting that does not fit.
  """
  if target.suffix != '.md':
    raise ValueError(f'--publish={messages.quoted(str(target))} must be a file NAME.md')
  if figures not in ('png', 'svg'):
    raise ValueError(f'--figures={figures} cannot be shown by a page: give png or svg')
  study = study_file.read(path)
  noises, found = command.gather(study, folder)
  if all(result.status == results.WAITING for result in found):
    raise ValueError(f'--output_dir={folder} has no run of {path} that has ended')
  rows = results.rows(study, noises, found)
  beside = target.with_suffix('')
  beside.mkdir(parents=True, exist_ok=True)
  results.write_csv(beside / 'results.csv', study, found)
  names = []
  for name, figure in command.drawn(study, rows, found, folder).items():
    durable.write_durably(beside / f'{name}.{figures}', figure(figures))
    names.append(f'{name}.{figures}')
  for stale in beside.iterdir():
    if stale.stem in page.CAPTIONS and stale.name not in names:
      stale.unlink()
  train = (
    f'.venv/bin/python -m experiments.stackoverflow.study --study={os.path.relpath(path)} \\\n'
    f'  --output_dir=runs/studies/{path.stem}'
  )
  how = f'{train}\n{train} \\\n  --publish={os.path.relpath(target)} --figures={figures}'
  text = _markdown(study, rows, found, names=names, beside=beside.name, how=how)
  durable.write_durably(target, text.encode())


def _markdown(
  study: study_file.Study,
  rows: Sequence[results.Row],
  found: Sequence[results.Result],
  *,
  names: Sequence[str],
  beside: str,
  how: str,
) -> str:
  shown = {name.partition('.')[0]: f'{beside}/{name}' for name in names}
  first, last = page.leading(rows, shown), 'accuracy_by_noise'
  drawn = {
    name: f'{caption}\n\n![{caption}]({shown[name]})'
    for name, caption in page.CAPTIONS.items()
    if name in shown
  }
  parts = [
    f'# {study.title}',
    *([drawn[first].partition('\n\n')[2]] if first else []),
    sentences.summary(rows),
    *_missing(study, rows, found),
    '## At a glance',
    table.grid([sentences.GLANCE_HEAD, *sentences.glance(rows)]),
    *sentences.untuned(rows),
    *sentences.few_seeds(rows),
    '## Results',
    *_tables(rows),
    _bullets(table.notes(study)),
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
  facts = {**dict(command.facts(study, found)), **_versions()}
  parts += [
    '## What it took',
    _bullets(f'{name}: {value}' for name, value in facts.items()),
    '## Flags of every run',
    '```\n' + '\n'.join(study.flags) + '\n```',
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


def _missing(
  study: study_file.Study, rows: Sequence[results.Row], found: Sequence[results.Result]
) -> list[str]:
  """Returns a paragraph on the runs that have not ended; none if all have."""
  ended = sum(result.status in (results.DONE, results.DIVERGED) for result in found)
  # A setting without a chosen rate has no cells of the other seeds yet.
  undecided = sum(row.server_learning_rate is None for row in rows)
  total = len(found) + undecided * (len(study.seeds) - study.tuning_seeds)
  if ended == total:
    return []
  absent: dict[str, int] = {}
  for result in found:
    if result.status in (results.WAITING, results.FAILED):
      setting = result.cell.setting
      level = '' if setting.epsilon is None else f' at ε = {setting.epsilon:g}'
      absent[setting.label + level] = absent.get(setting.label + level, 0) + 1
  named = [f'{name} ({count})' for name, count in absent.items()]
  more = f' and {len(named) - _MOST_MISSING} more' if len(named) > _MOST_MISSING else ''
  without = sum(row.mean is None for row in rows)
  unheard = f', and {without} of {len(rows)} settings have no result yet' if without else ''
  return [
    f'**This study is not complete:** {ended} of {total} runs have ended{unheard}. Its order may'
    f' change. Runs are missing of {", ".join(named[:_MOST_MISSING])}{more}.'
  ]


def _bullets(lines) -> str:
  return '\n'.join(f'- {line}' for line in lines)


def _versions() -> Mapping[str, str]:
  """Returns the versions installed here, with which the page is made."""
  found = [f'Python {platform.python_version()}']
  for name in _PACKAGES:
    try:
      found.append(f'{name} {importlib.metadata.version(name)}')
    except importlib.metadata.PackageNotFoundError:
      continue
  return {'versions': ', '.join(found)}
