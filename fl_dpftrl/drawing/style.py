"""Style of figures: colours, ticks and labels beside lines, without pyplot."""

import collections
import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import colors, font_manager, textpath, ticker
from matplotlib import figure as figure_lib

from fl_dpftrl.text import messages

INK, GREY, LIGHT = '#222222', '#767676', '#dddddd'
DOTS_PER_INCH = 150

# Without what differs from one day or version to the next.
_METADATA: dict[str, dict[str, None]] = {
  'png': {'Software': None},
  'svg': {'Date': None, 'Creator': None},
  'pdf': {'CreationDate': None, 'Creator': None, 'Producer': None},
}

# Distinguishable with any colour vision: Tol's muted scheme, darker yellows.
# Colour and marker of each mechanism.
_MECHANISMS = {
  'identity': ('#767676', 'x'),
  'tree_online': ('#999933', 'v'),
  'tree_full': ('#117733', '^'),
  'dense': ('#332288', 'P'),
  'multi_epoch': ('#aa4499', 'X'),
  'banded': ('#0077bb', 's'),
  'banded_toeplitz': ('#44aa99', 'D'),
  'banded_sqrt': ('#882255', 'p'),
  'blt': ('#cc3311', 'o'),
  'lambda_cgd': ('#7b3294', '*'),
}
# Other mechanisms, in the order of their names.
_OTHERS = (('#ddaa33', '<'), (INK, 'd'), ('#661100', '>'), ('#6699cc', 'h'), ('#cc6677', 'H'))
# Each further candidate of a mechanism shifts the hue (of 1 in total) and mixes
# in white, or black if negative.
_VARIANTS = ((0.0, 0.0), (0.08, 0.3), (-0.1, -0.35), (0.0, -0.65), (-0.1, 0.45), (0.08, -0.4))
_DASHES = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2), (9, 3), (3, 1, 1, 1, 1, 1))
_MANTISSAS = (
  (1,),
  (1, 3),
  (1, 2, 5),
  (1, 1.5, 2, 3, 5, 7),
  (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
)


class Look(NamedTuple):
  """Appearance of one candidate in every figure."""

  colour: str
  marker: str
  dashes: tuple[float, ...]

  @property
  def line(self) -> dict[str, Any]:
    return {'color': self.colour, 'dashes': self.dashes, 'linewidth': 1.7}


def looks(mechanism_of: dict[str, str]) -> dict[str, Look]:
  """Returns a look per label: one colour per mechanism, with variants."""
  others = sorted(set(mechanism_of.values()) - set(_MECHANISMS))
  own = {**_MECHANISMS, **dict(zip(others, itertools.cycle(_OTHERS)))}
  drawn = collections.Counter[str]()
  result = {}
  for label, mechanism in mechanism_of.items():
    count = drawn[mechanism]
    drawn[mechanism] += 1
    colour, marker = own[mechanism]
    result[label] = Look(
      _variant(colour, count % len(_VARIANTS)), marker, _DASHES[count % len(_DASHES)]
    )
  return result


def _variant(colour: str, index: int) -> str:
  turn, amount = _VARIANTS[index]
  hue, saturation, value = colors.rgb_to_hsv(colors.to_rgb(colour))
  turned = colors.hsv_to_rgb(((hue + turn) % 1.0, saturation, value))
  towards = 1.0 if amount > 0 else 0.0
  red, green, blue = (p + abs(amount) * (towards - p) for p in turned)
  return colors.to_hex((red, green, blue))


def new_figure(
  width: float, height: float, title: str, subtitle: str, note: str = ''
) -> figure_lib.Figure:
  """Returns an empty figure with a title, a subtitle and a note at the right."""
  lines = subtitle.split('\n')
  header = 0.55 + 0.17 * len(lines)
  figure = figure_lib.Figure(figsize=(width, height), facecolor='white')
  figure.set_layout_engine(
    'constrained', rect=(0.005, 0.005, 0.99, 0.99 - header / height), h_pad=0.06, w_pad=0.06
  )
  figure.text(
    0.15 / width,
    1 - 0.14 / height,
    plain(title),
    fontsize=_size_that_fits(plain(title), 14, 'bold', width - 0.3),
    fontweight='bold',
    color=INK,
    va='top',
  )
  figure.text(
    0.15 / width,
    1 - 0.43 / height,
    '\n'.join(map(plain, lines)),
    fontsize=min(_size_that_fits(plain(line), 10, 'normal', width - 0.3) for line in lines),
    color=GREY,
    va='top',
  )
  figure.text(
    1 - 0.15 / width, 1 - 0.18 / height, note, fontsize=9, color=GREY, va='top', ha='right'
  )
  return figure


def _size_that_fits(text: str, most: float, weight: str, inches: float) -> float:
  """Returns the largest font size, up to `most`, at which a line is no wider than that."""
  font = font_manager.FontProperties(weight=weight, size=most)
  points, _, _ = textpath.text_to_path.get_text_width_height_descent(text, font, ismath=False)
  # Small letters are drawn up to 6 % wider, on whole pixels.
  return most * min(1.0, 0.94 * 72 * inches / max(points, 1.0))


def dress(axes: axes_lib.Axes) -> None:
  """Removes the box of the axes and adds a light grid."""
  axes.spines[['top', 'right']].set_visible(False)
  axes.spines[['left', 'bottom']].set_color(GREY)
  axes.grid(color=LIGHT, linewidth=0.7)
  axes.set_axisbelow(True)
  axes.tick_params(colors=INK, labelsize=9.5, width=0.7)
  axes.xaxis.label.set(color=INK, fontsize=10.5)
  axes.yaxis.label.set(color=INK, fontsize=10.5)


def note(sensitivity_kinds: Iterable[str]) -> str:
  """Explains hollow markers, if there are any."""
  kinds = set(sensitivity_kinds) - {'exact'}
  names = ' or '.join(kind.replace('_', ' ') for kind in sorted(kinds))
  return f'hollow: {names} of the sensitivity' if kinds else ''


def draw_line(axes: axes_lib.Axes, points: Sequence[tuple[float, float, bool]], look: Look) -> None:
  """Draws a line through (x, y, is exact), ascending in x; inexact markers are hollow."""
  xs, ys, exact = zip(*points)
  axes.plot(xs, ys, **look.line)
  for wanted, face in ((True, look.colour), (False, 'white')):
    chosen = [i for i, e in enumerate(exact) if e is wanted]
    axes.plot(
      [xs[i] for i in chosen],
      [ys[i] for i in chosen],
      linestyle='none',
      marker=look.marker,
      markersize=5,
      color=look.colour,
      markerfacecolor=face,
    )


def remark(axes: axes_lib.Axes, text: str) -> None:
  """Adds small grey text above the axes, at their left."""
  wrapped = textwrap.fill(plain(text), width=int(12 * axes.figure.get_figwidth()))  # type: ignore[union-attr]
  axes.set_title(wrapped, loc='left', fontsize=9, color=GREY)


def plain(text: str) -> str:
  """Escapes formulas, line breaks and invisible characters."""
  return messages.one_line(text).replace('$', r'\$')


def number(value: float, *, power: bool = False) -> str:
  """Formats a number such as 0.5, 20, 1,000, 10⁹, or any as a power of ten."""
  if value and (power or _is_far(value)):
    mantissa, exponent = f'{value:.3e}'.split('e')
    mantissa = mantissa.rstrip('0').rstrip('.').replace('-', '−')
    sign = f'{int(exponent)}'.replace('-', '−')
    raised = ''.join('⁻⁰¹²³⁴⁵⁶⁷⁸⁹'['−0123456789'.index(c)] for c in sign)
    return f'10{raised}' if mantissa == '1' else f'{mantissa}·10{raised}'
  text = f'{value:,.4f}' if abs(value) < 1000 else f'{value:,.0f}'
  return text.rstrip('0').rstrip('.') if '.' in text else text


def _is_far(value: float) -> bool:
  return not 1e-3 <= abs(value) < 1e7


def scale(
  axes: axes_lib.Axes,
  which: str,
  low: float,
  high: float,
  *,
  most_ticks: int = 8,
  span: float = 3.0,
) -> None:
  """Sets a log scale with few plain ticks, or a linear one for a small span."""
  axis = {'x': axes.xaxis, 'y': axes.yaxis}[which]
  formatter = ticker.FuncFormatter(lambda value, _: number(value))
  if low <= 0 or high / low < span:
    axis.set_major_formatter(formatter)
    return
  axes.set(**{f'{which}scale': 'log'})
  marks = ticks(low, high, most_ticks)
  power = any(map(_is_far, marks))  # then all marks use powers
  axis.set_major_locator(ticker.FixedLocator(marks))
  axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: number(value, power=power)))
  axis.set_minor_locator(ticker.NullLocator())


