"""Files of a finished run: statement, report, model, audit and bundle."""

import dataclasses
import io
import json
import os
import pathlib
import shlex
import shutil
from typing import Any

import numpy as np

from fl_dpftrl.aggregators import factory
from fl_dpftrl.auditing import one_run
from fl_dpftrl.bundles import writing
from fl_dpftrl.files import durable, json_files
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import replay as replay_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.reports import privacy
from fl_dpftrl.training import guarantee, loop, metrics

STATEMENT_NAME = 'privacy.json'
REPORT_NAME = 'privacy.html'
MODEL_NAME = 'model.npz'
AUDIT_NAME = 'audit.json'
BUNDLE_NAME = 'bundle'
_COUNTS = ('clipped_count', 'zeroed_count', 'rejected_count')  # exact, unless clipping adapts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """Facts that the report of a run states beyond its log, noise and aggregator.

  Attributes:
    dataset: training data, and its licence.
    unit: what one device stands for, such as 'a device' or 'a source file'.
    strategy: name or file by which the strategy was given.
    deployment_report_goal: report goal of a hypothetical, larger deployment whose ε is stated.
    program: command line that replays, in the report.
    counts: whether the report has counts of clipped, zeroed and rejected updates.
    short_rounds: whether the statement counts the rounds with fewer devices than the report goal.
  """

  dataset: str | None = None
  unit: str = 'a device'
  strategy: str | None = None
  deployment_report_goal: int | None = None
  program: str = 'fl-dpftrl'
  counts: bool = False
  short_rounds: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """Results that were written of a finished run.

  Attributes:
    statement: replay of the log.
    setting: what the report says beyond it.
    bundle_digest: digest of the bundle; None without one.
  """

  statement: statement_lib.Statement
  setting: privacy.Setting
  bundle_digest: str | None


def write(
  run: loop.TrainingRun,
  aggregator: factory.CorrelatedNoiseFactory,
  *,
  declared: schemas.MinSep | None,
  population: int,
  burnt: tuple[int, ...],
  history: metrics.History,
  description: Description,
  audit: one_run.OneRunAudit | None,
  bundle: bool,
) -> Report:
  """Replays the log, and writes the statement, its report, the audit and the bundle.

  Args:
    run: the finished run.
    aggregator: its aggregator.
    declared: schema that timers enforced, if known.
    population: devices that could take part.
    burnt: rounds whose row of noise was used up without a release.
    history: measurements by round.
    description: what else the report says.
    audit: empirical ε from canaries.
    bundle: whether to write a bundle; there is none of a void guarantee.
  """
  log = log_lib.read_log(run.folder / loop.LOG_NAME)
  if declared is not None:  # A run whose budget was spent has fewer rounds.
    declared = dataclasses.replace(declared, num_rounds=log.num_rounds)
  evidence = guarantee.replayable(aggregator, log, declared)
  goal = aggregator.report_goal if description.short_rounds else None
  statement = replay_lib.replay(evidence, deltas=run.delta, report_goal=goal)
  hypothetical = None
  if description.deployment_report_goal is not None:
    hypothetical = guarantee.deployment(
      aggregator,
      schemas.MinSep(
        num_rounds=statement.num_rounds,
        min_sep=statement.min_sep,
        max_participations=statement.max_participations,
      ),
      report_goal=description.deployment_report_goal,
      population=population,
      delta=run.delta,
    )
  counts: dict[str, Any] = {}
  if description.counts and isinstance(aggregator.clip_norm, float):
    counts = _counts(history)
  setting = privacy.Setting(
    run=run.folder.name,
    dataset=description.dataset,
    unit=description.unit,
    strategy=description.strategy,
    family=aggregator.strategy.family,
    noise_multiplier=aggregator.noise_multiplier,
    clip_norm=aggregator.first_clip_norm,
    zeroing_norm=aggregator.zeroing_norm,
    report_goal=aggregator.report_goal,
    population=population,
    command=replay_command(run, aggregator, declared, description),
    void_reason=run.void_reason,
    hypothetical=hypothetical,
    burnt_rounds=burnt,
    audit=audit,
    **counts,
  )
  write_json(run.folder / STATEMENT_NAME, statement.to_json())
  if audit is not None:
    content = {**audited(statement, setting), **audit.to_json()}
    write_json(run.folder / AUDIT_NAME, content)
  privacy.write_report(run.folder / REPORT_NAME, statement, setting=setting)
  digest = None
  if bundle and run.void_reason is None:  # Of a void guarantee there is nothing to check.
    path = run.folder / BUNDLE_NAME
    if path.exists():  # A bundle of an earlier end of the same run follows from the log, too.
      shutil.rmtree(path)
    digest = writing.write_bundle(path, evidence, deltas=run.delta).digest
  return Report(statement=statement, setting=setting, bundle_digest=digest)


def audited(statement: statement_lib.Statement, setting: privacy.Setting) -> dict[str, Any]:
  """Returns empirical figures, and the proven ε beside them; empty without canaries."""
  if setting.audit is None:
    return {}
  proven = None if setting.void_reason else statement.worst_case.epsilon
  contradicts = setting.audit.contradicts(proven)
  return {**setting.audit.figures(), 'proven_epsilon': proven, 'contradicts_proof': contradicts}


def replay_command(
  run: loop.TrainingRun,
  aggregator: factory.CorrelatedNoiseFactory,
  declared: schemas.MinSep | None,
  description: Description,
) -> str:
  """Returns the command that gives the figures of the report again."""
  words = [
    *(description.program, 'replay'),
    f'--log={run.folder / loop.LOG_NAME}',
    f'--strategy={run.folder / guarantee.STRATEGY_NAME}',
    f'--noise_multiplier={aggregator.noise_multiplier}',
    f'--delta={run.delta}',
  ]
  if declared is not None:
    words.append(f'--declared_min_sep={declared.min_sep}')
  if description.short_rounds:
    words.append(f'--report_goal={aggregator.report_goal}')
  return shlex.join(words)


def write_model(path: str | os.PathLike[str], weights: Any) -> None:
  """Writes a model's weights alone: neither noise nor anything of a device.

  Args:
    path: the .npz file.
    weights: `trainable` and `non_trainable` arrays, named weight0, … and state0, … there.
  """
  arrays = {f'weight{i}': np.asarray(w) for i, w in enumerate(weights.trainable)}
  arrays |= {f'state{i}': np.asarray(w) for i, w in enumerate(weights.non_trainable)}
  content = io.BytesIO()
  np.savez(content, **arrays)
  durable.write_durably(path, content.getvalue())


def write_json(path: pathlib.Path, content: json_files.Object | dict[str, Any]) -> None:
  """Writes figures that only the owner of the folder may read: all have counts of devices."""
  text = json.dumps(content, indent=2, allow_nan=False, default=str)
  durable.write_durably(path, (text + '\n').encode(), private=True)


def _counts(history: metrics.History) -> dict[str, Any]:
  """Returns the sums over rounds of the aggregator's counts."""
  return {name: int(sum(history.column(f'aggregator/{name}').values())) for name in _COUNTS}
