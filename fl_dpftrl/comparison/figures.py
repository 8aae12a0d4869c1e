"""Figures of a comparison, and the coefficients they show; importing this loads matplotlib."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.linalg
from matplotlib import figure as figure_lib

from fl_dpftrl.drawing import style
from fl_dpftrl.families import banded_toeplitz, base, toeplitz, tree_full
from fl_dpftrl.participation import schemas

if TYPE_CHECKING:
  from fl_dpftrl.comparison import sweep  # It draws with this module.

LOSSES = {'rms': 'RmsLoss', 'max': 'MaxLoss'}
# Fields that may vary: in the title of a figure, and on its axis.
_AXES = {
  'num_rounds': ('the number of rounds', 'rounds'),
  'min_sep': ('min-sep', 'min-sep (rounds)'),
  'max_participations': ('participations', 'participations of one device'),
}
_FEW = 4  # panels with more lines draw them lightly
_MANY = {'linewidth': 1.0, 'alpha': 0.75}
_RATIO_SHOWN = 1.6  # lines that stay above this ratio may be left out

MOST_LAGS = 10_000
_LARGEST_MATRIX = 4096


class Columns(NamedTuple):
  """First columns of C and of its inverse, indexed by lag: shape [lags] each."""

  strategy: np.ndarray
  noising: np.ndarray


def against(
  entries: Sequence['sweep.Entry'], axis: str, objective: str, subtitle: str = ''
) -> figure_lib.Figure:
  """Draws a loss over a varying field, and its ratio to the best at each point.

  Args:
    entries: entries with at least two values of the axis.
    axis: num_rounds, min_sep or max_participations, as in schemas.
    objective: 'rms' or 'max', the loss to draw.
  """
  looks, loss, (over, axis_label) = _looks(entries), LOSSES[objective], _AXES[axis]
  figure = style.new_figure(9.0, 7.2, f'{loss} against {over}', subtitle, _note(entries))
  top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
  points = _points(entries, axis, f'{objective}_loss')
  smallest: dict[float, float] = {}
  for line in points.values():
    for x, y, _ in line:
      smallest[x] = min(y, smallest.get(x, np.inf))
  ratios = {
    label: [(x, y / smallest[x], exact) for x, y, exact in line] for label, line in points.items()
  }
  high = _ratio_limit(ratios)
  ratios = {label: line for label, line in ratios.items() if min(y for _, y, _ in line) <= high}
  above = [label for label in points if label not in ratios or ratios[label][-1][1] > high]
  if above:
    style.remark(bottom, f'higher than shown: {", ".join(above)}')
  for axes, lines in ((top, points), (bottom, ratios)):
    style.dress(axes)
    for label, line in lines.items():
      style.draw_line(axes, line, looks[label])
  xs = sorted(smallest)
  style.scale(bottom, 'x', xs[0], xs[-1])
  values = [y for line in points.values() for _, y, _ in line]
  style.scale(top, 'y', min(values), max(values), most_ticks=7, span=1.0)
  bottom.set_ylim(1.0 - 0.04 * (high - 1.0), high)
  style.scale(bottom, 'y', 1.0, high, most_ticks=6, span=1.0)
  top.set_ylabel(f'{loss} (clip norms)')
  bottom.set_ylabel('ratio to the best here')
  bottom.set_xlabel(axis_label)
  figure.draw_without_rendering()
  style.label_lines(top, [(k, *line[-1][:2]) for k, line in points.items()], looks)
  style.label_lines(bottom, [(k, *v[-1][:2]) for k, v in ratios.items() if v[-1][1] <= high], looks)
  return figure


def _looks(entries: Sequence['sweep.Entry']) -> dict[str, style.Look]:
  return style.looks({entry.candidate.label: entry.candidate.mechanism for entry in entries})


def _note(entries: Sequence['sweep.Entry']) -> str:
  return style.note(entry.row.sensitivity_kind for entry in entries)


def _points(
  entries: Sequence['sweep.Entry'], axis: str, loss: str
) -> dict[str, list[tuple[float, float, bool]]]:
  """Returns (x, loss, is exact) for each label, x ascending."""
  points: dict[str, list[tuple[float, float, bool]]] = {}
  for entry in entries:
    x = getattr(entry.schema, axis)
    exact = entry.row.sensitivity_kind == 'exact'
    points.setdefault(entry.candidate.label, []).append((x, getattr(entry.row, loss), exact))
  return {label: sorted(line) for label, line in points.items()}


def _ratio_limit(ratios) -> float:
  """Returns the top of the ratio panel, which shows at least two lines."""
  least = sorted(min(y for _, y, _ in line) for line in ratios.values())
  enough = max([_RATIO_SHOWN, *least[1:2]])
  shown = [
    y for line in ratios.values() if min(y for _, y, _ in line) <= enough for _, y, _ in line
  ]
  return 1.0 + 1.06 * max(min(max(shown), 1.25 * enough) - 1.0, 0.01)


def side_by_side(
  entries: Sequence['sweep.Entry'], objective: str, subtitle: str = ''
) -> figure_lib.Figure:
  """Draws both losses of each entry at one schema, the best at the top."""
  looks = _looks(entries)
  ordered = sorted(entries, key=lambda e: getattr(e.row, f'{objective}_loss'), reverse=True)
  height = 1.9 + 0.42 * len(entries)
  figure = style.new_figure(9.0, height, 'Losses side by side', subtitle, _note(entries))
  axes = figure.subplots()
  style.dress(axes)
  axes.grid(False, axis='y')
  for place, entry in enumerate(ordered):
    colour, row = looks[entry.candidate.label].colour, entry.row
    face = colour if row.sensitivity_kind == 'exact' else 'white'
    ends = [row.rms_loss, row.max_loss]
    axes.plot(ends, [place, place], color=colour, linewidth=2.2, alpha=0.45)
    for value, marker, side, right in zip(ends, 'oD', ('right', 'left'), (-8, 8)):
      axes.plot(value, place, marker=marker, markersize=7, color=colour, markerfacecolor=face)
      axes.annotate(
        f'{value:#.4g}',
        (value, place),
        ha=side,
        va='center',
        xytext=(right, 0),
        textcoords='offset points',
        fontsize=9.5,
        color=colour,
      )
  axes.set_yticks(
    range(len(ordered)),
    [f'{style.plain(e.row.mechanism)}  ({_copies(e.row.memory_copies)})' for e in ordered],
  )
  for tick, entry in zip(axes.get_yticklabels(), ordered):
    tick.set_color(looks[entry.candidate.label].colour)
  axes.tick_params(axis='y', length=0)
  values = [v for e in entries for v in (e.row.rms_loss, e.row.max_loss)]
  low, high = min(values), max(values)
  axes.set_xlim(low / (high / low) ** 0.16 * 0.97, high * (high / low) ** 0.16 * 1.03)
  style.scale(axes, 'x', *axes.get_xlim(), span=1.0)
  axes.set_ylim(-0.6, len(ordered) - 0.4)
  axes.set_xlabel('RmsLoss (circle) and MaxLoss (diamond) in clip norms')
  return figure


def _copies(copies: int) -> str:
  return '1 copy' if copies == 1 else f'{copies:,} copies'


def lags(
  columns: dict[str, Columns], mechanism_of: dict[str, str], subtitle: str = ''
) -> figure_lib.Figure:
  """Draws first columns of C and of its inverse over the lag, on log scales.

  Args:
    columns: first columns by label.
    mechanism_of: mechanism of every label of the comparison; labels without
      columns are listed below.
  """
  looks = style.looks(mechanism_of)
  figure = style.new_figure(11.0, 5.2, 'Coefficients against lag', subtitle)
  panels = figure.subplots(1, 2)
  names = ('strategy matrix C: coefficient', 'its inverse: |coefficient|')
  for axes, name, part in zip(panels, names, (0, 1)):
    style.dress(axes)
    lines, floor = {}, np.inf
    for label, pair in columns.items():
      values = np.abs(pair[part][1:]) / abs(pair[part][0])
      shown = np.flatnonzero(values > 1e-12)
      if shown.size:
        lines[label] = shown + 1, values[shown]
        # Five decades of each line are shown.
        floor = min(floor, max(values[shown].min(), 1e-5 * values[shown].max()))
    high = max(values.max() for _, values in lines.values())
    for label, (lag, values) in lines.items():
      line = {**looks[label].line, **(_MANY if len(lines) > _FEW else {})}
      if lag.size == 1:  # A line through one point is invisible.
        line |= {'marker': 'o', 'markersize': 5, 'alpha': 1.0}
      axes.plot(lag, values, label=style.plain(label), **line)
    longest = max(lag[-1] for lag, _ in lines.values())
    axes.set_xlim(0.93, 1.08 * longest)
    axes.set_ylim(0.7 * floor, 1.4 * high)
    style.scale(axes, 'x', 1.0, float(longest))
    style.scale(axes, 'y', *axes.get_ylim(), most_ticks=7)
    axes.set_xlabel('lag (rounds)')
    axes.set_ylabel(f'{name} / that of lag 0')
  absent = [label for label in mechanism_of if label not in columns]
  if absent:
    style.remark(panels[0], f'no coefficients to show: {", ".join(absent)}')
  handles, labels = panels[0].get_legend_handles_labels()
  figure.legend(
    handles,
    labels,
    loc='outside right center',
    frameon=False,
    fontsize=10,
    labelcolor='linecolor',
    handlelength=2.6,
  )
  return figure


def first_columns(strategy: base.Strategy, num_rounds: int) -> Columns | None:
  """Returns the first columns of C and N over at most 10,000 lags.

  Returns:
    None if C is not lower triangular or too large to be written out, and for trees, whose
    entries depend on nodes and not on lags.
  """
  lags = min(num_rounds, MOST_LAGS)
  if isinstance(strategy, toeplitz.Toeplitz):
    return Columns(strategy.column(lags), strategy.noising_column(lags))
  if isinstance(strategy, banded_toeplitz.BandedToeplitz):
    column, norms = np.zeros(lags), strategy.column_norms(lags)
    column[: strategy.num_bands] = strategy.coefficients[:lags]
    return Columns(column / norms[0], norms * strategy.inverse_coefficients(lags))
  if (
    isinstance(strategy, tree_full.TreeFull)
    or num_rounds > _LARGEST_MATRIX
    or strategy.num_noise_rows(num_rounds) != num_rounds
  ):
    return None
  matrix = strategy.strategy_matrix(num_rounds)
  if np.triu(matrix, 1).any():
    return None
  noising = scipy.linalg.solve_triangular(matrix, np.eye(1, num_rounds)[0], lower=True)
  return Columns(matrix[:, 0], noising)


def columns_of(
  entries: Sequence['sweep.Entry'],
) -> tuple[dict[str, Columns], dict[str, str], schemas.MinSep]:
  """Returns first columns at the last setting that all strategies support."""
  last = max(
    (entry.schema for entry in entries), key=lambda s: (s.num_rounds, s.min_sep, s.participations)
  )
  columns, mechanism_of = {}, {}
  for entry in entries:
    label = entry.candidate.label
    mechanism_of[label] = entry.candidate.mechanism
    if entry.schema != last:
      continue
    first = first_columns(entry.strategy, last.num_rounds)
    if first is not None and first.strategy[1:].any():
      columns[label] = first
  return columns, mechanism_of, last
