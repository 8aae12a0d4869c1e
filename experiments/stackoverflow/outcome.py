"""The report, plot and summary of a finished run."""

import dataclasses
import json
import math
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from experiments.stackoverflow import (
  bundle,
  configuration,
  datasets,
  plot,
  setting,
  summary,
  weights,
)
from fl_dpftrl import files, json_files, messages, participation, rounding
from fl_dpftrl.accounting import gaussian, privacy_loss
from fl_dpftrl.auditing import one_run
from fl_dpftrl.comparison import style
from fl_dpftrl.families import base
from fl_dpftrl.learning import checkpoints, loop, metrics
from fl_dpftrl.logs import canaries as canary_ids
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import noise_record, shards
from fl_dpftrl.replaying import replay as replay_lib
from fl_dpftrl.replaying import runs
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.reports import privacy

AUDIT_NAME = 'audit.json'
_LONGEST = 1000  # characters of a line
_COUNTS = ('clipped_count', 'zeroed_count', 'rejected_count')  # exact, unless clipping adapts
NO_NOISE = 'noise is off (noise_multiplier 0)'
NOISE_SEED = 'the noise seed was given, so whoever knows it can remove the noise'


def void_reason(hparams: configuration.Hparams) -> str | None:
  """Why a run with these flags guarantees nothing, if it does not."""
  if not hparams.noise_multiplier:
    return NO_NOISE
  return None if hparams.noise_seed is None else NOISE_SEED


def log_metadata(hparams: configuration.Hparams, strategy: base.Strategy) -> dict[str, str]:
  """Returns the log's metadata about the run, apart from participation."""
  metadata = noise_record.run_metadata(
    strategy, hparams.noise_multiplier, clip_norm=setting.clip_norm(hparams)
  ) | canary_ids.metadata(hparams.canaries or 0)
  reason = void_reason(hparams)
  if reason is not None:
    metadata[shards.VOID_KEY] = reason
  return metadata


