"""A trained model, with the guarantee that its log proves and its metrics by round."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_dpftrl.prove.replaying import statements
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.run import release
from fl_dpftrl.run.observers import measuring
from fl_dpftrl.support import metrics
from fl_dpftrl.support.files import paths

_PLOT_NAME = 'accuracy.png'
_POINTS = 20  # of the curve of a released metric

if TYPE_CHECKING:
  from fl_dpftrl.support import style


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trained:
  """A trained model and the guarantee that its log proves.

  Attributes:
    model: the weights, as `process.get_model_weights` gives them for the last state;
      `model.assign_weights_to(keras_model)` fills a Keras model.
    statement: replay of the participation log.
    delta: δ at which ε is stated.
    setting: what the report says beyond the log; among it `burnt_rounds`.
  """

  model: Any
  statement: statements.Statement
  history: 'metrics.History'
  folder: pathlib.Path
  delta: float
  setting: settings.Setting

  @property
  def void_reason(self) -> str | None:
    """Why the run guarantees nothing; None if it does."""
    return self.statement.void_reason or self.statement.worst_case.void_reason

  @property
  def num_parameters(self) -> int:
    """Number of trained parameters."""
    return sum(int(np.prod(np.shape(weight))) for weight in self.model.trainable)

  def metrics(self, last: int | None = None) -> dict[str, release.Estimate]:
    """Returns the mean of each released metric over rounds; see `PrivateAggregator.metrics`."""
    coordinates = release.Release(self.statement.runs[0].claim)
    columns = {
      name: self.history.column(f'{measuring.RELEASED}{name}') for name in coordinates.metric_names
    }
    return coordinates.estimates(columns, last)

  def diverged_since(self, test: Mapping[str, float] = {}) -> int | None:
    """Returns the first round with a measurement that is not finite; None without one.

    Args:
      test: metrics of the model on test data; where only these are not finite, it is the last
        round.
    """
    first = self.history.first_not_finite()
    if first is None and not all(map(math.isfinite, test.values())):
      return max(self.history.rounds.tolist(), default=0)
    return first

  def summary(self, test: Mapping[str, float] = {}) -> dict[str, Any]:
    """Returns what a table of runs says of this one, as values for JSON.

    A metric that is not finite is None. `rho` and `epsilon` are those that the log proves in the
    worst case, None without a guarantee; `declared` has those of the schema that timers enforce.
    `last_clip_norm` is that of the last round, and `seconds` the sum over rounds, with evaluation,
    where they were measured.

    Args:
      test: metrics of the model on test data, by name.
    """
    stated: Any = self.statement.to_json()
    setting, history, worst = self.setting, self.history, stated['worst_case']
    claim = self.statement.runs[0].claim
    clip_norms = history.column('aggregator/clip_norm')
    seconds = history.column(measuring.SECONDS)
    start = len(measuring.VALIDATION)
    validation = {
      name[start:]: by_round[max(by_round)]
      for name, by_round in history.measured.items()
      if name.startswith(measuring.VALIDATION)
    }
    return {
      'mechanism': claim.strategy.family,
      'strategy_digest': stated['strategy']['sha256'],
      'noise_multiplier': claim.noise_multiplier,
      'clip_norm': claim.first_clip_norm,
      'report_goal': claim.report_goal,
      **{name: worst[name] for name in ('sensitivity', 'sensitivity_kind', 'rho', 'epsilon')},
      'delta': self.delta,
      'declared': stated.get('declared'),
      'num_rounds': self.statement.num_rounds,
      'num_participations': stated['num_participations'],
      'participating_devices': stated['num_devices'],
      'min_sep': self.statement.min_sep,
      'max_participations': self.statement.max_participations,
      'last_clip_norm': clip_norms[max(clip_norms)] if clip_norms else claim.first_clip_norm,
      'validation': metrics.finite(validation),
      'test': metrics.finite(test),
      **({'seconds': round(sum(seconds.values()), 3)} if seconds else {}),
      'num_devices': setting.population,
      'num_parameters': self.num_parameters,
      'burnt_rounds': list(setting.burnt_rounds or ()),
      'diverged_since_round': self.diverged_since(test),
      'void_reason': self.void_reason,
    }

  def plot(
    self,
    path: str | os.PathLike[str] | None = None,
    *,
    label: str = 'accuracy',
    test_accuracy: float | None = None,
    others: Mapping[str, float] = {},
  ) -> 'style.Figure':
    """Draws validation accuracy by rounds, under a line with the run's guarantee.

    Args:
      path: path of the image, whose suffix says its kind: .png, .svg or .pdf; None for
        accuracy.png in the folder.
      label: name of the accuracy.
      test_accuracy: test accuracy of the model.
      others: test accuracy by what it is compared with, such as the same run without noise.

    Returns:
      The figure, which a notebook shows.

    Raises:
      ValueError: if nothing was measured as accuracy, and no test accuracy is given.
    """
    from fl_dpftrl.tff.training import plot  # Loads matplotlib.

    path = self.folder / _PLOT_NAME if path is None else paths.local(path)
    accuracy = self.history.column(measuring.ACCURACY)
    if not accuracy and test_accuracy is None:
      raise ValueError("evaluate must return {'accuracy': …} for a plot; there is no accuracy")
    claim, num_rounds = self.statement.runs[0].claim, self.statement.num_rounds
    told = f'{num_rounds} rounds of {claim.report_goal:,} devices, {claim.strategy.family}'
    stated = 'no guarantee' if self.void_reason is not None else self.statement.quoted
    return plot.accuracy_plot(
      path,
      title=f'{told}\n{stated}',
      label=label,
      num_rounds=num_rounds,
      accuracy=accuracy,
      test_accuracy=test_accuracy,
      others=others,
      released=self._released_accuracy(),
    )

  def _released_accuracy(self) -> list[tuple[int, float, float]]:
    """Returns rounds, the mean of clients' accuracy up to them, and half of its 95 % interval."""
    column = self.history.column(f'{measuring.RELEASED}accuracy')
    rounds, points = sorted(column), []
    coordinates = release.Release(self.statement.runs[0].claim)
    for count in sorted({-(-len(rounds) * i // _POINTS) for i in range(3, _POINTS + 1)}):
      values = {'accuracy': {t: column[t] for t in rounds[:count]}}
      if values['accuracy']:
        mean = coordinates.estimates(values, None)['accuracy']
        points.append((rounds[count - 1] + 1, mean.value, 1.96 * mean.stddev))
    return points

  def __repr__(self) -> str:
    void = self.void_reason
    lines = [
      f'Trained in {self.folder}',
      f'  guarantee: {self.statement.quoted if void is None else f"none: {void}"}',
      f'  arithmetic: {statements.SHOWN_ARITHMETIC[self.statement.arithmetic.kind]}',
      f'  rounds: {self.statement.num_rounds}, burnt: {len(self.setting.burnt_rounds or ())}',
      f'  model: {self.num_parameters:,} parameters in {len(self.model.trainable)} arrays',
    ]
    for name, by_round in self.history.measured.items():
      if name.startswith(measuring.VALIDATION) and len(lines) < 10:
        lines.append(f'  {name.replace("/", " ")}: {by_round[max(by_round)]:.4g}')
    return '\n'.join(lines)
