"""The table and the figure of a fine-tuned model."""

import pathlib
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.finetune import train
from fl_dpftrl.prove.replaying import publication, statements
from fl_dpftrl.support import style
from fl_dpftrl.support.files import durable
from fl_dpftrl.support.text import messages, roundings

Outcome = Mapping[str, Any]


def table(
  task: train.Task,
  before: Outcome,
  outcomes: Mapping[str, Outcome],
  statement: statements.Statement,
  files: Mapping[str, pathlib.Path],
) -> str:
  """Returns the summary of the runs: held-out quality, participation, noise, ε, continuations.

  Args:
    before: evaluation of the pretrained model.
    outcomes: evaluations of the runs by name; the last one has noise.
    statement: what the log of the run with noise proves.
    files: what each file is → its path.
  """
  label, noisy = list(outcomes.items())[-1]
  worst, percent = statement.worst_case, lambda outcome: f'{100 * outcome["accuracy"]:.2f} %'
  shown = lambda outcome: f'{outcome["perplexity"]:8.2f} {percent(outcome):>12}'
  lines = [
    (f'Held out: {len(task.held_out_tokens)} ({task.units.source})', 'perplexity   next token'),
    ('  before, as pretrained', shown(before)),
    *((f'  {name}', shown(outcome)) for name, outcome in outcomes.items()),
    (
      'Model',
      f'{task.model.num_parameters:,} parameters frozen, {task.model.zeros.size:,} trained',
    ),
    (
      'Participation, from the log',
      f'{statement.num_participations} times, by {statement.num_devices} of {len(task.names)}, each'
      f' {task.units.unit}',
    ),
    (
      '  rounds n, most per unit k, min-sep b',
      f'{statement.num_rounds}, {statement.max_participations}, {statement.min_sep}',
    ),
    (
      'Noise',
      f'{task.settings.mechanism}, noise multiplier σ = {roundings.up(worst.noise_multiplier)},'
      f' sensitivity {roundings.up(worst.sensitivity)}'
      f' ({worst.sensitivity_kind.replace("_", " ")})',
    ),
    (
      'Guarantee of this run',
      f'ρ = {roundings.up(statement.headline.guarantee.rho)}, {statement.quoted} (zero-out'
      ' adjacency)',
    ),
    *((name, str(path)) for name, path in files.items()),
    (
      'Check it',
      publication.command_of_folder(files['Participation log'].parent, task.settings.delta),
    ),
  ]
  width = max(len(name) for name, _ in lines) + 2
  texts = [f'{name:<{width}}{text}' for name, text in lines]
  for name, outcome in (('before', before), (label, noisy)):
    texts.append(f'Continuations of "{task.units.prompt}", {name}:')
    texts += ['  ' + messages.one_line(text, limit=120) for text in outcome['continuations']]
  if noisy['perplexity'] >= before['perplexity']:
    texts.append(
      'The model is worse than before training: do not use it. More people or a larger ε have less'
      ' noise; see `Noise to signal` of --dry_run'
    )
  return '\n'.join(texts)


def draw(
  path: pathlib.Path, before: Outcome, outcomes: Mapping[str, Outcome], guarantee: str
) -> None:
  """Draws held-out perplexity before training, with noise, and without if there is it, as PNG."""
  label, noisy = list(outcomes.items())[-1]
  free = list(outcomes.items())[:-1]
  bars = {'before': before, f'{label}\n{guarantee}': noisy, **dict(free)}
  heights = [outcome['perplexity'] for outcome in bars.values()]
  kind = label.split()[1]
  colours = [style.LIGHT, *(looks['color'] for looks in style.looks({kind: kind}).values())]
  figure = Figure(figsize=(5.2, 2.4), layout='constrained')
  axes = figure.subplots()
  style.dress(axes)
  axes.grid(visible=False, axis='y')
  drawn = axes.barh(list(bars), heights, color=[*colours, style.GREY], height=0.6)
  axes.bar_label(drawn, [f'{height:.1f}' for height in heights], padding=4)
  axes.set_xlim(0, 1.12 * max(heights))
  axes.set_xlabel('perplexity of held-out text (lower is better)')
  axes.invert_yaxis()
  durable.write_durably(path, style.image(figure, 'png'))
