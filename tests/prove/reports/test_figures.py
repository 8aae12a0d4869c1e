"""Figures of the privacy report are read back from their SVG."""

import re
from xml.etree import ElementTree

import hypothesis
import pytest
from hypothesis import strategies as st

from fl_dpftrl.prove.reports import report_figures

few = hypothesis.settings(deadline=None, max_examples=8)


def bars(figure):
  """(left, right, height) of every bar, in points."""
  found = []
  root = ElementTree.fromstring(figure[1])
  _, _, width, height = map(float, root.attrib['viewBox'].split())
  for path in root.iter('path'):
    if path.attrib.get('style') == 'fill: var(--accent)':
      pairs = re.findall(r'([\d.]+) ([\d.]+)', path.attrib['d'])
      xs, ys = zip(*((float(x), float(y)) for x, y in pairs))
      assert 0 <= min(xs) < max(xs) <= width and 0 <= min(ys) <= max(ys) <= height
      found.append((min(xs), max(xs), max(ys) - min(ys)))
  return found


def texts(figure):
  return [text.text for text in ElementTree.fromstring(figure[1]).iter('text')]


def mark(figure):
  """x of the dashed line."""
  return float(re.search(r'd="M ([\d.]+) [^"]*" style="[^"]*dasharray', figure[1])[1])


@pytest.mark.slow
@few
@hypothesis.given(st.dictionaries(st.integers(1, 3000), st.integers(1, 10**7), min_size=1))
def test_bars_add_up_to_the_counts(counts):
  items = sorted(counts.items())
  low, high = items[0][0], items[-1][0]
  drawing = report_figures.histogram(items, title='t', x_label='x', mark=(low, 'least'))
  found = bars(drawing)
  width = -(-(high - low + 1) // 40)
  expected = [0] * -(-(high - low + 1) // width)
  for value, count in items:
    expected[(value - low) // width] += count
  unit = max(height for *_, height in found) / max(expected)
  assert [height for *_, height in found] == pytest.approx([unit * n for n in expected], abs=0.01)
  assert 'least' in texts(drawing) and mark(drawing) <= found[0][0]
  assert f'{sum(counts.values()):,} in all, x from {low:,} to {high:,}"' in drawing[1]


def test_text_is_no_markup_and_no_formula():
  drawing = report_figures.histogram([(1, 2)], title='<b>', x_label='<i> $x_1$', mark=(1, '"$a$'))
  assert '<b>' not in drawing[1] and '<i>' not in drawing[1]
  assert {'<i> $x_1$', '"$a$'} <= set(texts(drawing))