def deployment(
  hparams: configuration.Hparams,
  num_devices: int,
  strategy: base.Strategy,
  schema: participation.MinSep,
) -> privacy.Deployment | None:
  """The guarantee of a larger deployment with this run's noise per device.

  A run of more devices a round, with as much more noise on the sum and the same
  participation of each device, has the same noise on the mean.
  """
  goal = hparams.deployment_report_goal
  if goal is None or void_reason(hparams) == NO_NOISE:
    return None
  ratio = goal / hparams.report_goal
  guarantee = gaussian.account(
    strategy, schema, noise_multiplier=hparams.noise_multiplier * ratio, delta=hparams.delta
  )
  return privacy.Deployment(
    report_goal=goal,
    population=round(num_devices * ratio),
    noise_multiplier=guarantee.noise_multiplier,
    sensitivity=guarantee.sensitivity,
    rho=guarantee.rho,
    epsilon=guarantee.epsilon,
    delta=guarantee.delta,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """Everything about a finished run that its report and summary say."""

  hparams: configuration.Hparams
  folder: pathlib.Path
  dataset: datasets.Dataset
  strategy: base.Strategy
  num_devices: int
  num_parameters: int
  table: metrics.MetricsTable
  last: checkpoints.Checkpoint
  test: dict[str, float]
  statement: statement_lib.Statement
  hypothetical: privacy.Deployment | None
  compare_with: pathlib.Path | None
  audit: one_run.OneRunAudit | None = None
  figures: str = 'png'

  @property
  def audited(self) -> dict[str, Any]:
    """Empirical figures, and the proven ε beside them; empty without canaries."""
    if self.audit is None:
      return {}
    proven = None if void_reason(self.hparams) else self.statement.worst_case.epsilon
    contradicts = self.audit.contradicts(proven)
    return {**self.audit.figures(), 'proven_epsilon': proven, 'contradicts_proof': contradicts}


def write(folder: pathlib.Path, *, hparams: configuration.Hparams, **facts: Any) -> str:
  """Replays the log, writes the report, plot and summary; returns the latter.

  Args:
    folder: of the run.
    hparams: its flags.
    **facts: the other facts of an `Outcome`.
  """
  log = log_lib.read_log(folder / loop.LOG_NAME)
  declared = setting.declared_schema(hparams)
  if declared is not None:  # A run whose budget was spent has fewer rounds.
    declared = dataclasses.replace(declared, num_rounds=log.num_rounds)
  run = runs.Run.of(
    log, facts['strategy'], noise_multiplier=hparams.noise_multiplier, declared_schema=declared
  )
  statement = replay_lib.replay(run, deltas=hparams.delta)
  outcome = Outcome(
    folder=folder,
    hparams=hparams,
    statement=statement,
    hypothetical=deployment(
      hparams,
      facts['num_devices'],
      facts['strategy'],
      participation.MinSep(
        num_rounds=statement.num_rounds,
        min_sep=statement.min_sep,
        max_participations=statement.max_participations,
      ),
    ),
    **facts,
  )
  _write_json(folder / 'privacy.json', statement.to_json())
  if outcome.audit is not None:
    content = {**outcome.audited, **outcome.audit.to_json()}
    _write_json(folder / AUDIT_NAME, content)
  privacy.write_report(folder / 'privacy.html', statement, setting=_report_setting(outcome))
  without_noise = _without_noise(outcome)
  plot.accuracy_plot(
    folder / f'accuracy.{outcome.figures}',
    title=(
      f'{style.plain(outcome.dataset.name)}: {outcome.strategy.family}, σ ='
      f' {rounding.up(hparams.noise_multiplier)}, n ='
      f' {statement.num_rounds}, k = {statement.max_participations},'
      f' b = {statement.min_sep}'
    ),
    without_noise=(None if isinstance(without_noise, str) else without_noise),
    accuracy=outcome.table.column('validation/accuracy'),
    epsilon=outcome.table.column('epsilon'),
    days=outcome.table.column('simulated_days'),
    baseline=outcome.dataset.unigram_accuracy,
    test_accuracy=outcome.test['accuracy'],
    delta=hparams.delta,
  )
  _write_json(
    folder / summary.NAME,
    summary.content(
      hparams,
      facts['strategy'],
      statement,
      table=outcome.table,
      test=outcome.test,
      other={
        'dataset_digest': outcome.dataset.digest or None,
        'num_devices': outcome.num_devices,
        'unigram_accuracy': outcome.dataset.unigram_accuracy,
        'num_parameters': outcome.num_parameters,
        'burnt_rounds': list(outcome.last.burnt),
        'diverged_since_round': diverged_since(outcome.table, outcome.test),
        'hypothetical_deployment': outcome.hypothetical and vars(outcome.hypothetical),
        'void_reason': void_reason(hparams),
        **({'audit': outcome.audited} if outcome.audit else {}),
      },
    ),
  )
  weights.write(folder / weights.NAME, outcome.last.state.global_model_weights.trainable)
  # Of a void guarantee there is nothing to check.
  told = () if void_reason(hparams) else bundle.write(folder, run, delta=hparams.delta)
  return _summary(outcome, told)


def diverged_since(table: metrics.MetricsTable, test: dict[str, float]) -> int | None:
  """The first round with a measurement that is not finite; None without one.

  Where only the test measurements are not finite, it is the last round.
  """
  first = table.first_not_finite()
  if first is None and not all(map(math.isfinite, test.values())):
    first = max(table.rounds, default=0)
  return first


def _write_json(path: pathlib.Path, content: Any) -> None:
  """Writes figures that only the owner of the folder may read: all have counts of devices."""
  text = json.dumps(content, indent=2, allow_nan=False, default=str)
  files.write_durably(path, (text + '\n').encode(), private=True)


def replay_command(hparams: configuration.Hparams, folder: pathlib.Path) -> str:
  """The command that gives the figures of this run's report again."""
  program = pathlib.Path(sys.executable).with_name('fl-dpftrl')
  words = [
    os.path.relpath(program) if program.exists() else 'fl-dpftrl',
    'replay',
    f'--log={folder / loop.LOG_NAME}',
    f'--strategy={folder / setting.STRATEGY_NAME}',
    f'--noise_multiplier={hparams.noise_multiplier}',
    f'--delta={hparams.delta}',
  ]
  if hparams.timer_rounds is not None:
    words.append(f'--declared_min_sep={hparams.timer_rounds}')
  return shlex.join(words)


def _total(table: metrics.MetricsTable, name: str) -> int:
  return int(sum(table.column(f'aggregator/{name}').values()))


def _report_setting(outcome: Outcome) -> privacy.Setting:
  hparams, table = outcome.hparams, outcome.table
  return privacy.Setting(
    run=outcome.folder.name,
    dataset=f'{hparams.dataset}: {outcome.dataset.licence}',
    unit=outcome.dataset.unit,
    strategy=hparams.strategy or f'{outcome.strategy.family}, optimised',
    family=outcome.strategy.family,
    noise_multiplier=hparams.noise_multiplier,
    clip_norm=hparams.clip_norm,
    zeroing_norm=hparams.zeroing_norm,
    report_goal=hparams.report_goal,
    population=outcome.num_devices,
    command=replay_command(hparams, outcome.folder),
    void_reason=void_reason(hparams),
    hypothetical=outcome.hypothetical,
    **({} if hparams.clip_quantile else {name: _total(table, name) for name in _COUNTS}),
    burnt_rounds=outcome.last.burnt,
    audit=outcome.audit,
  )


def _summary(outcome: Outcome, of_bundle: Sequence[tuple[str, str]]) -> str:
  hparams, statement = outcome.hparams, outcome.statement
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
  diverged = diverged_since(outcome.table, outcome.test)
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
    ('Model', f'{outcome.num_parameters:,} parameters'),
    (
      'Participation, from the log',
      f'{statement.counted.num_participations:,} by'
      f' {statement.counted.num_devices:,} of {outcome.num_devices:,} devices',
    ),
    (
      '  rounds n, most per device k, min-sep b',
      f'{statement.num_rounds}, {statement.max_participations}, {statement.min_sep}',
    ),
    (
      'Noise',
      f'{outcome.strategy.family}, noise multiplier σ ='
      f' {rounding.up(hparams.noise_multiplier)}, sensitivity'
      f' {rounding.up(worst.sensitivity)}'
      f' ({worst.sensitivity_kind.replace("_", " ")})',
    ),
    ('Guarantee of this run', _guarantee(hparams, worst)),
  ]
  if outcome.audit is not None:
    lines.append(('  empirical, from canaries', _empirical(outcome)))
  if outcome.last.burnt:
    lines.append(('  burnt rounds, counted', ', '.join(str(r) for r in outcome.last.burnt)))
  if outcome.hypothetical is not None:
    other = outcome.hypothetical
    lines.append(
      (
        '  hypothetical deployment',
        f'report goal {other.report_goal:,}, population'
        f' {other.population:,}, σ ='
        f' {rounding.up(other.noise_multiplier)}: ρ ='
        f' {rounding.up(other.rho)}, ε = {rounding.up(other.epsilon)}',
      )
    )
  for name, what in (
    ('privacy.html', 'Report'),
    ('privacy.json', '  its figures'),
    (f'accuracy.{outcome.figures}', 'Plot'),
    (loop.LOG_NAME, 'Participation log'),
    ('metrics.csv', 'Every round'),
  ):
    lines.append((what, str(outcome.folder / name)))
  lines += of_bundle
  lines.append(('Check it', replay_command(hparams, outcome.folder)))
  width = max(len(name) for name, _ in lines) + 2
  return '\n'.join(
    f'{name:<{width}}{messages.one_line(text, limit=_LONGEST)}' for name, text in lines
  )


