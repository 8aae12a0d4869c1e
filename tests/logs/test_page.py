import decimal
import html.parser

import hypothesis
from hypothesis import strategies as st
import pytest

from fl_dpftrl.logs import page


def test_text_cannot_become_markup():
  made = page.element('p', '<script>', page.element('b', 'a & b'), title='"<')
  assert made == (
      '<p title="&quot;&lt;">&lt;script&gt;<b>a &amp; b</b></p>'
  )
  data = page.embedded_json('x', '</script><b>')
  assert data.count('</script>') == 1
  assert '<b>' not in data


@hypothesis.settings(deadline=None)
@hypothesis.given(st.floats(1e-9, 1e9), st.booleans())
def test_rounds_to_the_safe_side(value, up):
  shown = decimal.Decimal(page.rounded(value, up=up))
  exact = decimal.Decimal(repr(value))
  assert shown >= exact if up else shown <= exact
  assert abs(shown - exact) <= abs(exact) * decimal.Decimal('1e-3')


@pytest.mark.parametrize(
    'value, shown',
    [
        (3.4561, '3.457'),
        (1.4, '1.4'),
        (0.00012341, '0.0001235'),
        (0.0, '0'),
        (7, '7'),
    ],
)
def test_rounds_up(value, shown):
  assert page.rounded(value) == shown


@pytest.mark.parametrize(
    'value, shown',
    [(1e-6, '10<sup>−6</sup>'), (2.5e-10, '2.5·10<sup>−10</sup>')],
)
def test_delta_is_a_power_of_ten(value, shown):
  assert page.power_of_ten(value) == shown


class Bars(html.parser.HTMLParser):

  def __init__(self, text):
    super().__init__()
    self.bars = []
    self.feed(text)

  def handle_startendtag(self, tag, attrs):
    if tag == 'rect':
      self.bars.append(
          {key: float(value) for key, value in attrs if value is not None}
      )


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.dictionaries(st.integers(1, 3000), st.integers(1, 10**7), min_size=1)
)
def test_bars_add_up_to_the_counts(counts):
  items = sorted(counts.items())
  drawing = page.histogram(
      items, title='t', x_label='x', mark=(items[0][0], 'least')
  )
  bars = Bars(drawing).bars
  for bar in bars:
    assert bar['data-count'] == sum(
        count
        for value, count in items
        if bar['data-first'] <= value <= bar['data-last']
    )
    assert 0 <= bar['x'] and bar['x'] + bar['width'] <= 360
    assert 0 <= bar['y'] and bar['y'] + bar['height'] <= 210
  assert sum(bar['data-count'] for bar in bars) == sum(counts.values())
  scale = max(b['height'] for b in bars) / max(b['data-count'] for b in bars)
  for bar in bars:
    assert bar['height'] == pytest.approx(bar['data-count'] * scale, abs=0.02)
