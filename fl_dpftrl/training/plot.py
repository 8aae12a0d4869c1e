"""Plot of a run: what the model learnt, and what it cost in privacy."""

import os
from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt

from fl_dpftrl import style
from fl_dpftrl.files import durable
from fl_dpftrl.text import rounding

_BLUE, _ORANGE, _GREY, _GREEN = '#1f6fb4', '#c8590b', '#6b6b6b', '#2e7d32'


def accuracy_plot(
  path: str | os.PathLike[str],
  *,
  title: str,
  accuracy: Mapping[int, float],
  epsilon: Mapping[int, float],
  days: Mapping[int, float],
  delta: float,
  baseline: float | None = None,
  test_accuracy: float | None = None,
  without_noise: float | None = None,
  label: str = 'accuracy',
) -> None:
  """Draws accuracy, and ε where there is one, against rounds and, where known, against days.

  Args:
    path: path of the image, whose suffix says its kind: .png, .svg or .pdf.
    accuracy: round → validation accuracy after it.
    epsilon: round → ε of the log up to it; empty without a guarantee.
    days: round → simulated days up to its close; empty if not simulated.
    baseline: test accuracy of the best constant prediction, where known.
    without_noise: test accuracy of the same run without noise, where known.
  """
  percent = lambda value: None if value is None else 100 * value
  places: list[tuple[str, Mapping[int, float]]] = [('rounds', {r: r + 1 for r in accuracy})]
  if days:
    places.append(('simulated days', days))
  figure, axes = plt.subplots(
    2 if epsilon else 1,
    len(places),
    sharex='col',
    sharey='row',
    figsize=(5.5 * len(places), 6.4 if epsilon else 4.4),
    height_ratios=(3, 2) if epsilon else None,
    squeeze=False,
    layout='constrained',
  )
  figure.suptitle(title, x=0.01, ha='left')
  for column, (name, place) in zip(axes.T, places, strict=True):
    _accuracy(
      column[0],
      {place[r]: 100 * a for r, a in accuracy.items()},
      baseline=percent(baseline),
      test=percent(test_accuracy),
      without_noise=percent(without_noise),
    )
    if epsilon:
      column[1].plot(
        [place[r] for r in epsilon if r in place],
        [e for r, e in epsilon.items() if r in place],
        # It jumps where a device returns: up to the next known value, at most that.
        drawstyle='steps-pre',
        color=_ORANGE,
        marker='o',
        markersize=3,
      )
    for axis in column:
      axis.grid(alpha=0.3)
      axis.spines[['top', 'right']].set_visible(False)
    column[-1].set_xlabel(name)
    column[-1].set_xlim(left=0)
  axes[0, 0].set_ylabel(f'{label} (%)')
  axes[0, 0].set_ylim(bottom=0)
  axes[0, -1].legend(loc='lower right', framealpha=0.95, edgecolor='none')
  if epsilon:
    axes[1, 0].set_ylabel(f'ε so far at δ = {rounding.exact(delta)}')
    axes[1, 0].set_ylim(0, 1.1 * max(epsilon.values()))
  image = style.image(figure, os.fspath(path).rpartition('.')[2])
  durable.write_durably(path, image)
  plt.close(figure)


def _accuracy(
  axis: Any,
  accuracy: Mapping[float, float],
  *,
  baseline: float | None,
  test: float | None,
  without_noise: float | None,
) -> None:
  """Draws percentages by what they are drawn against."""
  axis.plot(
    list(accuracy),
    list(accuracy.values()),
    color=_BLUE,
    marker='o',
    markersize=3,
    label='validation accuracy',
  )
  if baseline is not None:
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
  if accuracy and test is not None:
    axis.plot(
      list(accuracy)[-1],
      test,
      color=_ORANGE,
      marker='D',
      linestyle='none',
      label=f'final model, test: {test:.2f} %',
    )
