"""A study from its file to its page."""

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

from experiments.stackoverflow import machines as machines_lib
from experiments.stackoverflow.study import cells as cells_lib
from experiments.stackoverflow.study import estimate, rates, results, runner, study_file, table
from fl_dpftrl.files import durable, json_files
from fl_dpftrl.text import messages

STUDY_NAME = 'study.json'
LOCK_NAME = 'lock'
IMAGE_KINDS = ('png', 'svg', 'pdf')
_FIXED = ('mechanism', 'effective_noise_multiplier', 'noise_multiplier', 'flags')
# Shorter studies are not worth a timed run beforehand.
_FEW_ROUNDS = 1000


def run(
  path: pathlib.Path,
  folder: pathlib.Path,
  *,
  jobs: int,
  say: Callable[[str], None],
  machines: machines_lib.Machines = machines_lib.Machines(),
  only_estimate: bool = False,
  image_kind: str = 'png',
) -> bool:
  """Runs what is left of a study, and writes its table, figures and page.

  Args:
    path: study file.
    folder: folder of the study, which may hold a part of it.
    jobs: runs at the same time.
    say: progress, in lines.
    machines: that train the clients of each run.
    only_estimate: True to say how long it takes, and end.
    image_kind: kind of the figures' files: 'png', 'svg' or 'pdf'.

  Returns:
    True if no run failed.

  Raises:
    OSError: if a file cannot be read or written.
    ValueError: naming a file, flag or setting that does not fit.
    KeyboardInterrupt: on a signal that raises it; the study can go on later.
  """
  study = study_file.read(path)
  cells_lib.check(study)
  _check_folder(study, folder)
  folder.mkdir(parents=True, exist_ok=True)
  with _held(folder):
    if only_estimate or _is_long(study, folder):
      say('timing a few rounds, to say how long the study takes')
      say(estimate.measure(study, folder, jobs=jobs, machines=machines).text(study))
      if only_estimate:
        return True
    noises = cells_lib.prepare(study, folder, say)
    text = json.dumps(dataclasses.asdict(study), indent=2, ensure_ascii=False) + '\n'
    durable.write_durably(folder / STUDY_NAME, text.encode())
    found = _train(study, noises, folder, jobs, machines, say)
    rows = results.rows(study, noises, found)
    write(study, rows, found, folder, image_kind=image_kind)
  print(messages.lines(table.text(rows)))
  from experiments.stackoverflow.study import sentences  # matplotlib is slow to load.

  for advice in (*sentences.untuned(rows), *sentences.few_seeds(rows)):
    say(advice)
  say(f'page: {folder / "study.html"}')
  failed = [result for result in found if result.status == results.FAILED]
  if failed:
    say(f'{len(failed)} of {len(found)} runs failed; the same command tries them again')
  return not failed


def _is_long(study: study_file.Study, folder: pathlib.Path) -> bool:
  """Returns whether a study is to say beforehand how long it takes."""
  if any((folder / cells_lib.CELLS_NAME).glob('*/summary.json')):
    return False  # It goes on.
  rounds = max(cells_lib.base_flags(study, s).num_rounds for s in study.settings)
  return estimate.num_cells(study) * rounds > _FEW_ROUNDS


def _train(
  study: study_file.Study,
  noises: Mapping[study_file.Setting, cells_lib.Noise | None],
  folder: pathlib.Path,
  jobs: int,
  machines: machines_lib.Machines,
  say: Callable[[str], None],
) -> list[results.Result]:
  """Runs the cells that choose learning rates, and then those of the chosen ones."""
  progress = runner.Progress(total=estimate.num_cells(study), jobs=jobs, say=say)

  def told(cell: cells_lib.Cell) -> str:
    result = results.read(cell, folder)
    if result.test is None:
      return f'{cell.name} {result.status}: {result.reason}'
    return f'{cell.name}: test accuracy {100 * result.test:.2f} %'

  def ended(cells: Sequence[cells_lib.Cell]) -> list[results.Result]:
    failed = runner.run(
      cells,
      folder,
      jobs=jobs,
      num_threads=runner.threads(jobs),
      machines=machines,
      progress=progress,
      told=told,
    )
    return [results.read(cell, folder, failed) for cell in cells]

  tuned = ended(list(cells_lib.tuning(study, noises)))
  while further := rates.further(study, tuned):
    more = list(cells_lib.extended(study, noises, further))
    progress.total += len(more)
    named = [f'{cell.setting.label} {cell.server_learning_rate:g}' for cell in more]
    say(f'the best rate is at an end of its grid, so further ones: {", ".join(named)}')
    tuned += ended(more)
  chosen = results.chosen_rates(study, tuned)
  return tuned + ended(list(cells_lib.final(study, noises, chosen)))


def gather(
  study: study_file.Study, folder: pathlib.Path
) -> tuple[Mapping[study_file.Setting, cells_lib.Noise | None], list[results.Result]]:
  """Returns the noise and the results that a study's folder holds, and trains nothing.

  Raises:
    OSError: if a file cannot be read.
    ValueError: naming a setting without a strategy, or a file that does not fit.
  """
  _check_folder(study, folder)
  noises = cells_lib.prepare(study, folder, search=False)
  read = lambda cells: [results.read(cell, folder) for cell in cells]
  found = read(cells_lib.tuning(study, noises))
  while further := rates.further(study, found):
    found += read(cells_lib.extended(study, noises, further))
  chosen = results.chosen_rates(study, found)
  return noises, found + read(cells_lib.final(study, noises, chosen))


