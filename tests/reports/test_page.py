import pytest

from fl_dpftrl.reports import page


def test_text_cannot_become_markup():
  made = page.element('p', '<script>', page.element('b', 'a & b'), title='"<')
  assert made == ('<p title="&quot;&lt;">&lt;script&gt;<b>a &amp; b</b></p>')
  data = page.embedded_json('x', '</script><b>')
  assert data.count('</script>') == 1
  assert '<b>' not in data


@pytest.mark.parametrize(
  'value, shown', [(1e-6, '10<sup>−6</sup>'), (2.5e-10, '2.5·10<sup>−10</sup>')]
)
def test_delta_is_a_power_of_ten(value, shown):
  assert page.power_of_ten(value) == shown
