"""Cells of a study: one run each, with its strategy and calibrated noise."""

import dataclasses
import json
import math
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fl_dpftrl.logs import ledger_format
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.prove.replaying import opened_runs, replays
from fl_dpftrl.run import private_aggregator
from fl_dpftrl.study import result_tables
from fl_dpftrl.study.designs import Condition, Design, slug
from fl_dpftrl.study.result_tables import Metric, Result
from fl_dpftrl.study.study_noise import Noise
from fl_dpftrl.support.files import durable, json_files
from fl_dpftrl.support.text import messages

if TYPE_CHECKING:
  from fl_dpftrl.tff.aggregators import CorrelatedNoiseFactory  # Loads TensorFlow.

ROUNDS_NAME = 'rounds'
_ROW_NAME = 'row.json'
_PARTS = ('validation', 'test')
_ROUNDING = 1e-9  # of ε
_NO_SCHEMA = 'cell.arguments and cell.aggregator are for timers; use cell.private_aggregator'

Run: TypeAlias = Callable[['Cell'], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """One run of a study.

  Attributes:
    design: what all runs share.
    setting: mechanism and target ε; None and None without noise.
    noise: its noise; None without noise.
    server_learning_rate: rate of the run; None for one that is not chosen yet.
    seed: seed of the run's data, cohorts and initial weights; not of its noise.
    study: folder of the study.
  """

  design: Design
  setting: Condition
  noise: Noise | None
  server_learning_rate: float | None
  seed: int
  study: pathlib.Path

  @property
  def name(self) -> str:
    """Name of the cell, and of its folder in cells/."""
    level = '' if self.setting.epsilon is None else f'-epsilon{self.setting.epsilon!r}'
    rate = self.server_learning_rate
    return f'{slug(self.setting.label)}{level}-rate{rate!r}-seed{self.seed}'

  @property
  def home(self) -> pathlib.Path:
    """Folder of the cell: its row, its output and the folder of its run."""
    return self.study / 'cells' / self.name

  @property
  def folder(self) -> pathlib.Path:
    """Folder of the run, which the run makes."""
    return self.home / 'run'

  @property
  def num_rounds(self) -> int:
    """Number of rounds of the run."""
    return self.design.participation.num_rounds

  @property
  def arguments(self) -> dict[str, Any]:
    """Arguments of `train` that a study of a schema sets, such as folder, timers and seed."""
    if self.design.is_drawn:  # Rounds of `train` end at a report goal.
      raise ValueError(_NO_SCHEMA)
    schema = self.design.planned
    rounds = {'num_rounds': schema.num_rounds, 'timer_rounds': schema.min_sep}
    return {'folder': self.folder, **rounds, 'delta': self.design.delta, 'seed': self.seed}

  @property
  def noise_multiplier(self) -> float:
    """std(Z) / clip norm, for the strategy as stored; 0 without noise."""
    return 0.0 if self.noise is None else self.noise.noise_multiplier

  @property
  def strategy(self) -> base.Strategy:
    """Strategy of the noise; the identity without noise."""
    return identity.Identity() if self.noise is None else files.load_strategy(self.noise.strategy)

  @property
  def participation(self) -> Any:
    """Schema, secret bins, or the scheme of batches, with a part for each band."""
    participation: Any = self.design.participation
    if participation.gated:
      return participation
    return dataclasses.replace(participation, num_parts=(self.noise and self.noise.num_parts) or 1)

  def aggregator(self, **options: Any) -> 'CorrelatedNoiseFactory':
    """Returns the run's aggregator for `train`, with more options; ValueError without a schema."""
    if self.design.is_drawn:  # `train` draws its cohorts otherwise.
      raise ValueError(_NO_SCHEMA)
    from fl_dpftrl.tff.aggregators import factories  # Loads TensorFlow.

    return factories.CorrelatedNoiseFactory(self.strategy, **self._bounds(), **options)

  def private_aggregator(self, template: Any) -> 'private_aggregator.PrivateAggregator':
    """Returns a `PrivateAggregator` for a loop of one's own, from whose log the study takes ε.

    What an interrupted run left is removed: a new model must not go on with those rounds.
    """
    options = {'template': template, 'folder': self.folder / ROUNDS_NAME, **self._bounds()}
    shutil.rmtree(options['folder'], ignore_errors=True)
    options |= {'participation': self.participation, 'delta': self.design.delta}
    return private_aggregator.PrivateAggregator(self.strategy, **options)

  def _bounds(self) -> dict[str, Any]:
    shared = {name: getattr(self.design, name) for name in ('clip_norm', 'report_goal')}
    return {'noise_multiplier': self.noise_multiplier, **shared}

  def result(self, status: str = result_tables.WAITING, reason: str = '', **facts: Any) -> Result:
    """Returns a row of results.csv of this cell."""
    return Result(
      mechanism=self.setting.label,
      epsilon=self.setting.epsilon,
      server_learning_rate=self.server_learning_rate,
      seed=self.seed,
      status=status,
      reason=reason,
      noise_multiplier=self.noise_multiplier,
      num_parts=self.noise and self.noise.num_parts,
      **facts,
    )

  def ended(self) -> Result | None:
    """Returns the row of a cell that has ended; None for others."""
    path = self.home / _ROW_NAME
    try:
      return Result(**json_files.read(path)) if path.exists() else None
    except TypeError:
      raise ValueError(f'{path} is no row of a run; remove it to run it again') from None

  def train(self, run: Run) -> Result:
    """Trains the cell in this process, writes its row and returns it; one that ended is kept."""
    self.home.mkdir(parents=True, exist_ok=True)
    with durable.locked(self.home / 'lock'):
      durable.remove_leftovers(self.home)
      result = self.ended()
      if result is None:
        began = time.monotonic()
        result = self._judged(run(self), began)
        text = json.dumps(dataclasses.asdict(result), allow_nan=False)
        durable.write_durably(self.home / _ROW_NAME, text.encode())
      return result

  def _judged(self, summary: Any, began: float) -> Result:
    """Returns the row of a run that has returned; void unless something proves its ε."""
    values = {part: _measured(summary, part, self.design.metric) for part in _PARTS}
    report = {'seconds': round(time.monotonic() - began, 3), **summary, **self._proved()}
    facts: dict[str, Any] = {'seconds': report['seconds']}
    if self.noise is not None:
      void: Any = report.get('void_reason')
      epsilon: Any = report.get('epsilon')
      if void is None and (epsilon is None or report.get('delta') != self.design.delta):
        void = f'neither a log nor epsilon and delta={self.design.delta:g} of the run prove its ε'
      elif void is None and not 0.0 <= epsilon <= self.noise.epsilon * (1.0 + _ROUNDING):
        void = f'it has ε = {epsilon:.6g}, and its noise is for {self.noise.epsilon:.6g}'
      if void is not None:
        return self.result(result_tables.VOID, messages.one_line(void), **facts)
      facts['epsilon_of_run'] = epsilon
    since = report.get('diverged_since_round')
    if since is not None or not all(map(math.isfinite, values.values())):
      reason = 'not finite' + ('' if since is None else f' from round {since} on')
      return self.result(result_tables.DIVERGED, reason, **facts)
    return self.result(result_tables.DONE, **facts, **values)  # type: ignore[arg-type]

  def _proved(self) -> dict[str, Any]:
    """Returns what the log of `private_aggregator` proves; nothing of a run that did without."""
    folder = self.folder / ROUNDS_NAME
    strategy, log = folder / files.NAME, folder / ledger_format.NAME
    if not strategy.exists():
      return {}
    if not log.exists():
      raise ValueError(f'{log} is missing: use the aggregator in a `with` block, which closes it')
    opened = opened_runs.open_run(log, strategy)
    if self.design.is_drawn:
      opened = opened.claiming(self.participation.within(opened.log.num_rounds))
    statement = replays.replay(opened, delta=self.design.delta)
    epsilon = statement.parts[-1 if self.design.is_drawn else 0].guarantee.to_json()['epsilon']
    return {'epsilon': epsilon, 'delta': self.design.delta, 'void_reason': statement.void_reason}


def _measured(summary: Any, part: str, metric: Metric) -> float:
  """Returns the metric on a part; NaN for None."""
  try:
    value = summary[part][metric.name]
  except (TypeError, KeyError, IndexError):
    such, got = {name: {metric.name: 0.4} for name in _PARTS}, messages.quoted(summary)
    raise ValueError(f'the run must return a mapping such as {such}, got {got}') from None
  value = math.nan if value is None else float(value)
  if metric.is_accuracy and math.isfinite(value) and not 0.0 <= value <= 1.0:
    raise ValueError(f'{part} accuracy must be between 0 and 1, got {value:g}')
  return value
