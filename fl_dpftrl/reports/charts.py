"""Bar charts of a report, in SVG that needs no script."""

import decimal
import math
from collections.abc import Sequence
from typing import Any

from fl_dpftrl.reports import page

_WIDTH, _HEIGHT = 360, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 40, 42
_BASE = _HEIGHT - _BOTTOM
_MAX_BARS = 40
_MAX_LABELS = 5
_WIDEST = 60
# Least height of a bar that is not empty, so that one device of many shows.
_LOWEST = 1.5


def histogram(
  counts: Sequence[Sequence[int]], *, title: str, x_label: str, mark: tuple[int, str] | None = None
) -> page.Html:
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
  bars = [0] * math.ceil((high - low + 1) / width)
  for value, count in counts:
    bars[(value - low) // width] += count
  step = (_WIDTH - _LEFT - _RIGHT) / len(bars)
  gap = 0.15 * step
  place = lambda index: _LEFT + index * step + gap / 2
  drawn = min(step - gap, _WIDEST)
  scale = (_BASE - _TOP) / max(bars)
  parts = [*_frame(title, x_label), *_heights(max(bars))]
  for index, count in enumerate(bars):
    if count:
      first = low + index * width
      parts.append(
        _bar(
          place(index),
          drawn,
          count * scale,
          data_first=first,
          data_last=min(first + width - 1, high),
          data_count=count,
        )
      )
  for index in range(0, len(bars), math.ceil(len(bars) / _MAX_LABELS)):
    parts.append(_label(f'{low + index * width:,}', place(index) + drawn / 2))
  if mark is not None:
    parts += _mark(place((mark[0] - low) // width), mark[1])
  return _drawing(parts, f'{title}: {sum(bars):,} in all, {x_label} from {low:,} to {high:,}')


def spread(
  bars: Sequence[Sequence[float]],
  *,
  title: str,
  x_label: str,
  mark: tuple[float, str] | None = None,
) -> page.Html:
  """Draws a bar chart over positive numbers.

  Args:
    bars: lower end, upper end and count of each, ascending; widths may be 0.
    title: what is counted.
    x_label: meaning of the values.
    mark: a value to point out, with its label; the axis extends to it.
  """
  low, high = bars[0][0], bars[-1][1]
  if mark is not None:
    low, high = min(low, mark[0]), max(high, mark[0])
  if low < high / 2:
    low = 0.0
  if high - low < 1e-6 * high:  # All equal: one bar in mid-axis.
    low, high = 0.9 * low, 1.1 * high
  room = _WIDTH - _LEFT - _RIGHT
  place = lambda value: _LEFT + room * (value - low) / (high - low)
  most = max(count for _, _, count in bars)
  scale = (_BASE - _TOP) / most
  parts = [*_frame(title, x_label), *_heights(most)]
  for start, end, count in bars:
    if count:
      parts.append(
        _bar(
          place(start),
          max(0.85 * (place(end) - place(start)), 2.0),
          max(count * scale, _LOWEST),
          data_first=start,
          data_last=end,
          data_count=count,
        )
      )
  parts += [_label(f'{tick:g}', place(tick)) for tick in _ticks(low, high)]
  if mark is not None:
    parts += _mark(place(mark[0]), mark[1])
  total = sum(count for _, _, count in bars)
  return _drawing(
    parts, f'{title}: {total:,} in all, {x_label} from {bars[0][0]:.3g} to {bars[-1][1]:.3g}'
  )


def columns(values: Sequence[float], *, title: str, x_label: str, unit: str) -> page.Html:
  """Draws a bar for each of the places 0, 1, …, such as the hours of a day.

  Args:
    values: numbers of at least 0, with at least one above 0.
    title: meaning of the values.
    x_label: meaning of the places.
    unit: unit of the values.
  """
  most = max(values)
  step = (_WIDTH - _LEFT - _RIGHT) / len(values)
  place = lambda index: _LEFT + (index + 0.075) * step
  parts = _frame(title, x_label)
  for tick in (0.0, most / 2, most):
    y = round(_BASE - tick * (_BASE - _TOP) / most, 2)
    parts += [
      page.element('line', x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y),
      page.element(
        'text',
        _short(round(tick)) if most >= 100 else f'{tick:.3g}',
        x=_LEFT - 5,
        y=y + 4,
        text_anchor='end',
      ),
    ]
  for index, value in enumerate(values):
    parts.append(
      _bar(
        place(index), 0.85 * step, value * (_BASE - _TOP) / most, data_first=index, data_value=value
      )
    )
  for index in range(0, len(values), math.ceil(len(values) / _MAX_LABELS)):
    parts.append(_label(f'{index:,}', place(index) + 0.425 * step))
  return _drawing(parts, f'{title}: from {min(values):.3g} to {most:.3g} {unit}')


def _drawing(parts: Sequence[page.Html], label: str) -> page.Html:
  return page.element(
    'svg', *parts, viewBox=f'0 0 {_WIDTH} {_HEIGHT}', role='img', aria_label=label
  )


def _frame(title: str, x_label: str) -> list[page.Html]:
  middle = (_LEFT + _WIDTH - _RIGHT) / 2
  return [
    page.element('text', title, x=_LEFT, y=13, class_='title'),
    page.element('text', x_label, x=middle, y=_HEIGHT - 6, text_anchor='middle'),
  ]


def _heights(top: int) -> list[page.Html]:
  """Draws horizontal grid lines, each labelled with its count."""
  parts = []
  for tick in sorted({0, top // 2, top}):
    y = _BASE - tick * (_BASE - _TOP) / top
    parts += [
      page.element('line', x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y),
      page.element('text', _short(tick), x=_LEFT - 5, y=y + 4, text_anchor='end'),
    ]
  return parts


def _bar(x: float, width: float, height: float, **data: Any) -> page.Html:
  return page.element(
    'rect',
    x=round(x, 2),
    y=round(_BASE - height, 2),
    width=round(width, 2),
    height=round(height, 2),
    **data,
  )


def _label(text: str, x: float) -> page.Html:
  return page.element('text', text, x=round(x, 2), y=_BASE + 15, text_anchor='middle')


def _mark(x: float, text: str) -> list[page.Html]:
  x = round(x, 2)
  return [
    page.element('line', x1=x, x2=x, y1=_TOP - 4, y2=_BASE, class_='mark'),
    page.element(
      'text', text, x=x, y=_TOP - 9, class_='mark', text_anchor='start' if 2 * x < _WIDTH else 'end'
    ),
  ]


def _ticks(low: float, high: float) -> list[float]:
  """Returns a few round numbers between low and high."""
  size = decimal.Decimal(1).scaleb(math.floor(math.log10(high - low)) - 1)
  steps = (factor * size for factor in (1, 2, 5, 10, 20, 50, 100))
  step = next(s for s in steps if (high - low) / float(s) < _MAX_LABELS)
  first = math.ceil(low / float(step))
  last = math.floor(high / float(step))
  return [float(i * step) for i in range(first, last + 1)]


def _short(count: int) -> str:
  for least, size, letter in ((10**6, 10**6, 'M'), (10**4, 10**3, 'k')):
    if count >= least:
      return f'{count / size:.3g}{letter}'
  return f'{count:,}'
