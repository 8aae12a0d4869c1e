import html.parser
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from fl_dpftrl.reports import charts


class Bars(html.parser.HTMLParser):
  def __init__(self, text):
    super().__init__()
    self.bars = []
    self.feed(text)

  def handle_startendtag(self, tag, attrs):
    if tag == 'rect':
      self.bars.append({key: float(value) for key, value in attrs if value is not None})


@hypothesis.settings(deadline=None)
@hypothesis.given(st.dictionaries(st.integers(1, 3000), st.integers(1, 10**7), min_size=1))
def test_bars_add_up_to_the_counts(counts):
  items = sorted(counts.items())
  drawing = charts.histogram(items, title='t', x_label='x', mark=(items[0][0], 'least'))
  bars = Bars(drawing).bars
  for bar in bars:
    assert bar['data-count'] == sum(
      count for value, count in items if bar['data-first'] <= value <= bar['data-last']
    )
    assert bar['x'] >= 0 and bar['x'] + bar['width'] <= 360
    assert bar['y'] >= 0 and bar['y'] + bar['height'] <= 210
  assert sum(bar['data-count'] for bar in bars) == sum(counts.values())
  scale = max(b['height'] for b in bars) / max(b['data-count'] for b in bars)
  for bar in bars:
    assert bar['height'] == pytest.approx(bar['data-count'] * scale, abs=0.02)


@hypothesis.settings(deadline=None)
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
  mark = rows[-1][1] * marked
  drawing = charts.spread(rows, title='t', x_label='x', mark=(mark, 'worst'))
  bars = Bars(drawing).bars
  assert [(b['data-first'], b['data-last'], b['data-count']) for b in bars] == [
    row for row in rows if row[2]
  ]
  for bar in bars:
    assert bar['x'] >= 0 and bar['x'] + bar['width'] <= 360
    assert bar['y'] >= 0 and bar['y'] + bar['height'] <= 210
    assert bar['height'] >= 1.5  # One device among a million is to be seen.
  label = re.search('class="mark" text-anchor="[a-z]*">worst<', drawing)
  assert label
  at = float(re.search(r'<line x1="([\d.]+)" x2="\1"', drawing).group(1))
  assert 0 <= at <= 360
  if mark > rows[-1][1] * 1.5:  # Beyond all bars, and to the right of them.
    assert all(bar['x'] < at for bar in bars)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.floats(1e-6, 1e3), st.floats(1e-3, 1e3))
def test_ticks_are_few_and_on_the_axis(low, span):
  drawing = charts.spread([(low, low + span, 3)], title='t', x_label='x')
  ticks = re.findall(r'<text x="([\d.]+)" y="183" text-anchor="middle">([^<]+)<', drawing)
  assert 1 <= len(ticks) <= 6
  for x, text in ticks:
    assert 46 - 1 <= float(x) <= 350 + 1
    assert float(text) >= 0


@pytest.mark.parametrize(
  'count, tick',
  [
    (7, '7'),
    (9_999, '9,999'),
    (12_345, '12.3k'),
    (612_000, '612k'),
    (1_224_402, '1.22M'),
    (35_000_000, '35M'),
  ],
)
def test_ticks_are_short(count, tick):
  chart = charts.histogram([[1, count]], title='t', x_label='x')
  assert f'>{tick}<' in chart
