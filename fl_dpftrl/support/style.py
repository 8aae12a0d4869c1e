"""Style of figures: colours and markers of mechanisms, numbers on axes, files without a date."""

import collections
import io
import itertools
from typing import Any

import matplotlib.figure
from matplotlib import colors
from matplotlib.axes import Axes

from fl_dpftrl.support.text import messages

INK, GREY, LIGHT = '#222222', '#767676', '#dddddd'
LABEL = 32  # most characters of a mechanism's label

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


def look(colour: str, marker: str, dashes: tuple[float, ...]) -> dict[str, Any]:
  """Returns the appearance of one candidate in every figure, as keywords of matplotlib."""
  return {'color': colour, 'marker': marker, 'dashes': dashes, 'linewidth': 1.7}


def looks(mechanism_of: dict[str, str]) -> dict[str, dict[str, Any]]:
  """Returns a look per label: one colour per mechanism, with variants."""
  others = sorted(set(mechanism_of.values()) - set(_MECHANISMS))
  appearances = {**_MECHANISMS, **dict(zip(others, itertools.cycle(_OTHERS)))}
  drawn = collections.Counter[str]()
  result = {}
  for label, mechanism in mechanism_of.items():
    count = drawn[mechanism]
    drawn[mechanism] += 1
    colour, marker = appearances[mechanism]
    colour = _variant(colour, count % len(_VARIANTS))
    result[label] = look(colour, marker, _DASHES[count % len(_DASHES)])
  return result


def _variant(colour: str, index: int) -> str:
  turn, amount = _VARIANTS[index]
  hue, saturation, value = colors.rgb_to_hsv(colors.to_rgb(colour))
  turned = colors.hsv_to_rgb(((hue + turn) % 1.0, saturation, value))
  towards = 1.0 if amount > 0 else 0.0
  red, green, blue = (p + abs(amount) * (towards - p) for p in turned)
  return colors.to_hex((red, green, blue))


def dress(axes: Axes) -> None:
  """Removes the box of the axes and adds a light grid."""
  axes.spines[['top', 'right']].set_visible(False)
  axes.spines[['left', 'bottom']].set_color(GREY)
  axes.grid(color=LIGHT, linewidth=0.7)
  axes.set_axisbelow(True)
  axes.tick_params(colors=INK, labelsize=9.5, width=0.7)
  axes.xaxis.label.set(color=INK, fontsize=10.5)
  axes.yaxis.label.set(color=INK, fontsize=10.5)


def plain(text: str, limit: int = 300) -> str:
  """Escapes formulas, line breaks and invisible characters, and cuts text in its middle."""
  return messages.one_line(text, limit).replace('$', r'\$')


def number(value: float) -> str:
  """Formats a number such as 0.5, 20, 1,000 or 10⁹."""
  if value and not 1e-3 <= abs(value) < 1e7:
    mantissa, exponent = f'{value:.3e}'.split('e')
    mantissa = mantissa.rstrip('0').rstrip('.').replace('-', '−')
    sign = f'{int(exponent)}'.replace('-', '−')
    raised = ''.join('⁻⁰¹²³⁴⁵⁶⁷⁸⁹'['−0123456789'.index(c)] for c in sign)
    return f'10{raised}' if mantissa == '1' else f'{mantissa}·10{raised}'
  text = f'{value:,.4f}' if abs(value) < 1000 else f'{value:,.0f}'
  return text.rstrip('0').rstrip('.') if '.' in text else text


class Figure(matplotlib.figure.Figure):
  """A figure that a notebook shows without a backend."""

  def _repr_png_(self) -> bytes:
    return image(self, 'png')


def image(figure: matplotlib.figure.Figure, kind: str) -> bytes:
  """Returns the figure as a reproducible file: 'png', 'svg' or 'pdf'."""
  content = io.BytesIO()
  with matplotlib.rc_context({'svg.hashsalt': 'fl_dpftrl'}):
    figure.savefig(content, format=kind, dpi=150, metadata=_METADATA[kind])
  return content.getvalue()
