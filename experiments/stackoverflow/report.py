"""The plot and summary of a finished run, beside the trainer's report."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import fl_dpftrl as dpftrl
from experiments import secret_twins
from experiments.stackoverflow import configuration, datasets
from fl_dpftrl.logs import ledger_format
from fl_dpftrl.prove.reports import registry_entry
from fl_dpftrl.support import metrics
from fl_dpftrl.support.files import durable, json_files
from fl_dpftrl.support.text import messages, roundings

_LONGEST = 1000  # characters of a line


def write(
  trained: dpftrl.Trained,
  flags: Mapping[str, Any],
  dataset: datasets.Dataset,
  *,
  test: Mapping[str, float],
  start_accuracy: float | None,
  remembered: Mapping[str, Any] | None,
  compare_with: pathlib.Path | None,
  figures: str,
) -> str:
  """Writes the plot and summary.json of a run; returns a summary for people.

  Args:
    trained: what the trainer returned.
    flags: flags of the run, as hparams.json has them.
    dataset: data of the run.
    test: metrics of the model on test data.
    start_accuracy: test accuracy before the first round; None for random weights.
    remembered: how well twins of secrets are told apart; None without made-up people.
    compare_with: folder of the same run without noise; None if it is not known.
    figures: kind of the plot.
  """
  from fl_dpftrl.support import style  # Loads matplotlib.

  without_noise = accuracy_without_noise(flags, compare_with)
  compared = {
    'without noise': without_noise,
    'public start' if flags['public_epochs'] else 'start': start_accuracy,
    style.plain(f'always "{dataset.unigram_word}"'): dataset.unigram_accuracy,
  }
  plot = trained.folder / f'accuracy.{figures}'
  trained.plot(
    plot,
    label='next-word accuracy',
    test_accuracy=test['accuracy'],
    others={name: found for name, found in compared.items() if isinstance(found, float)},
  )
  lines = _accuracies(trained, flags, dataset, test['accuracy'], start_accuracy, without_noise)
  if (diverged := trained.diverged_since(test)) is not None:
    words = f'measurements are not finite from round {diverged} on; smaller learning rates may do.'
    lines.insert(0, ('THE RUN DIVERGED', f'{words} The guarantee below holds all the same'))
  lines += [*_proof(trained, flags['secrets']), ('Plot', str(plot))]
  if remembered is not None:
    results = {'with noise' if flags['noise_multiplier'] else 'without noise': remembered}
    if flags['noise_multiplier'] and isinstance(without_noise, float):
      summary = json_files.read(compare_with / configuration.SUMMARY_NAME)
      results = {'without noise': summary['secrets_remembered'], **results}
    lines += [(f'Secrets {label}', secret_twins.words(r)) for label, r in results.items()]
    secret_twins.draw(path := trained.folder / f'secrets.{figures}', results)
    lines.append(('  plot', str(path)))
  lines += [
    ('Participation log', str(trained.folder / ledger_format.NAME)),
    ('Every round', str(trained.folder / metrics.NAME)),
    ('Check it', trained.setting.command),
  ]
  content = {
    **flags,
    **trained.summary(test),
    'dataset_digest': dataset.digest or None,
    'start_accuracy': start_accuracy,
    'unigram_accuracy': dataset.unigram_accuracy,
    'secrets_remembered': remembered,
  }
  text = json.dumps(content, indent=2, allow_nan=False, default=str)
  durable.write_durably(
    trained.folder / configuration.SUMMARY_NAME, (text + '\n').encode(), private=True
  )
  facts = {'name': f'Next words: {flags["dataset"]}', 'data_domain': dataset.licence}
  entry = registry_entry.write_entry(
    trained.folder / 'registry.json', trained.statement, facts, model=trained.folder / 'model.npz'
  )
  registry_entry.write_card(trained.folder / 'README.md', entry, 'registry.json')
  width = max(len(name) for name, _ in lines) + 2
  return '\n'.join(
    f'{name:<{width}}{messages.one_line(text, limit=_LONGEST)}' for name, text in lines
  )


def _accuracies(
  trained: dpftrl.Trained,
  flags: Mapping[str, Any],
  dataset: datasets.Dataset,
  accuracy: float,
  start_accuracy: float | None,
  without_noise: float | str,
) -> list[tuple[str, str]]:
  """Returns lines on the model's accuracy, and what it is compared with."""
  percent = lambda accuracy: f'{100 * accuracy:.2f} %'
  unigram = f'{percent(dataset.unigram_accuracy)}, always saying "{dataset.unigram_word}"'
  lines = [
    (f'Next-word accuracy, test ({flags["dataset"]})', percent(accuracy)),
    ('  unigram baseline', unigram),
  ]
  if start_accuracy is not None:
    whence = 'only public text' if flags['public_epochs'] else flags['initial_weights']
    lines.append(('  before the first round', f'{percent(start_accuracy)}, {whence}'))
  if flags['private_metrics']:
    mean = trained.metrics()['accuracy']
    margin = f'± {196 * mean.stddev:.2f}, released with noise, within ε'
    lines.append(('  of clients as they trained', f'{100 * mean.value:.2f} % {margin}'))
  if dataset.best_accuracy is not None:
    lines.append(('  best possible', percent(dataset.best_accuracy)))
  if flags['noise_multiplier']:
    text = without_noise
    if not isinstance(text, str):
      # Of the figures as they are shown, so that they add up.
      without, own = round(100 * without_noise, 2), round(100 * accuracy, 2)
      text = f'{without:.2f} %: the noise cost {without - own:.2f} points'
    lines.append(('  the same run without noise', text))
  return lines


