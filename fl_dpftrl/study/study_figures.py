"""The two figures of a study, to be read at a width of 390 pixels."""

import itertools
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib import ticker, transforms
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_dpftrl.study import designs, result_tables
from fl_dpftrl.study.result_tables import Metric
from fl_dpftrl.support import style

_WIDTH = 5.0  # inches: 10 points are then 10.8 of 390 pixels
_SIZE, _LINE = 10, 22  # points; characters of a line of half the figure
_APART = 3  # points between mechanisms of one ε, so that no bar hides another
_HEAD: dict[str, Any] = {'loc': 'left', 'fontsize': _SIZE, 'color': style.INK}
_BARS: dict[str, Any] = {'capsize': 2.5, 'elinewidth': 1.2, 'markersize': 5.5}


def draw(rows: Sequence[result_tables.Row], metric: Metric) -> dict[str, Figure]:
  """Returns the figures for which there is something to draw, by name."""
  measured, figures = [row for row in rows if row.mean is not None], {}
  looks = style.looks({row.mechanism: row.mechanism.partition(':')[0] for row in rows})
  looks[designs.NO_NOISE] = style.look(style.INK, '', (2, 2))
  if any(row.epsilon is not None for row in measured):
    figures[f'{metric.name.replace(" ", "_")}_by_epsilon'] = _by_epsilon(measured, metric, looks)
  if any(row.others for row in measured):
    figures['difference_to_best'] = _difference_to_best(measured, metric, looks)
  return figures


def _by_epsilon(
  rows: Sequence[result_tables.Row], metric: Metric, looks: dict[str, dict]
) -> Figure:
  """Draws the mean on test data over ε with its interval, a line for each mechanism."""
  labels = list(dict.fromkeys(row.mechanism for row in rows if row.epsilon))
  epsilons = sorted({row.epsilon for row in rows if row.epsilon})
  figure, (axes,) = _new(3.9 + 0.1 * len(labels), [1.0])
  for place, label in enumerate(labels):
    line = sorted((row for row in rows if row.mechanism == label), key=lambda row: row.epsilon or 0)
    inches = _APART * (place - 0.5 * (len(labels) - 1)) / 72
    shift = transforms.ScaledTranslation(inches, 0.0, figure.dpi_scale_trans)
    bars = axes.errorbar(
      [row.epsilon or 0.0 for row in line],
      [metric.scale * (row.mean or 0.0) for row in line],
      yerr=[metric.scale * (result_tables.margin(list(row.tests.values())) or 0.0) for row in line],
      label=style.plain(label, style.LABEL),
      **looks[label],
      **_BARS,
    )
    for artist in bars.get_children():
      artist.set_transform(artist.get_transform() + shift)
  for row in rows:
    if row.epsilon is None and row.mean is not None:
      axes.axhline(metric.scale * row.mean, label=row.mechanism, **looks[row.mechanism])
  axes.set_xscale('log')
  axes.xaxis.set_major_locator(ticker.FixedLocator(epsilons, nbins=8))
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: style.number(value)))
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  if len(epsilons) == 1:
    axes.set_xlim(epsilons[0] / 1.5, epsilons[0] * 1.5)
  axes.set_xlabel('target ε')
  axes.set_ylabel(textwrap.fill(metric.label(f'test {metric.name}'), _LINE))
  caption = 'mean over seeds and its 95 % interval'
  if len(labels) > 1:
    caption += f'\nmechanisms of one ε stand {_APART} pt apart, around its line'
  axes.set_title(caption, **_HEAD)
  columns = 2 if max(map(len, labels)) <= _LINE else 1
  figure.legend(loc='outside lower center', ncols=columns, frameon=False, fontsize=_SIZE)
  return figure


def _difference_to_best(
  rows: Sequence[result_tables.Row], metric: Metric, looks: dict[str, dict]
) -> Figure:
  """Draws how far each mechanism is from the best of its ε, a panel for each ε."""
  by_epsilon = itertools.groupby((row for row in rows if row.epsilon), lambda row: row.epsilon)
  levels = {epsilon: list(level) for epsilon, level in by_epsilon}
  heights = [len(level) + 1.6 for level in levels.values()]
  figure, grid = _new(1.0 + 0.24 * sum(heights), heights)
  for axes, (epsilon, level) in zip(grid, levels.items()):
    axes.set_title(f'ε = {epsilon:g}', **_HEAD)
    axes.axvline(0.0, color=style.INK, linewidth=0.9)
    for place, row in enumerate(level):
      differences, colour = row.differences or (0.0,), looks[row.mechanism]['color']
      axes.errorbar(
        [metric.scale * sum(differences) / len(differences)],
        [place],
        xerr=[metric.scale * (result_tables.margin(differences) or 0.0)],
        fmt='o',
        color=colour,
        markerfacecolor=colour if row.is_clear else 'white',
        **_BARS,
      )
    axes.set_yticks(range(len(level)), [style.plain(row.mechanism, style.LABEL) for row in level])
    axes.set_ylim(len(level) - 0.4, -0.6)
  unit = metric.label('difference to the best', 'points')
  # Of the figure, as long labels leave axes narrower than it.
  words = f'{unit}, 95 % interval\nfilled: told apart from it after correction'
  figure.supxlabel(words, fontsize=10.5, color=style.INK)
  return figure


def _new(height: float, heights: list[float]) -> tuple[Figure, list[Axes]]:
  figure = Figure(figsize=(_WIDTH, height), facecolor='white', layout='constrained')
  grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
  for axes in grid.flat:
    style.dress(axes)
    axes.tick_params(labelsize=_SIZE)
  return figure, list(grid.flat)
