"""Figures are read back from their SVG: tooltips name what is drawn."""

import html
import re
from xml.etree import ElementTree

import hypothesis
import pytest
from hypothesis import strategies as st

from fl_dpftrl.drawing import bars as figures

few = hypothesis.settings(deadline=None, max_examples=8)


def boxes(figure):
  """(tooltip, left, right, bottom, top) of every bar or dot; y grows upwards."""
  found = []
  root = ElementTree.fromstring(figure.svg)
  _, _, width, height = map(float, root.attrib['viewBox'].split())
  for group in root.iter('g'):
    tip = group.find('title')
    if tip is not None:
      path = group.find('path').attrib['d']
      xs, ys = zip(
        *((float(x), height - float(y)) for x, y in re.findall(r'([\d.]+) ([\d.]+)', path))
      )
      assert 0 <= min(xs) < max(xs) <= width and 0 <= min(ys) <= max(ys) <= height
      found.append((tip.text, min(xs), max(xs), min(ys), max(ys)))
  return found


def texts(figure):
  return [text.text for text in ElementTree.fromstring(figure.svg).iter('text')]


def mark(figure):
  """x of the dashed line."""
  return float(re.search(r'd="M ([\d.]+) [^"]*" style="[^"]*dasharray', figure.svg)[1])


@pytest.mark.slow
@few
@hypothesis.given(st.dictionaries(st.integers(1, 3000), st.integers(1, 10**7), min_size=1))
def test_bars_add_up_to_the_counts(counts):
  items = sorted(counts.items())
  bars = boxes(figures.histogram(items, title='t', x_label='x', mark=(items[0][0], 'least')))
  total, most = 0, max(top - bottom for *_, bottom, top in bars)
  highest = 0
  for tip, *_ in bars:
    ends, count = tip.replace(',', '').split(': ')
    low, *high = map(int, ends.split(' to '))
    assert int(count) == sum(c for value, c in items if low <= value <= (high or [low])[0])
    total, highest = total + int(count), max(highest, int(count))
  assert total == sum(counts.values())
  for tip, _, _, bottom, top in bars:
    count = int(tip.replace(',', '').split(': ')[1])
    assert top - bottom == pytest.approx(most * count / highest, abs=0.01)


@pytest.mark.slow
@few
@hypothesis.given(
  st.floats(1e-6, 1e3),
  st.floats(0.0, 10.0),
  st.lists(st.integers(0, 10**6), min_size=1, max_size=32).filter(any),
  st.floats(0.01, 50.0),
)
def test_spread_draws_every_device(low, width, counts, marked):
  rows = [
    (low * (1 + i * width), low * (1 + (i + 1) * width), count) for i, count in enumerate(counts)
  ]
  at = rows[-1][1] * marked
  drawing = figures.spread(rows, title='t', x_label='x', mark=(at, 'worst'))
  bars = boxes(drawing)
  assert [tip for tip, *_ in bars] == [
    f'{start:.4g} to {end:.4g}: {count:,}' for start, end, count in rows if count
  ]
  assert all(top - bottom > 1.2 for *_, bottom, top in bars)  # one device among many is seen
  assert 'worst' in texts(drawing)
  assert 2 <= len(texts(drawing)) <= 14  # Ticks, the label of the axis and that of the mark.
  if at > rows[-1][1] * 1.5:  # Beyond all bars, and to the right of them.
    assert all(left < mark(drawing) for _, left, *_ in bars)


def test_columns_are_in_proportion():
  drawing = figures.columns([0.0, 0.5, 2.0], title='Minutes', x_label='hour', unit='minutes')
  (half, *_, low, high), (whole, *_, least, most) = boxes(drawing)
  assert (half, whole) == ('1: 0.5 minutes', '2: 2 minutes')
  assert (most - least) / (high - low) == pytest.approx(4.0, rel=1e-3)
  assert 'aria-label="Minutes: from 0 to 2 minutes, by hour"' in drawing.svg


POINTS = [
  figures.Point(0, 9.0, 'tree'),
  figures.Point(2, 4.0, 'blt', 'blt', 'best'),
  figures.Point(30, 3.5, 'banded $x_1$ <b>', 'banded $x_1$ <b>', 'beyond'),
]


def test_dots_are_in_order_and_named():
  drawing = figures.scatter(POINTS, title='Loss', x_label='copies', limit=(16, 'at most 16'))
  dots = boxes(drawing)
  assert [dot[0] for dot in dots] == [point.name for point in POINTS]
  assert sorted(dots, key=lambda dot: dot[1]) == dots
  assert sorted(dots, key=lambda dot: -dot[3]) == dots  # by loss
  assert dots[1][1] < mark(drawing) < dots[2][1]
  assert '<b>' not in drawing.svg
  assert 'banded $x_1$ <b>' in [html.unescape(text or '') for text in texts(drawing)]
  far = figures.scatter(POINTS[:2], title='Loss', x_label='copies', limit=(16, 'at most 16'))
  assert 'at most 16' not in texts(far)