def _proof(trained: dpftrl.Trained, num_made_up: int) -> list[tuple[str, str]]:
  """Returns lines on the model, the noise, and what the log proves."""
  statement, worst = trained.statement, trained.statement.worst_case
  claim, kind = statement.runs[0].claim, worst.sensitivity_kind.replace('_', ' ')
  guarantee = f'none: {trained.void_reason}'
  if trained.void_reason is None:
    rho = roundings.up(statement.headline.guarantee.rho)
    guarantee = f'ρ = {rho}, {statement.quoted} (zero-out adjacency)'
  lines = [
    ('Model', f'{trained.num_parameters:,} parameters'),
    (
      'Participation, from the log',
      f'{statement.num_participations:,} times, by'
      f' {statement.num_devices:,} of {trained.setting.population + num_made_up:,} devices'
      + (f', {num_made_up} of them made-up people with secrets' if num_made_up else ''),
    ),
    (
      '  rounds n, most per device k, min-sep b',
      f'{statement.num_rounds}, {statement.max_participations}, {statement.min_sep}',
    ),
    (
      'Noise',
      f'{claim.strategy.family}, noise multiplier σ = {roundings.up(claim.noise_multiplier)},'
      f' sensitivity {roundings.up(worst.sensitivity)} ({kind})',
    ),
    ('Guarantee of this run', guarantee),
  ]
  if trained.setting.burnt_rounds:
    lines.append(('  burnt rounds, counted', ', '.join(map(str, trained.setting.burnt_rounds))))
  for name, what in (('privacy.html', 'Report'), ('privacy.json', '  its figures')):
    lines.append((what, str(trained.folder / name)))
  return lines


def accuracy_without_noise(flags: Mapping[str, Any], folder: pathlib.Path | None) -> float | str:
  """Returns the test accuracy of the run that differs only in its noise, or why not."""
  if folder is None:
    return 'not known; name its folder with --compare_with'
  try:
    other = dict(json_files.read(folder / configuration.HPARAMS_NAME))
    accuracy = json_files.read(folder / configuration.SUMMARY_NAME)['test']['accuracy']
    accuracy = accuracy if accuracy is None else float(accuracy)
  except (OSError, ValueError, KeyError, TypeError):
    return f'not known; no finished run in {folder}'
  if accuracy is None:
    return f'not known; the run in {folder} diverged'
  noise = ('noise_multiplier', 'epsilon', 'mechanism', 'strategy', 'zeroing_norm', 'noise_seed')
  differing = [name for name in flags if name not in noise and flags[name] != other.get(name)]
  if differing or other.get('noise_multiplier'):
    return f'not known; {folder} differs in {", ".join(differing) or "noise"}'
  return accuracy
