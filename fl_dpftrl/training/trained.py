"""A trained model, with the guarantee that its log proves and its metrics by round."""

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from fl_dpftrl.replaying import statement
from fl_dpftrl.reports import setting as setting_lib
from fl_dpftrl.text import rounding
from fl_dpftrl.training import metrics, report
from fl_dpftrl.training import observers as observers_lib


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trained:
  """A trained model and the guarantee that its log proves.

  Attributes:
    model: the weights, as `process.get_model_weights` gives them for the last state;
      `model.assign_weights_to(keras_model)` fills a Keras model.
    statement: replay of the participation log.
    history: metrics by round.
    folder: output folder.
    delta: δ at which ε is stated.
    setting: what the report says beyond the log; among it `void_reason`, `burnt_rounds`, `audit`
      and `hypothetical`.
    bundle_digest: digest of the bundle, to keep elsewhere; None without one.
  """

  model: Any
  statement: statement.Statement
  history: metrics.History
  folder: pathlib.Path
  delta: float
  setting: setting_lib.Setting
  bundle_digest: str | None = None

  @property
  def weights(self) -> Any:
    """The same as `model`."""
    return self.model

  @property
  def audited(self) -> dict[str, Any]:
    """Empirical figures of canaries, and the proven ε beside them; empty without canaries."""
    return report.audited(self.statement, self.setting)

  def plot(
    self,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
    label: str = 'accuracy',
    baseline: float | None = None,
    test_accuracy: float | None = None,
    without_noise: float | None = None,
  ) -> pathlib.Path:
    """Draws validation accuracy, and ε where an `EpsilonSoFar` measured it, by rounds.

    Args:
      path: path of the image, whose suffix says its kind: .png, .svg or .pdf; None for
        accuracy.png in the folder.
      title: title of the image.
      label: name of the accuracy.
      baseline, test_accuracy, without_noise: test accuracies to show beside it: of the best
        constant prediction, of this model, and of the same run without noise.

    Returns:
      The path.

    Raises:
      ValueError: if nothing was measured as accuracy.
    """
    from fl_dpftrl.training import plot  # Loads matplotlib.

    path = self.folder / observers_lib.PLOT_NAME if path is None else pathlib.Path(path)
    accuracy = self.history.column(observers_lib.ACCURACY)
    if not accuracy:
      raise ValueError("evaluate must return {'accuracy': …} for a plot; there is no accuracy")
    stated = self.statement
    if title is None:
      title = f'{self.setting.run}: {self.setting.family}, n = {stated.num_rounds}'
    plot.accuracy_plot(
      path,
      title=title,
      label=label,
      accuracy=accuracy,
      epsilon=self.history.column(observers_lib.EPSILON),
      days=self.history.column(observers_lib.DAYS),
      baseline=baseline,
      test_accuracy=test_accuracy,
      without_noise=without_noise,
      delta=self.delta,
    )
    return path

  def __repr__(self) -> str:
    worst, void = self.statement.worst_case, self.setting.void_reason
    epsilon = 'none' if worst.epsilon is None else rounding.up(worst.epsilon)
    stated = f'ε = {epsilon} at δ = {rounding.exact(self.delta)}'
    weights = [np.shape(w) for w in self.model.trainable]
    parameters = sum(int(np.prod(shape)) for shape in weights)
    lines = [
      f'Trained in {self.folder}',
      f'  guarantee: {stated if void is None else f"none: {void}"}',
      f'  rounds: {self.statement.num_rounds}, burnt: {len(self.setting.burnt_rounds)}',
      f'  model: {parameters:,} parameters in {len(weights)} arrays',
    ]
    for name, by_round in self.history.measured.items():
      if name.startswith(observers_lib.VALIDATION) and len(lines) < 9:
        lines.append(f'  {name.replace("/", " ")}: {by_round[max(by_round)]:.4g}')
    return '\n'.join(lines)
