"""Figures of the pages, as SVG that is placed in the HTML.

The same input gives the same bytes. Importing this module loads matplotlib.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import axis as axis_lib
from matplotlib import patches, ticker, transforms

from fl_dpftrl.drawing import style, svg
from fl_dpftrl.text import messages

Figure = svg.Figure

_MAX_BARS = 40
_FEW_BARS = 6  # an axis has room for at least so many whole numbers
_BAR = 0.85  # width of a bar relative to its place
_LOWEST = 0.012  # least height of an enlarged bar, relative to the highest
_DOT = 4.0  # radius in points
_LONGEST = 1000  # characters of a description
_NUMBER = ticker.FuncFormatter(lambda value, _: style.number(value))


class Bar(NamedTuple):
  """A bar from low to high; `height` in the unit of the y axis."""

  low: float
  high: float
  height: float
  name: str


class Point(NamedTuple):
  """A dot.

  Attributes:
    x: x value, at least 0.
    y: y value, above 0.
    name: tooltip.
    label: text beside the dot; '' for none.
    kind: 'best', 'beyond' (hollow) or ''.
  """

  x: float
  y: float
  name: str
  label: str = ''
  kind: str = ''


def histogram(
  counts: Sequence[Sequence[int]], *, title: str, x_label: str, mark: tuple[int, str] | None = None
) -> svg.Figure:
  """Draws a bar chart over whole numbers; bars cover ranges if there are many.

  Args:
    counts: pairs of a value and how often it occurred.
    title: what is counted.
    x_label: meaning of the values.
    mark: a value to point out, with its label.
  """
  values = [value for value, _ in counts]
  low, high = min(values), max(values)
  width = math.ceil((high - low + 1) / _MAX_BARS)
  heights = [0] * math.ceil((high - low + 1) / width)
  for value, count in counts:
    heights[(value - low) // width] += count
  bars = []
  for index, count in enumerate(heights):
    first = low + index * width
    last = min(first + width - 1, high)
    name = f'{first:,}' if first == last else f'{first:,} to {last:,}'
    bars.append(Bar(first - 0.5, first + width - 0.5, count, f'{name}: {count:,}'))
  few = max(0.0, 0.5 * (_FEW_BARS - (bars[-1].high - bars[0].low)))
  ends = bars[0].low - few, bars[-1].high + few
  axes = svg.new_axes(x_label)
  _draw_bars(axes, bars)
  axes.set_xlim(*ends)
  _set_ticks(axes, low, high, whole=True)
  _set_heights(axes, max(heights), whole=True)
  if mark is not None:
    _mark(axes, mark[0] - 0.5, mark[1])
  return svg.finish(
    axes, title, f'{title}: {sum(heights):,} in all, {x_label} from {low:,} to {high:,}'
  )


def spread(
  counts: Sequence[tuple[float, float, int]],
  *,
  title: str,
  x_label: str,
  mark: tuple[float, str] | None = None,
) -> svg.Figure:
  """Draws a bar chart over positive numbers; very small bars are enlarged.

  Args:
    counts: lower end, upper end and count of each bar, ascending; widths may be 0.
    title: what is counted.
    x_label: meaning of the values.
    mark: a value to point out, with its label; the axis extends to it.
  """
  low, high = counts[0][0], counts[-1][1]
  if mark is not None:
    low, high = min(low, mark[0]), max(high, mark[0])
  if low < high / 2:
    low = 0.0
  if high - low < 1e-6 * high:  # All equal: one bar in mid-axis.
    low, high = 0.9 * low, 1.1 * high
  least, most = (high - low) / 100.0, max(count for _, _, count in counts)
  bars = [
    Bar(
      start,
      max(end, start + least),
      max(count, _LOWEST * most),
      f'{start:.4g} to {end:.4g}: {count:,}',
    )
    for start, end, count in counts
    if count
  ]
  axes = svg.new_axes(x_label)
  _draw_bars(axes, bars)
  room = 0.02 * (high - low)
  axes.set_xlim(low - room, high + room)
  _set_ticks(axes, low, high)
  _set_heights(axes, most, whole=True)
  if mark is not None:
    _mark(axes, *mark)
  total = sum(count for _, _, count in counts)
  ends = f'from {counts[0][0]:.3g} to {counts[-1][1]:.3g}'
  return svg.finish(axes, title, f'{title}: {total:,} in all, {x_label} {ends}')


def columns(values: Sequence[float], *, title: str, x_label: str, unit: str) -> svg.Figure:
  """Draws a bar for each of the places 0, 1, …, such as the hours of a day.

  Args:
    values: numbers of at least 0, with at least one above 0.
    title: meaning of the values.
    x_label: meaning of the places.
    unit: unit of the values.
  """
  axes = svg.new_axes(x_label)
  _draw_bars(
    axes, [Bar(i - 0.5, i + 0.5, v, f'{i}: {style.number(v)} {unit}') for i, v in enumerate(values)]
  )
  axes.set_xlim(-0.5, len(values) - 0.5)
  _set_ticks(axes, 0, len(values) - 1, whole=True)
  _set_heights(axes, max(values))
  return svg.finish(
    axes, title, f'{title}: from {min(values):.3g} to {max(values):.3g} {unit}, by {x_label}'
  )


def scatter(
  points: Sequence[Point], *, title: str, x_label: str, limit: tuple[float, str]
) -> svg.Figure:
  """Draws dots on log scales, x from 0, with a limit on x if it is not far."""
  most = max(point.x for point in points)
  is_near = limit[0] <= 3.0 * most
  most = max(most, limit[0]) if is_near else most
  axes = svg.new_axes(x_label)
  axes.set_xscale('function', functions=(np.log1p, np.expm1))
  axes.set_xlim(0.0, 1.12 * most + 0.2)
  marks = style.ticks(1.0, max(most, 1.0), 6)
  axes.xaxis.set_major_locator(ticker.FixedLocator([0.0, *marks]))
  axes.xaxis.set_major_formatter(_NUMBER)
  _set_log_y(axes, [point.y for point in points])
  if is_near:
    _mark(axes, *limit)
  _draw_points(axes, points)
  return svg.finish(axes, title, _range_of(title, x_label, points))


def paths(lines: Sequence[tuple[bool, Sequence[Point]]], *, title: str, x_label: str) -> svg.Figure:
  """Draws dots on log scales, joined by lines; each line says if it is the main one."""
  points = list({point[:2]: point for _, line in lines for point in line}.values())
  axes = svg.new_axes(x_label)
  for is_main, line in lines:
    axes.plot(
      [point.x for point in line],
      [point.y for point in line],
      color=svg.ACCENT if is_main else svg.SOFT,
      dashes=() if is_main else (4, 3),
      linewidth=1.4,
    )
  xs = [point.x for point in points]
  axes.set_xscale('log')
  axes.set_xlim(min(xs) / 1.3, max(xs) * 1.3)
  _set_log_ticks(axes.xaxis, *axes.get_xlim())
  _set_log_y(axes, [point.y for point in points])
  _draw_points(axes, points)
  return svg.finish(axes, title, _range_of(title, x_label, points))


def short(count: float) -> str:
  """Writes a number in few characters: 9,999, 12.3k, 1.22M."""
  for least, size, letter in ((10**6, 10**6, 'M'), (10**4, 10**3, 'k')):
    if count >= least:
      return f'{count / size:.3g}{letter}'
  return f'{count:,g}'


def _draw_bars(axes: axes_lib.Axes, bars: Sequence[Bar]) -> None:
  for bar in bars:
    if bar.height:
      width = bar.high - bar.low
      axes.bar(
        bar.low + 0.5 * width, bar.height, _BAR * width, color=svg.ACCENT, gid=svg.TIP + bar.name
      )


def _set_ticks(axes: axes_lib.Axes, low: float, high: float, *, whole: bool = False) -> None:
  """Sets at most six round numbers from low to high on the x axis."""
  places = ticker.MaxNLocator(5, integer=whole).tick_values(low, high)
  room = 1e-9 * (high - low)
  axes.set_xticks([tick for tick in places if low - room <= tick <= high + room] or [low])
  axes.xaxis.set_major_formatter(_NUMBER)


def _set_heights(axes: axes_lib.Axes, most: float, *, whole: bool = False) -> None:
  axes.set_ylim(0.0, 1.04 * most)
  axes.yaxis.set_major_locator(ticker.MaxNLocator(4, integer=whole))
  axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short(value)))


def _set_log_y(axes: axes_lib.Axes, values: Sequence[float]) -> None:
  low, high = min(values), max(values)
  axes.set_yscale('log')
  axes.set_ylim(low / 1.15 ** (1 + math.log10(high / low)), high * 1.25)
  _set_log_ticks(axes.yaxis, *axes.get_ylim())


def _set_log_ticks(axis: axis_lib.Axis, low: float, high: float) -> None:
  axis.set_major_locator(ticker.FixedLocator(style.ticks(low, high, 6)))
  axis.set_major_formatter(_NUMBER)
  axis.set_minor_locator(ticker.NullLocator())


def _mark(axes: axes_lib.Axes, x: float, words: str) -> None:
  """Draws a dashed line at x, and its label above the axes."""
  axes.axvline(x, color=svg.BAD, linewidth=1.3, dashes=(4, 2), clip_on=False)
  share = (axes.transData - axes.transAxes).transform((x, axes.get_ylim()[1]))[0]
  axes.annotate(
    words,
    (x, 1.0),
    xycoords=('data', 'axes fraction'),
    xytext=(0, 4),
    textcoords='offset points',
    ha='left' if share < 0.3 else 'right' if share > 0.7 else 'center',
    fontsize=svg.FONT,
    color=svg.BAD,
  )


def _draw_points(axes: axes_lib.Axes, points: Sequence[Point]) -> None:
  """Draws dots, and their labels beside them where there is room."""
  taken = []
  for point in points:
    place = transforms.ScaledTranslation(point.x, point.y, axes.transData)  # type: ignore[arg-type]
    radius = _DOT * (1.3 if point.kind == 'best' else 1.0) / 72.0
    colour = svg.ACCENT if point.kind == 'best' else svg.SOFT
    dot = patches.Circle(
      (0.0, 0.0),
      radius,
      transform=axes.figure.dpi_scale_trans + place,
      edgecolor=colour,
      facecolor='none' if point.kind == 'beyond' else colour,
      linewidth=1.2,
      clip_on=False,
      gid=svg.TIP + point.name,
      zorder=3,
    )
    axes.add_artist(dot)
    taken.append(dot.get_window_extent())
  for point in points:
    if point.label:
      taken.append(_label(axes, point, taken))


def _label(axes: axes_lib.Axes, point: Point, taken: Sequence[transforms.Bbox]) -> transforms.Bbox:
  """Writes the label of a dot in the first free place, and returns its box."""
  label = axes.annotate(
    style.plain(point.label),
    point[:2],
    textcoords='offset points',
    xytext=(0, 0),
    va='center',
    fontsize=svg.FONT,
    color=svg.ACCENT if point.kind == 'best' else svg.SOFT,
    fontweight='bold' if point.kind == 'best' else 'normal',
    annotation_clip=False,
  )
  inside = axes.bbox.expanded(1.0, 1.1)
  lines = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
  for up in (0, 11, -11, 22, -22, 33, -33):
    for align, right in (('left', 8), ('right', -8)):
      label.set(ha=align, position=(right, up))
      box = label.get_window_extent()
      is_inside = inside.contains(*box.min) and inside.contains(*box.max)
      is_taken = any(map(box.overlaps, taken)) or any(
        line.intersects_bbox(box, filled=False) for line in lines
      )
      if is_inside and not is_taken:
        return box
  label.set(ha='left', position=(8, 0))
  return label.get_window_extent()


def _range_of(title: str, x_label: str, points: Sequence[Point]) -> str:
  listed = messages.one_line('; '.join(point.name for point in points), limit=_LONGEST)
  return f'{title}, by {x_label}: {listed}'