def _guarantee(hparams: configuration.Hparams, worst: privacy_loss.PrivacyLoss) -> str:
  reason = void_reason(hparams)
  if reason is not None:
    return f'none: {reason}'
  return (
    f'ρ = {rounding.up(worst.rho)}, ε ='
    f' {rounding.up(worst.epsilon)} at δ ='
    f' {rounding.exact(hparams.delta)} (zero-out adjacency)'
  )


def _empirical(outcome: Outcome) -> str:
  audit = outcome.audit
  low, claimed = rounding.down(audit.lower_bound_epsilon), audit.claimed_epsilon
  text = (
    f'ε ≈ {rounding.down(audit.epsilon)}, at least {low} with confidence {audit.confidence:g}, from'
    f' {audit.num_canaries} canaries of this one run: an estimate, no guarantee'
  )
  if claimed is not None:
    text += f'; the noise gives the most exposed canary ε = {rounding.up(claimed)}'
  if outcome.audited['contradicts_proof']:
    text = f'THE CANARIES CONTRADICT THE PROOF: {text}'
  return text


def _cost_of_noise(outcome: Outcome) -> str:
  other = _without_noise(outcome)
  if isinstance(other, str):
    return other
  # Of the figures as they are shown, so that they add up.
  without, own = round(100 * other, 2), round(100 * outcome.test['accuracy'], 2)
  return f'{without:.2f} %: the noise cost {without - own:.2f} points'


def _without_noise(outcome: Outcome) -> float | str:
  """Test accuracy of the run that differs in its noise alone, or why not."""
  folder = outcome.compare_with
  if folder is None:
    return 'not known; name its folder with --compare_with'
  try:
    other = dict(json_files.read(folder / configuration.HPARAMS_NAME))
    accuracy = float(json_files.read(folder / summary.NAME)['test']['accuracy'])
  except (OSError, ValueError, KeyError, TypeError):
    return f'not known; no finished run in {folder}'
  if accuracy is None:
    return f'not known; the run in {folder} diverged'
  own = outcome.hparams.to_json()
  noise = ('noise_multiplier', 'mechanism', 'strategy', 'zeroing_norm')
  differing = [
    key
    for key in own
    if key not in (*noise, 'noise_seed', 'deployment_report_goal') and own[key] != other.get(key)
  ]
  if differing or other.get('noise_multiplier'):
    return f'not known; {folder} differs in {", ".join(differing) or "noise"}'
  return accuracy
