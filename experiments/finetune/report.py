"""The table of a fine-tuned model."""

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.finetune import train
from fl_dpftrl.prove.replaying import publication, statements
from fl_dpftrl.support.text import roundings

Outcome = Mapping[str, Any]


def table(
  task: train.Task,
  before: Outcome,
  outcomes: Mapping[str, Outcome],
  statement: statements.Statement,
  files: Mapping[str, pathlib.Path],
) -> str:
  """Returns the summary of the runs: held-out quality, participation, noise and ε.

  Args:
    before: evaluation of the pretrained model.
    outcomes: evaluations of the runs by name; the last one has noise.
    statement: what the log of the run with noise proves.
    files: what each file is → its path.
  """
  *_, noisy = outcomes.values()
  worst, percent = statement.worst_case, lambda outcome: f'{100 * outcome["accuracy"]:.2f} %'
  shown = lambda outcome: f'{outcome["perplexity"]:8.2f} {percent(outcome):>12}'
  lines = {
    f'Held out: {len(task.held_out_tokens)} ({task.units.source})': 'perplexity   next token',
    '  before, as pretrained': shown(before),
    **{f'  {name}': shown(outcome) for name, outcome in outcomes.items()},
    'Model': f'{task.model.num_parameters:,} parameters frozen, {task.model.zeros.size:,} trained',
    'Participation, from the log': f'{statement.num_participations} times, by'
    f' {statement.num_devices} of {len(task.names)}, each {task.units.unit}',
    '  rounds n, most per unit k, min-sep b': f'{statement.num_rounds},'
    f' {statement.max_participations}, {statement.min_sep}',
    'Noise': f'{task.settings.mechanism}, noise multiplier σ ='
    f' {roundings.up(worst.noise_multiplier)}, sensitivity {roundings.up(worst.sensitivity)}'
    f' ({worst.sensitivity_kind.replace("_", " ")})',
    'Guarantee of this run': f'ρ = {roundings.up(statement.headline.guarantee.rho)},'
    f' {statement.quoted} (zero-out adjacency)',
    **files,
    'Check it': publication.command_of_folder(
      files['Participation log'].parent, task.settings.delta
    ),
  }
  width = max(map(len, lines)) + 2
  texts = [f'{name:<{width}}{text}' for name, text in lines.items()]
  if not noisy['perplexity'] < before['perplexity']:  # Also where it is no number.
    texts.append(
      'The model is worse than before training: do not use it. More people or a larger ε have less'
      ' noise; see `Noise to signal` of --dry_run'
    )
  return '\n'.join(texts)
