"""The plot and summary of a finished run, beside the trainer's report."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping

import fl_dpftrl as dpftrl
from experiments.stackoverflow import configuration, datasets
from fl_dpftrl import metrics
from fl_dpftrl.files import durable, json_files
from fl_dpftrl.logs import ledger_format
from fl_dpftrl.reports import settings
from fl_dpftrl.text import messages, roundings

_LONGEST = 1000  # characters of a line


def setting(
  hparams: configuration.Hparams, dataset: datasets.Dataset, family: str
) -> settings.Setting:
  """Returns what the report of a run says beyond its log."""
  return settings.Setting(
    dataset=f'{hparams.dataset}: {dataset.licence}',
    unit=dataset.unit,
    strategy=hparams.strategy or f'{family}, optimised',
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """A finished run, as its plot and summary show it.

  Attributes:
    start_accuracy: test accuracy before the first round; None for random weights.
    compare_with: folder of the same run without noise; None if it is not known.
    figures: kind of the plot.
  """

  trained: dpftrl.Trained
  hparams: configuration.Hparams
  dataset: datasets.Dataset
  test: Mapping[str, float]
  start_accuracy: float | None
  compare_with: pathlib.Path | None
  figures: str = 'png'


def write(outcome: Outcome) -> str:
  """Writes the plot and summary.json of a run; returns a summary for people."""
  from fl_dpftrl import style  # Loads matplotlib.

  trained, hparams, dataset = outcome.trained, outcome.hparams, outcome.dataset
  compared = {
    'without noise': _without_noise(outcome),
    'public start' if hparams.public_epochs else 'start': outcome.start_accuracy,
    style.plain(f'always "{dataset.unigram_word}"'): dataset.unigram_accuracy,
  }
  trained.plot(
    trained.folder / f'accuracy.{outcome.figures}',
    label='next-word accuracy',
    test_accuracy=outcome.test['accuracy'],
    others={name: found for name, found in compared.items() if isinstance(found, float)},
  )
  content = {
    **hparams.to_json(),
    **trained.summary(outcome.test),
    'dataset_digest': dataset.digest or None,
    'start_accuracy': outcome.start_accuracy,
    'unigram_accuracy': dataset.unigram_accuracy,
  }
  text = json.dumps(content, indent=2, allow_nan=False, default=str)
  durable.write_durably(
    trained.folder / configuration.SUMMARY_NAME, (text + '\n').encode(), private=True
  )
  return _summary(outcome)


def _summary(outcome: Outcome) -> str:
  hparams, trained = outcome.hparams, outcome.trained
  statement, setting, folder = trained.statement, trained.setting, trained.folder
  worst = statement.worst_case
  percent = lambda accuracy: f'{100 * accuracy:.2f} %'
  lines = [
    (f'Next-word accuracy, test ({hparams.dataset})', percent(outcome.test['accuracy'])),
    (
      '  unigram baseline',
      f'{percent(outcome.dataset.unigram_accuracy)}, always saying'
      f' "{outcome.dataset.unigram_word}"',
    ),
  ]
  if outcome.start_accuracy is not None:
    whence = 'only public text' if hparams.public_epochs else hparams.initial_weights
    lines.append(('  before the first round', f'{percent(outcome.start_accuracy)}, {whence}'))
  if hparams.private_metrics:
    mean = trained.metrics()['accuracy']
    margin = f'± {196 * mean.stddev:.2f}, released with noise, within ε'
    lines.append(('  of clients as they trained', f'{100 * mean.value:.2f} % {margin}'))
  diverged = trained.diverged_since(outcome.test)
  if diverged is not None:
    lines.insert(
      0,
      (
        'THE RUN DIVERGED',
        f'measurements are not finite from round {diverged} on; smaller learning'
        ' rates may do. The guarantee below holds all the same',
      ),
    )
  if outcome.dataset.best_accuracy is not None:
    lines.append(('  best possible', percent(outcome.dataset.best_accuracy)))
  if hparams.noise_multiplier:
    lines.append(('  the same run without noise', _cost_of_noise(outcome)))
  lines += [
    ('Model', f'{trained.num_parameters:,} parameters'),
    (
      'Participation, from the log',
      f'{statement.num_participations:,} times, by'
      f' {statement.num_devices:,} of {setting.population:,} devices',
    ),
    (
      '  rounds n, most per device k, min-sep b',
      f'{statement.num_rounds}, {statement.max_participations}, {statement.min_sep}',
    ),
    (
      'Noise',
      f'{statement.runs[0].claim.strategy.family}, noise multiplier σ ='
      f' {roundings.up(hparams.noise_multiplier)}, sensitivity'
      f' {roundings.up(worst.sensitivity)}'
      f' ({worst.sensitivity_kind.replace("_", " ")})',
    ),
    ('Guarantee of this run', _guarantee(outcome)),
  ]
  if setting.burnt_rounds:
    lines.append(('  burnt rounds, counted', ', '.join(str(r) for r in setting.burnt_rounds)))
  for name, what in (
    ('privacy.html', 'Report'),
    ('privacy.json', '  its figures'),
    (f'accuracy.{outcome.figures}', 'Plot'),
    (ledger_format.NAME, 'Participation log'),
    (metrics.NAME, 'Every round'),
  ):
    lines.append((what, str(folder / name)))
  lines.append(('Check it', setting.command))
  width = max(len(name) for name, _ in lines) + 2
  return '\n'.join(
    f'{name:<{width}}{messages.one_line(text, limit=_LONGEST)}' for name, text in lines
  )


def _guarantee(outcome: Outcome) -> str:
  reason, statement = outcome.trained.void_reason, outcome.trained.statement
  if reason is not None:
    return f'none: {reason}'
  rho = roundings.up(statement.headline.guarantee.rho)
  return f'ρ = {rho}, {statement.quoted} (zero-out adjacency)'


def _cost_of_noise(outcome: Outcome) -> str:
  other = _without_noise(outcome)
  if isinstance(other, str):
    return other
  # Of the figures as they are shown, so that they add up.
  without, own = round(100 * other, 2), round(100 * outcome.test['accuracy'], 2)
  return f'{without:.2f} %: the noise cost {without - own:.2f} points'


def _without_noise(outcome: Outcome) -> float | str:
  """Test accuracy of the run that differs only in its noise, or why not."""
  folder = outcome.compare_with
  if folder is None:
    return 'not known; name its folder with --compare_with'
  try:
    other = dict(json_files.read(folder / configuration.HPARAMS_NAME))
    accuracy = float(json_files.read(folder / configuration.SUMMARY_NAME)['test']['accuracy'])
  except (OSError, ValueError, KeyError, TypeError):
    return f'not known; no finished run in {folder}'
  if accuracy is None:
    return f'not known; the run in {folder} diverged'
  own = outcome.hparams.to_json()
  noise = ('noise_multiplier', 'epsilon', 'mechanism', 'strategy', 'zeroing_norm')
  differing = [
    key for key in own if key not in (*noise, 'noise_seed') and own[key] != other.get(key)
  ]
  if differing or other.get('noise_multiplier'):
    return f'not known; {folder} differs in {", ".join(differing) or "noise"}'
  return accuracy
