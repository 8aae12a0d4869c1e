"""Drawings as SVG that is placed in the HTML: their axes, colours and file form.

Colours are those of the style sheet, so a figure follows a dark page. A figure has no text in it
but numbers and labels, and refers to nothing: the same input gives the same bytes.
"""

import io
import re
from typing import NamedTuple
from xml.etree import ElementTree

import markupsafe
import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib

from fl_dpftrl.drawing import style

INK, SOFT, LINE, ACCENT, BAD = '#1c2127', '#58626d', '#d6dce2', '#1f5fa8', '#a4161a'
_VARIABLES = {
  INK: 'var(--ink)',
  SOFT: 'var(--soft)',
  LINE: 'var(--line)',
  ACCENT: 'var(--accent)',
  BAD: 'var(--bad)',
}
_SIZE = (4.0, 2.3)  # inches
_PLACE = (0.13, 0.2, 0.85, 0.7)  # of the axes: left, bottom, width, height; relative
FONT = 9.5  # points
TIP = 'tip: '  # marks the identifiers that become tooltips


class Figure(NamedTuple):
  """A figure of a page: its title, and its drawing."""

  title: str
  svg: markupsafe.Markup


def new_axes(x_label: str) -> axes_lib.Axes:
  """Returns empty axes of a figure."""
  figure = figure_lib.Figure(figsize=_SIZE)
  figure.patch.set_visible(False)
  axes = figure.add_axes(_PLACE)
  axes.patch.set_visible(False)
  style.dress(axes)
  axes.spines['left'].set_visible(False)
  axes.spines['bottom'].set_color(SOFT)
  axes.grid(False, axis='x')
  axes.grid(color=LINE, axis='y', linewidth=0.8)
  axes.tick_params(colors=SOFT, labelsize=FONT, length=0, pad=4)
  axes.set_xlabel(x_label, color=SOFT, fontsize=FONT)
  return axes


def finish(axes: axes_lib.Axes, title: str, label: str) -> Figure:
  """Returns the drawing, with a text for those who do not see it.

  Matplotlib's identifiers would be in a page several times, and its name
  spaces would be references. Both are removed; tooltips take the place of the
  former.
  """
  out = io.BytesIO()
  with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': 'fl_dpftrl'}):
    axes.figure.savefig(  # type: ignore[union-attr]
      out, format='svg', metadata={'Date': None, 'Creator': None, 'Format': None, 'Type': None}
    )
  root = ElementTree.fromstring(out.getvalue())
  for element in root.iter():
    element.tag = element.tag.rpartition('}')[2]
    element.attrib.pop('clip-path', None)
    if element.get('transform', '').startswith('rotate(-0 '):
      del element.attrib['transform']
    if 'style' in element.attrib:
      looks = re.sub(r'font-family: [^;]*(; )?', '', element.attrib['style'])
      element.attrib['style'] = re.sub('#[0-9a-f]{6}', lambda m: _VARIABLES.get(m[0], m[0]), looks)
    name = element.attrib.pop('id', '')
    if name.startswith(TIP):
      tip = ElementTree.Element('title')
      tip.text = name.removeprefix(TIP)
      element.insert(0, tip)
  for unused in root.findall('metadata') + root.findall('defs'):
    root.remove(unused)
  root.attrib = {'viewBox': root.attrib['viewBox'], 'role': 'img', 'aria-label': label}
  svg = re.sub(r'\s*<g ?/>', '', ElementTree.tostring(root, encoding='unicode'))
  return Figure(title, markupsafe.Markup(svg))
