"""Looks and numbers of figures."""

import pytest

from fl_dpftrl.support import style


@pytest.mark.parametrize('value, text', [
  (0.0, '0'), (1.0, '1'), (0.25, '0.25'), (1234.0, '1,234'), (1e9, '10⁹'), (2.5e-5, '2.5·10⁻⁵'),
  (342, '342'), (100.0, '100'), (12345.6, '12,346'),
])  # fmt: skip
def test_numbers_are_written_as_people_do(value, text):
  assert style.number(value) == text
