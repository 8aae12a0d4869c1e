"""Figures of how sure an order is: differences to the best, and what losses predict."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib

from fl_dpftrl.drawing import style
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import figures, prediction, results

_PANELS_A_ROW = 3
_LEAST_WIDTH = 7.7  # for the subtitle
_MARKER, _LETTER = 0.65, 0.075  # inches of a legend
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))


def difference_to_best(
  design: design_lib.Design, rows: Sequence[results.Row]
) -> figure_lib.Figure | None:
  """Draws a panel for each ε with a line for each mechanism; None without two of one ε.

  A mechanism whose 95 % interval does not reach 0 is worse than the best by more
  than seeds explain: its marker is filled. That of a tied one is hollow.
  """
  metric = design.metric
  panels = {
    epsilon: [row for row in rows if row in level]
    for epsilon, level in results.levels(rows).items()
    if len(level) > 1
  }
  if not panels:
    return None
  names = _order([row for level in panels.values() for row in level])
  columns = min(len(panels), _PANELS_A_ROW)
  lines = -(-len(panels) // columns)
  figure = style.new_figure(
    max(_LEAST_WIDTH, 2.9 * columns + 1.8),
    (0.3 * len(names) + 1.0) * lines + 1.0,
    design.title,
    f'test {metric.name} {metric.worse} the best mechanism of the same ε, with its'
    f' {figures.interval(design, rows)}'
    '\nfilled: worse by more than seeds explain; hollow: not told apart'
    ' from the best; vertical line: the best itself',
  )
  # Differences of other metrics may be of another size at each ε.
  share = metric.is_accuracy
  grid = figure.subplots(lines, columns, sharex=share, sharey=True, squeeze=False)
  for axes in grid.flat[len(panels) :]:
    axes.set_visible(False)
  look = figures.looks(rows)
  for axes, (epsilon, level) in zip(grid.flat, panels.items()):
    style.dress(axes)
    figures.heading(axes, epsilon)
    axes.axvline(0.0, color=style.INK, linewidth=0.9)
    for row in level:
      _mark_difference(axes, names.index(row.label), row, look[row.label])
    axes.set_xlabel(metric.label('difference to the best', 'points'))
    axes.tick_params(labelbottom=True)
  first = grid[0, 0]
  first.set_yticks(range(len(names)), [style.plain(name) for name in names])
  first.set_ylim(len(names) - 0.5, -0.5)
  return figure


def _order(rows: Sequence[results.Row]) -> list[str]:
  """Returns the labels of the rows, that with the best mean over all ε first."""
  means: dict[str, list[float]] = {}
  for row in rows:
    below = 0.0 if row.difference is None else row.difference.mean
    means.setdefault(row.label, []).append(below)
  return sorted(means, key=lambda label: statistics.fmean(means[label]))


def _mark_difference(axes: axes_lib.Axes, place: int, row: results.Row, look: style.Look) -> None:
  difference, metric = row.difference, row.metric
  mean = 0.0 if difference is None else metric.scale * metric.gain(-difference.mean)
  filled = difference is None or difference.is_clear
  if difference is not None and difference.margin is not None:
    axes.errorbar(
      [mean],
      [place],
      xerr=[metric.scale * difference.margin],
      linestyle='none',
      color=look.colour,
      elinewidth=1.4,
      capsize=3,
      zorder=2,
    )
  face = look.colour if filled else 'white'
  axes.plot([mean], [place], 'o', markersize=7, color=look.colour, markerfacecolor=face, zorder=3)


def by_noise(design: design_lib.Design, rows: Sequence[results.Row]) -> figure_lib.Figure | None:
  """Draws a panel for each loss; None for fewer than two settings.

  A small point is a run, a large one the mean of a setting. A grey line goes
  through the mechanisms of one ε, from the least noise to the most: it gets worse
  all the way where the loss puts them in the right order. Each ε has its own dashes.
  """
  known = prediction.known(rows)
  if len(known) < 2:
    return None
  look = figures.looks(rows)
  metric = design.metric
  of_gains = f' with negated test {metric.name}' if metric.lower_is_better else ''
  figure = style.new_figure(
    10.5,
    5.6,
    design.title,
    f'test {metric.name} by the noise known before training: loss × effective noise multiplier'
    ' × clip norm / report goal\nsmall: runs; large: means over seeds; grey lines join the'
    " mechanisms of one ε, from the least noise to the most; ρ: Spearman's rank"
    f' correlation{of_gains}',
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
    figures.scale_values(axes, metric, [y for row in known for y in row.tests.values()])
    xs = [getattr(row.noise, measure) for row in known]
    low, high = min(xs) / 1.2, max(xs) * 1.9  # ε is named at the right of its line.
    style.scale(axes, 'x', low, high, most_ticks=5, span=1.0)
    axes.set_xlim(low, high)
    axes.set_xlabel('noise in the model (std)')
  panels[0].set_ylabel(metric.axis('test'))
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
  scale = known[0].metric.scale
  for index, epsilon in enumerate(dict.fromkeys(row.epsilon for row in known)):
    level = sorted(
      (row for row in known if row.epsilon == epsilon), key=lambda row: getattr(row.noise, measure)
    )
    xs = [getattr(row.noise, measure) for row in level]
    ys = [scale * row.mean for row in level]
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
  for label in dict.fromkeys(row.label for row in known):
    own = [row for row in known if row.label == label]
    runs = [(getattr(row.noise, measure), scale * y) for row in own for y in row.tests.values()]
    drawn: dict[str, Any] = {
      'linestyle': 'none',
      'marker': look[label].marker,
      'color': look[label].colour,
    }
    axes.plot(*zip(*runs), markersize=3, alpha=0.45, **drawn)
    axes.plot(
      [getattr(row.noise, measure) for row in own],
      [scale * row.mean for row in own],
      markersize=7.5,
      label=label,
      **drawn,
    )


def _short(estimate: prediction.Estimate | None) -> str:
  return 'too few settings' if estimate is None else f'ρ {prediction.text(estimate)}'