def ticks(low: float, high: float, most: int) -> list[float]:
  """Returns at most `most` round numbers, evenly spaced on a log scale.

  Where a short range has fewer than two of these, they are evenly spaced.
  """
  first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
  decades = range(first, last + 1)
  step = max(1, math.ceil(len(decades) / most))
  best = [10.0**d for d in decades[::step] if low * 0.999 <= 10.0**d <= high * 1.001]
  for mantissas in _MANTISSAS:
    marks = [m * 10.0**d for d in decades for m in mantissas]
    inside = [t for t in marks if low * 0.999 <= t <= high * 1.001]
    if len(inside) > most:
      break
    best = inside or best
  if len(best) < 2 and low < high:
    even = ticker.MaxNLocator(nbins=most - 1, steps=[1, 2, 5, 10]).tick_values(low, high)
    best = [float(mark) for mark in even if low <= mark <= high]
  return best


def label_lines(
  axes: axes_lib.Axes, ends: Sequence[tuple[str, float, float]], styles: dict[str, Look]
) -> None:
  """Writes names at the right of the axes, each beside the end of its line.

  Names that would touch are moved apart, with a thin line to their place. For a
  line that ends early, this connection is grey and dotted, so that it does not
  look like data.

  Args:
    axes: axes whose limits are set.
    ends: label, x and y of the last point of each line.
    styles: looks by label; see `looks`.
  """
  to_fraction = axes.transData + axes.transAxes.inverted()
  wanted, last = [], max((x for _, x, _ in ends), default=0.0)
  for label, x, y in ends:
    across, up = to_fraction.transform((x, y))
    wanted.append((float(up), float(across), label, x < last))
  wanted.sort()
  height = axes.bbox.height / axes.figure.dpi
  places = spread([up for up, *_ in wanted], 0.175 / height)
  for place, (up, across, label, early) in zip(places, wanted):
    colour = styles[label].colour
    (leader,) = axes.plot(
      [across, 1.015, 1.035], [up, place, place], transform=axes.transAxes, clip_on=False
    )
    if early:
      leader.set(color=GREY, linewidth=0.6, linestyle=(0, (1, 5)))
    else:
      leader.set(color=colour, linewidth=0.7, alpha=0.6)
    axes.text(
      1.042, place, plain(label), transform=axes.transAxes, va='center', fontsize=10, color=colour
    )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
  """Returns positions at least a gap apart, within 0 and 1, near those wanted.

  Neighbours that are too close are pooled and centred on their mean, as in
  isotonic regression. If there is no room for all, they exceed 0 and 1 equally.

  Args:
    wanted: desired positions, ascending.
    gap: smallest distance.
  """
  groups: list[tuple[float, int]] = []  # mean of place − index · gap, and size
  for index, place in enumerate(wanted):
    mean, size = place - index * gap, 1
    while groups and groups[-1][0] > mean:
      before, count = groups.pop()
      mean = (before * count + mean * size) / (count + size)
      size += count
    groups.append((mean, size))
  room = 1.0 - (len(wanted) - 1) * gap
  low, high = min(0.0, 0.5 * room), max(room, 0.5 * room)
  means = [mean for mean, size in groups for _ in range(size)]
  return [min(max(mean, low), high) + index * gap for index, mean in enumerate(means)]


def png(figure: figure_lib.Figure) -> bytes:
  """Returns the figure as a reproducible PNG."""
  return image(figure, 'png')


def image(figure: figure_lib.Figure, kind: str) -> bytes:
  """Returns the figure as a reproducible file.

  Args:
    figure: the figure.
    kind: 'png', 'svg' or 'pdf'.
  """
  content = io.BytesIO()
  with matplotlib.rc_context({'svg.hashsalt': 'fl_dpftrl'}):
    figure.savefig(content, format=kind, dpi=DOTS_PER_INCH, metadata=_METADATA[kind])
  return content.getvalue()