def write(
  study: study_file.Study,
  rows: Sequence[results.Row],
  found: Sequence[results.Result],
  folder: pathlib.Path,
  *,
  image_kind: str = 'png',
) -> None:
  """Writes results.csv, the table, the figures and the page."""
  from experiments.stackoverflow.study import page  # matplotlib is slow to load.

  results.write_csv(folder / 'results.csv', study, found)
  durable.write_durably(folder / 'table.txt', (table.text(rows) + '\n').encode())
  durable.write_durably(folder / 'table.md', table.markdown(study, rows).encode())
  images = {}
  for name, figure in drawn(study, rows, found, folder).items():
    images[name] = figure('png')
    shown = images[name] if image_kind == 'png' else figure(image_kind)
    durable.write_durably(folder / f'{name}.{image_kind}', shown)
  text = page.study_page(study, rows, images=images, facts=facts(study, found))
  durable.write_durably(folder / 'study.html', text.encode())


def drawn(
  study: study_file.Study,
  rows: Sequence[results.Row],
  found: Sequence[results.Result],
  folder: pathlib.Path,
) -> dict[str, Callable[[str], bytes]]:
  """Returns the figures that there is something to draw for.

  Args:
    study, rows, found: the study and its results.
    folder: folder with its runs.

  Returns:
    A function from a kind of image to its content, by name.
  """
  from experiments.stackoverflow.study import difference_figure, figures, noise_figure
  from fl_dpftrl.drawing import style

  made = {
    'accuracy_by_epsilon': figures.accuracy_by_epsilon(study, rows),
    'difference_to_best': difference_figure.difference_to_best(study, rows),
    'accuracy_by_round': figures.accuracy_by_round(study, rows, folder),
    'accuracy_by_rate': figures.accuracy_by_rate(study, found, rows),
    'accuracy_by_noise': noise_figure.accuracy_by_noise(study, rows),
  }
  return {
    name: functools.partial(style.image, figure)
    for name, figure in made.items()
    if figure is not None
  }


def facts(study: study_file.Study, found: Sequence[results.Result]) -> list[tuple[str, str]]:
  """Returns names and values that describe the runs, and what they took."""
  summaries = [result.summary for result in found if result.summary]
  seconds = datetime.timedelta(seconds=round(sum(s['seconds'] for s in summaries)))
  facts = [
    ('runs that have ended', str(len(summaries))),
    ('seeds', ', '.join(map(str, study.seeds))),
    ('time of all rounds (h:min:s), one run after another', str(seconds)),
  ]
  for name, words in (
    ('dataset', 'data set'),
    ('num_parameters', 'model parameters'),
    ('num_devices', 'devices'),
    ('num_rounds', 'rounds'),
    ('report_goal', 'report goal'),
    ('min_sep', 'min-sep of a run'),
    ('delta', 'δ'),
  ):
    values = list(dict.fromkeys(str(s[name]) for s in summaries if name in s))
    if values:
      facts.append((words, messages.one_line(', '.join(values))))
  return facts


def _check_folder(study: study_file.Study, folder: pathlib.Path) -> None:
  """Refuses a folder with another study, or with anything else, in it.

  A study may have been given more settings, rates or seeds since.

  Raises:
    ValueError: naming the folder, and what differs.
  """
  path = folder / STUDY_NAME
  if not path.exists():
    own = {LOCK_NAME, cells_lib.STRATEGIES_NAME, cells_lib.CELLS_NAME, estimate.TIMING_NAME}
    if folder.exists() and any(
      entry.name not in own and not entry.name.startswith(durable.TEMPORARY_PREFIX)
      for entry in folder.iterdir()
    ):
      raise ValueError(f'--output_dir={folder} holds other files; name a new folder')
    return
  before = json_files.read(path)
  now = json.loads(json.dumps(dataclasses.asdict(study)))
  try:
    differing = [name for name in ('flags', 'epsilon_of') if before[name] != now[name]]
    same = {_key(setting): _content(setting) for setting in before['settings']}
  except (KeyError, TypeError):
    raise ValueError(f'{path} is not of a study; name a new folder') from None
  for setting in now['settings']:
    if same.get(_key(setting), _content(setting)) != _content(setting):
      differing.append(f'setting {_key(setting)}')
  if differing:
    raise ValueError(
      f'--output_dir={folder} holds a study that differs in'
      f' {messages.one_line(", ".join(differing), limit=120)}; name another folder'
    )


def _key(setting: Mapping) -> str:
  """Returns what names a setting within a study."""
  label = (setting['mechanism'] or {}).get('label', study_file.NO_NOISE)
  return f'{label} {setting["epsilon"]}'


def _content(setting: Mapping) -> list:
  """Returns the fields of a setting that must not change once it has runs."""
  return [setting[name] for name in _FIXED]


@contextlib.contextmanager
def _held(folder: pathlib.Path):
  """Holds the folder; one that was made for nothing is gone again.

  Raises:
    ValueError: where another process holds it.
  """
  lock = folder / LOCK_NAME
  with durable.exclusive(lock):
    for written in (folder, folder / cells_lib.STRATEGIES_NAME):
      durable.remove_leftovers(written)
    try:
      yield
    finally:
      with contextlib.suppress(OSError):
        for empty in (cells_lib.STRATEGIES_NAME, cells_lib.CELLS_NAME):
          os.rmdir(folder / empty)
      if {entry.name for entry in folder.iterdir()} == {LOCK_NAME}:
        lock.unlink()
        with contextlib.suppress(OSError):
          folder.rmdir()
