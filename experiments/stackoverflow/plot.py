"""Plot of a run: what the model learnt, and what it cost in privacy."""

import os

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt

from fl_dpftrl import files, rounding
from fl_dpftrl.comparison import style

_BLUE, _ORANGE, _GREY, _GREEN = '#1f6fb4', '#c8590b', '#6b6b6b', '#2e7d32'


def accuracy_plot(
  path: str | os.PathLike[str],
  *,
  title: str,
  accuracy: dict[int, float],
  epsilon: dict[int, float],
  days: dict[int, float],
  baseline: float,
  test_accuracy: float,
  delta: float,
  without_noise: float | None = None,
) -> None:
  """Draws accuracy, and ε where there is one, against rounds and against days.

  Args:
    path: path of the image, whose suffix says its kind: .png, .svg or .pdf.
    title: one line.
    accuracy: round → validation accuracy after it.
    epsilon: round → ε of the log up to it; empty without a guarantee.
    days: round → simulated days up to its close.
    baseline: test accuracy of the best constant prediction.
    test_accuracy: of the final model.
    delta: at which ε is stated.
    without_noise: test accuracy of the same run without noise, where known.
  """
  figure, axes = plt.subplots(
    2 if epsilon else 1,
    2,
    sharex='col',
    sharey='row',
    figsize=(11, 6.4 if epsilon else 4.4),
    height_ratios=(3, 2) if epsilon else None,
    squeeze=False,
    layout='constrained',
  )
  figure.suptitle(title, x=0.01, ha='left')
  of_rounds = {r: r + 1 for r in accuracy}
  for column, places, label in (
    (axes[:, 0], of_rounds, 'rounds'),
    (axes[:, 1], days, 'simulated days'),
  ):
    _accuracy(
      column[0],
      {places[r]: 100 * a for r, a in accuracy.items()},
      baseline=100 * baseline,
      test=100 * test_accuracy,
      without_noise=None if without_noise is None else 100 * without_noise,
    )
    if epsilon:
      column[1].plot(
        [places[r] for r in epsilon],
        list(epsilon.values()),
        # It jumps where a device returns: up to the next known value, at most that.
        drawstyle='steps-pre',
        color=_ORANGE,
        marker='o',
        markersize=3,
      )
    for axis in column:
      axis.grid(alpha=0.3)
      axis.spines[['top', 'right']].set_visible(False)
    column[-1].set_xlabel(label)
    column[-1].set_xlim(left=0)
  axes[0, 0].set_ylabel('next-word accuracy (%)')
  axes[0, 0].set_ylim(bottom=0)
  axes[0, 1].legend(loc='lower right', framealpha=0.95, edgecolor='none')
  if epsilon:
    axes[1, 0].set_ylabel(f'ε so far at δ = {rounding.exact(delta)}')
    axes[1, 0].set_ylim(0, 1.1 * max(epsilon.values()))
  image = style.image(figure, os.fspath(path).rpartition('.')[2])
  files.write_durably(path, image)
  plt.close(figure)


def _accuracy(
  axis, accuracy: dict[float, float], *, baseline: float, test: float, without_noise: float | None
) -> None:
  """Percentages by what they are drawn against."""
  axis.plot(
    list(accuracy),
    list(accuracy.values()),
    color=_BLUE,
    marker='o',
    markersize=3,
    label='validation accuracy',
  )
  axis.axhline(
    baseline, color=_GREY, linestyle='--', label=f'unigram baseline, test: {baseline:.2f} %'
  )
  if without_noise is not None:
    axis.axhline(
      without_noise,
      color=_GREEN,
      linestyle=':',
      label=f'same run without noise, test: {without_noise:.2f} %',
    )
  if accuracy:
    axis.plot(
      list(accuracy)[-1],
      test,
      color=_ORANGE,
      marker='D',
      linestyle='none',
      label=f'final model, test: {test:.2f} %',
    )
