"""Figures of the privacy report, as SVG that is placed in its HTML.

Matplotlib draws them in the colours of the style sheet, so that they follow a dark page. The same
input gives the same bytes. Importing this module loads matplotlib.
"""

import io
import math
import re
from collections.abc import Sequence

import markupsafe
import matplotlib.figure
import numpy as np
import scipy
from matplotlib import ticker
from matplotlib.axes import Axes

from fl_dpftrl.support.text import roundings

_SOFT, _LINE, _ACCENT, _BAD = '#58626d', '#d6dce2', '#1f5fa8', '#a4161a'
_VARIABLES = {_SOFT: 'soft', _LINE: 'line', _ACCENT: 'accent', _BAD: 'bad'}
_looks = matplotlib.rc_context(
  {
    'svg.fonttype': 'none',
    'svg.hashsalt': 'fl_dpftrl',
    'text.parse_math': False,
    'font.size': 9.5,
    'axes.spines.left': False,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'axes.edgecolor': _SOFT,
    'axes.labelcolor': _SOFT,
    'axes.grid': True,
    'axes.grid.axis': 'y',
    'axes.axisbelow': True,
    'grid.color': _LINE,
    'xtick.color': _SOFT,
    'ytick.color': _SOFT,
    'xtick.major.size': 0,
    'ytick.major.size': 0,
  }
)
_METADATA = {'Date': None, 'Creator': None, 'Format': None, 'Type': None}
# Of the document that a figure is not: nothing in a page refers to these.
_UNUSED = re.compile(
  r'<metadata>.*?</metadata>|<defs>.*?</defs>|<!--.*?-->'
  r'|font-family: [^;"]*;?| (?:id|clip-path|width|height|version|xmlns(?:\:\w+)?)="[^"]*"',
  re.DOTALL,
)
_SIZE = (4.0, 2.3)  # inches
_PLACE = (0.13, 0.2, 0.85, 0.7)  # of the axes: left, bottom, width, height; relative
_MOST_BARS = 40
_LOWEST = 0.012  # least height of an enlarged bar, relative to the highest
_REACH, _STEPS = 8.0, 400  # standard deviations beyond which an error is 0 or 1


Figure = tuple[str, markupsafe.Markup]
"""A figure of a page: its title, and its drawing."""


@_looks
def histogram(
  counts: Sequence[Sequence[int]], *, title: str, x_label: str, mark: tuple[int, str] | None = None
) -> Figure:
  """Draws a bar chart over whole numbers; bars cover ranges if there are many."""
  values, weights = zip(*counts)
  low, high = min(values), max(values)
  width = math.ceil((high - low + 1) / _MOST_BARS)
  edges = np.arange(low, high + width + 1, width) - 0.5
  heights, _ = np.histogram(values, edges, weights=weights)
  axes = _axes()
  axes.bar(edges[:-1], heights, 0.85 * width, align='edge', color=_ACCENT)
  few = max(0.0, 0.5 * (6 - (edges[-1] - edges[0])))  # room for at least six whole numbers
  axes.set_xlim(edges[0] - few, edges[-1] + few)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  label = f'{title}: {sum(weights):,} in all, {x_label} from {low:,} to {high:,}'
  return _counted(axes, title, x_label, label, mark and (mark[0] - 0.5, mark[1]))


@_looks
def spread(
  counts: Sequence[tuple[float, float, int]],
  *,
  title: str,
  x_label: str,
  mark: tuple[float, str] | None = None,
) -> Figure:
  """Draws a bar chart over positive numbers; very small bars are enlarged."""
  lows, highs, numbers = (np.array(column) for column in zip(*counts))
  low, high = float(lows[0]), float(highs[-1])
  if mark is not None:
    low, high = min(low, mark[0]), max(high, mark[0])
  if low < high / 2:
    low = 0.0
  if high - low < 1e-6 * high:  # All equal: one bar in mid-axis.
    low, high = 0.9 * low, 1.1 * high
  axes, room = _axes(), 0.02 * (high - low)
  widths = 0.85 * np.maximum(highs - lows, (high - low) / 100.0)
  heights = np.where(numbers, np.maximum(numbers, _LOWEST * numbers.max()), 0)
  axes.bar(lows, heights, widths, align='edge', color=_ACCENT)
  axes.set_xlim(low - room, high + room)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
  ends = f'from {lows[0]:.3g} to {highs[-1]:.3g}'
  return _counted(axes, title, x_label, f'{title}: {sum(numbers):,} in all, {x_label} {ends}', mark)


def least_false_negatives(mu: float, false_positives: float) -> float:
  """Returns Φ(Φ⁻¹(1 − α) − μ), the least false negatives (Dong, Roth and Su 2022, equation 6)."""
  return float(scipy.special.ndtr(-scipy.special.ndtri(false_positives) - mu))


@_looks
def curve(mu: float) -> Figure:
  """Draws the least false negatives by false positives, beside those of blind guessing."""
  thresholds, axes = np.linspace(-_REACH, _REACH + mu, _STEPS), _axes()
  axes.plot([0.0, 1.0], [1.0, 0.0], color=_SOFT, linewidth=1.2, dashes=(4, 3))
  axes.plot(
    scipy.special.ndtr(-thresholds),
    scipy.special.ndtr(thresholds - mu),
    color=_ACCENT,
    linewidth=1.8,
  )
  axes.set_xlim(0.0, 1.0)
  axes.set_ylim(0.0, 1.0)
  for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_locator(ticker.MultipleLocator(0.25))
    axis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  shown = f'μ = {roundings.up(mu)}'
  axes.text(0.97, 0.9, 'blind guessing, dashed', color=_SOFT, ha='right', va='center')
  axes.text(0.97, 0.78, shown, color=_ACCENT, ha='right', va='center')
  title = 'Least share of false negatives'
  label = f'{title}, by share of false positives, for {shown}'
  return _finished(axes, title, 'share of false positives', label)


def _axes() -> Axes:
  return matplotlib.figure.Figure(figsize=_SIZE, facecolor='none').add_axes(
    _PLACE, facecolor='none'
  )


def _counted(
  axes: Axes, title: str, x_label: str, label: str, mark: tuple[float, str] | None
) -> Figure:
  """Returns a drawing of counts, with a dashed line at a mark."""
  axes.yaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
  axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  axes.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:,g}'))
  if mark is not None:
    axes.axvline(mark[0], color=_BAD, linewidth=1.3, dashes=(4, 2))
    low, high = axes.get_xlim()
    share = (mark[0] - low) / (high - low)
    side = 'left' if share < 0.3 else 'right' if share > 0.7 else 'center'
    place = axes.get_xaxis_transform()
    axes.text(mark[0], 1.03, mark[1], color=_BAD, ha=side, transform=place)
  return _finished(axes, title, x_label, label)


def _finished(axes: Axes, title: str, x_label: str, label: str) -> Figure:
  """Returns a drawing, with a text for those who do not see it."""
  out = io.BytesIO()
  axes.set_xlabel(x_label)
  axes.figure.savefig(out, format='svg', metadata=_METADATA)  # type: ignore[union-attr]
  drawn = out.getvalue().decode()
  drawn = _UNUSED.sub('', drawn[drawn.index('<svg') :])
  for colour, name in _VARIABLES.items():
    drawn = drawn.replace(colour, f'var(--{name})')
  drawn = drawn.replace('<svg', f'<svg role="img" aria-label="{markupsafe.escape(label)}"', 1)
  return title, markupsafe.Markup(drawn)
