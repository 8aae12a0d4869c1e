import decimal

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
