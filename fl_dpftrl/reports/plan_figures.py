"""Figures of a plan as SVG without scripts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fl_dpftrl.reports import page, scales

_WIDTH, _HEIGHT = 360, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 34, 42
_FLOOR, _END = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
_LINE, _CHARACTER = 13, 6.2  # line height and mean character width, in pixels
_DOT = 5

STYLE = """
svg circle { fill: var(--soft); }
svg circle.best { fill: var(--accent); }
svg circle.beyond { fill: none; stroke: var(--soft); stroke-width: 1.5; }
svg polyline { fill: none; stroke: var(--soft); stroke-width: 1.5; }
svg polyline.main { stroke: var(--accent); }
svg text.best { fill: var(--accent); font-weight: 600; }
"""


class Point(NamedTuple):
  """Dot of a figure.

  Attributes:
    x: x value, at least 0.
    y: y value, above 0.
    name: tooltip text.
    label: text beside the dot; '' for none.
    kind: 'best', 'beyond' or ''.
  """

  x: float
  y: float
  name: str
  label: str = ''
  kind: str = ''


def scatter(
  points: Sequence[Point], *, title: str, x_label: str, limit: tuple[float, str]
) -> page.Html:
  """Draws dots on log scales, x from 0, with a limit on x if it is not far."""
  most = max(point.x for point in points)
  is_near = limit[0] <= 3.0 * most
  most = max(most, limit[0]) if is_near else most
  x = scales.Scale([most], _LEFT, _END, from_zero=True)
  y = scales.Scale([p.y for p in points], _FLOOR - 8, _TOP + _LINE)
  parts = [*_rules(y), *_below(x)]
  if is_near:
    parts += _limit(x(limit[0]), limit[1])
  return _drawing(title, x_label, *parts, *_dots(points, x, y))


def paths(lines: Sequence[tuple[str, Sequence[Point]]], *, title: str, x_label: str) -> page.Html:
  """Draws dots on log scales and joins those of a line; each line has a class."""
  points = [point for _, line in lines for point in line]
  x = scales.Scale([p.x for p in points], _LEFT + 8, _END - 8)
  y = scales.Scale([p.y for p in points], _FLOOR - 8, _TOP + _LINE)
  drawn = [
    page.element(
      'polyline', points=' '.join(f'{x(p.x)},{y(p.y)}' for p in line), class_=kind or None
    )
    for kind, line in lines
  ]
  unique = {(p.x, p.y): p for p in points}.values()
  return _drawing(title, x_label, *_rules(y), *_below(x), *drawn, *_dots(list(unique), x, y))


def _drawing(title: str, x_label: str, *parts: page.Html) -> page.Html:
  return page.element(
    'svg',
    page.element('text', title, x=2, y=13, class_='title'),
    _text(x_label, (_LEFT + _END) / 2, _HEIGHT - 6, 'middle'),
    *parts,
    viewBox=f'0 0 {_WIDTH} {_HEIGHT}',
    role='img',
    aria_label=f'{title}; across: {x_label}',
  )


def _text(text: str, x: float, y: float, anchor: str) -> page.Html:
  return page.element('text', text, x=round(x, 2), y=round(y, 2), text_anchor=anchor)


def _rules(y: scales.Scale) -> list[page.Html]:
  parts = []
  for tick in y.ticks():
    at = y(tick)
    parts += [
      page.element('line', x1=_LEFT, x2=_END, y1=at, y2=at),
      _text(f'{tick:g}', _LEFT - 5, at + 4, 'end'),
    ]
  return parts


def _below(x: scales.Scale) -> list[page.Html]:
  return [
    page.element('line', x1=_LEFT, x2=_END, y1=_FLOOR, y2=_FLOOR),
    *(_text(f'{tick:g}', x(tick), _FLOOR + 15, 'middle') for tick in x.ticks()),
  ]


def _dots(points: Sequence[Point], x: scales.Scale, y: scales.Scale) -> list[page.Html]:
  """Draws dots, with labels beside them if there is room."""
  parts, taken = [], []
  for point in points:
    left, top = x(point.x) - _DOT, y(point.y) - _DOT
    taken.append((left, left + 2 * _DOT, top, top + 2 * _DOT))
    parts.append(
      page.element(
        'circle',
        page.element('title', point.name),
        cx=x(point.x),
        cy=y(point.y),
        r=_DOT if point.kind == 'best' else _DOT - 1,
        class_=point.kind or None,
      )
    )
  for point in points:
    if not point.label:
      continue
    where = _free(x(point.x), y(point.y), len(point.label), taken)
    parts.append(
      page.element('text', point.label, class_='best' if point.kind == 'best' else None, **where)
    )
  return parts


def _free(x: float, y: float, letters: int, taken: list[tuple[float, ...]]) -> dict[str, Any]:
  """Returns a free place for a label beside a dot."""
  width = letters * _CHARACTER
  best = None
  for down in (0, -1, 1, -2, 2, -3, 3):
    at = y + 4 + down * _LINE
    for anchor, left in (('start', x + 8), ('end', x - 8 - width)):
      box = (left, left + width, at - _LINE + 2, at)
      inside = left >= _LEFT and left + width <= _WIDTH and at <= _FLOOR
      clear = not any(
        box[0] < b[1] and b[0] < box[1] and box[2] < b[3] and b[2] < box[3] for b in taken
      )
      if inside and clear:
        best = anchor, box
        break
    if best:
      break
  anchor, box = best or ('start', (x + 8, x + 8 + width, y - 9, y + 4))
  taken.append(box)
  return {
    'x': round(box[0] if anchor == 'start' else box[1], 2),
    'y': round(box[3], 2),
    'text_anchor': anchor,
  }


def _limit(x: float, text: str) -> list[page.Html]:
  anchor = 'start' if 2 * x < _WIDTH else 'end'
  return [
    page.element('line', x1=x, x2=x, y1=_TOP, y2=_FLOOR, class_='mark'),
    page.element('text', text, x=x, y=_TOP - 3, class_='mark', text_anchor=anchor),
  ]
