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
    outcomes: evaluations of the run without noise, and of the one with noise.
    statement: what the log of the run with noise proves.
    files: what each file is → its path.
  """
  (_, free), (label, noisy) = outcomes.items()
  worst, percent = statement.worst_case, lambda outcome: f'{100 * outcome["accuracy"]:.2f} %'
  shown = lambda outcome: f'{outcome["perplexity"]:8.2f} {percent(outcome):>12}'
  lines = [
    (f'Held out: {len(task.held_out)} ({task.units.source})', 'perplexity   next token'),
    ('  before, as pretrained', shown(before)),
    ('  without noise', shown(free)),
    (f'  with {label} noise', shown(noisy)),
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
      f'{label}, noise multiplier σ = {roundings.up(worst.noise_multiplier)}, sensitivity'
      f' {roundings.up(worst.sensitivity)} ({worst.sensitivity_kind.replace("_", " ")})',
    ),
    (
      'Guarantee of this run',
      f'ρ = {roundings.up(statement.headline.guarantee.rho)}, {statement.quoted} (zero-out'
      ' adjacency)',
    ),
    *((name, str(path)) for name, path in files.items()),
    ('Check it', publication.command_of_folder(files['Participation log'].parent, train.DELTA)),
  ]
  width = max(len(name) for name, _ in lines) + 2
  texts = [f'{name:<{width}}{text}' for name, text in lines]
  for name, outcome in (('before', before), (f'with {label} noise', noisy)):
    texts.append(f'Continuations of "{task.units.prompt}", {name}:')
    texts += ['  ' + messages.one_line(text, limit=120) for text in outcome['continuations']]
  return '\n'.join(texts)


def draw(
  path: pathlib.Path, before: Outcome, outcomes: Mapping[str, Outcome], guarantee: str
) -> None:
  """Draws held-out perplexity before training, without noise, and with noise, as PNG."""
  (_, free), (label, noisy) = outcomes.items()
  bars = {'before': before, f'{label} noise\n{guarantee}': noisy, 'no noise': free}
  heights = [outcome['perplexity'] for outcome in bars.values()]
  colours = [style.LIGHT, *(looks['color'] for looks in style.looks({label: label}).values())]
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
