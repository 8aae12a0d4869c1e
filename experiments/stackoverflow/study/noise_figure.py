"""Figure of test accuracy over the noise that each loss predicts for the model."""

from collections.abc import Sequence

import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib

from experiments.stackoverflow.study import figures, prediction, results, study_file
from fl_dpftrl.drawing import style

_MARKER, _LETTER = 0.65, 0.075  # inches of a legend
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))


def accuracy_by_noise(
  study: study_file.Study, rows: Sequence[results.Row]
) -> figure_lib.Figure | None:
  """Draws a panel for each loss; None for fewer than two settings.

  A small point is a run, a large one the mean of a setting. A grey line goes
  through the mechanisms of one ε, from the least noise to the most: it falls all
  the way where the loss puts them in the right order. Each ε has its own dashes.
  """
  known = prediction.known(rows)
  if len(known) < 2:
    return None
  look = figures.looks(rows)
  figure = style.new_figure(
    10.5,
    5.6,
    study.title,
    'test accuracy by the noise known before training: loss × effective noise multiplier × clip'
    ' norm / report goal\nsmall: runs; large: means over seeds; grey lines join the mechanisms'
    " of one ε, from the least noise to the most; ρ: Spearman's rank correlation",
  )
  panels = figure.subplots(1, len(prediction.MEASURES), sharey=True)
  for axes, (measure, name) in zip(panels, prediction.MEASURES.items()):
    style.dress(axes)
    ranked = prediction.correlation(rows, measure)
    axes.set_title(
      f'noise {name}\nall ε: {_short(ranked.pooled)}\nwithin an ε: {_short(ranked.within)}',
      loc='left',
      fontsize=9.5,
      color=style.INK,
    )
    _points(axes, known, measure, look)
    xs = [getattr(row.noise, measure) for row in known]
    low, high = min(xs) / 1.2, max(xs) * 1.9  # ε is named at the right of its line.
    style.scale(axes, 'x', low, high, most_ticks=5, span=1.0)
    axes.set_xlim(low, high)
    axes.set_xlabel('noise in the model (std)')
  panels[0].set_ylabel('test accuracy (%)')
  handles, labels = panels[0].get_legend_handles_labels()
  figure.legend(
    handles,
    [style.plain(label) for label in labels],
    loc='outside lower center',
    ncols=_columns(labels, figure.get_figwidth()),
    frameon=False,
    fontsize=9.5,
  )
  return figure


def _columns(labels: Sequence[str], width: float) -> int:
  """Returns how many columns of a legend fit into a width in inches."""
  for count in range(min(len(labels), 7), 1, -1):
    columns = np.array_split(np.array([len(label) for label in labels]), count)
    if sum(_MARKER + _LETTER * column.max() for column in columns) <= width:
      return count
  return 1


def _points(
  axes: axes_lib.Axes, known: Sequence[results.Row], measure: str, look: dict[str, style.Look]
) -> None:
  for index, epsilon in enumerate(dict.fromkeys(row.setting.epsilon for row in known)):
    level = sorted(
      (row for row in known if row.setting.epsilon == epsilon),
      key=lambda row: getattr(row.noise, measure),
    )
    xs = [getattr(row.noise, measure) for row in level]
    ys = [100 * row.mean for row in level]
    dashes = _DASHES[index % len(_DASHES)]
    axes.plot(xs, ys, color='#999999', linewidth=1.0, dashes=dashes, zorder=1)
    axes.annotate(
      f'ε = {epsilon:g}',
      (xs[-1], ys[-1]),
      xytext=(7, 0),
      textcoords='offset points',
      va='center',
      fontsize=9,
      color=style.INK,
    )
  for label in dict.fromkeys(row.setting.label for row in known):
    own = [row for row in known if row.setting.label == label]
    runs = [(getattr(row.noise, measure), 100 * y) for row in own for y in row.tests.values()]
    drawn = {'linestyle': 'none', 'marker': look[label].marker, 'color': look[label].colour}
    axes.plot(*zip(*runs), markersize=3, alpha=0.45, **drawn)
    axes.plot(
      [getattr(row.noise, measure) for row in own],
      [100 * row.mean for row in own],
      markersize=7.5,
      label=label,
      **drawn,
    )


def _short(estimate: prediction.Estimate | None) -> str:
  return 'too few settings' if estimate is None else f'ρ {text(estimate)}'


def text(estimate: prediction.Estimate | None) -> str:
  """Returns a correlation with its 95 % interval, in words."""
  if estimate is None:
    return 'unknown'
  value, low, high = (
    f'{part:+.2f}'.replace('-', '−') for part in (estimate.value, estimate.low, estimate.high)
  )
  return f'{value} (95 %: {low} to {high})'
