"""Figure of the differences to the best mechanism of each ε, with their certainty."""

import statistics
from collections.abc import Sequence

from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib

from experiments.stackoverflow.study import figures, results, study_file
from fl_dpftrl.drawing import style

_PANELS_A_ROW = 3
_LEAST_WIDTH = 7.7  # for the subtitle


def difference_to_best(
  study: study_file.Study, rows: Sequence[results.Row]
) -> figure_lib.Figure | None:
  """Draws a panel for each ε with a line for each mechanism; None without two of one ε.

  A mechanism whose 95 % interval ends below 0 is worse than the best by more
  than seeds explain: its marker is filled. That of a tied one is hollow.
  """
  known = [row for row in rows if row.setting.epsilon is not None and row.mean is not None]
  by_epsilon: dict[float, list[results.Row]] = {}
  for row in known:
    by_epsilon.setdefault(row.setting.epsilon, []).append(row)  # type: ignore[arg-type]
  panels = {epsilon: level for epsilon, level in by_epsilon.items() if len(level) > 1}
  if not panels:
    return None
  names = _order([row for level in panels.values() for row in level])
  columns = min(len(panels), _PANELS_A_ROW)
  lines = -(-len(panels) // columns)
  figure = style.new_figure(
    max(_LEAST_WIDTH, 2.9 * columns + 1.8),
    (0.3 * len(names) + 1.0) * lines + 1.0,
    study.title,
    'test accuracy below the best mechanism of the same ε, with its 95 % interval over'
    f' {len(study.seeds)} seeds\nfilled: worse by more than seeds explain; hollow: not told apart'
    ' from the best; vertical line: the best itself',
  )
  grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
  for axes in grid.flat[len(panels) :]:
    axes.set_visible(False)
  look = figures.looks(rows)
  for axes, (epsilon, level) in zip(grid.flat, panels.items()):
    style.dress(axes)
    figures.heading(axes, epsilon)
    axes.axvline(0.0, color=style.INK, linewidth=0.9)
    for row in level:
      _mark(axes, names.index(row.setting.label), row, look[row.setting.label])
    axes.set_xlabel('difference to the best (points)')
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
    means.setdefault(row.setting.label, []).append(below)
  return sorted(means, key=lambda label: statistics.fmean(means[label]))


def _mark(axes: axes_lib.Axes, place: int, row: results.Row, look: style.Look) -> None:
  difference = row.difference
  mean = 0.0 if difference is None else -100 * difference.mean
  filled = difference is None or difference.is_clear
  if difference is not None and difference.margin is not None:
    axes.errorbar(
      [mean],
      [place],
      xerr=[100 * difference.margin],
      linestyle='none',
      color=look.colour,
      elinewidth=1.4,
      capsize=3,
      zorder=2,
    )
  face = look.colour if filled else 'white'
  axes.plot([mean], [place], 'o', markersize=7, color=look.colour, markerfacecolor=face, zorder=3)
