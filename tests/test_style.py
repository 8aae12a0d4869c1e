"""Looks and numbers of figures."""

import numpy as np
import pytest
from matplotlib import colors

from fl_dpftrl import style


@pytest.mark.parametrize(
  'value, text',
  [
    (0.0, '0'),
    (1.0, '1'),
    (0.25, '0.25'),
    (1234.0, '1,234'),
    (1e9, '10⁹'),
    (2.5e-5, '2.5·10⁻⁵'),
    (342, '342'),
    (100.0, '100'),
    (12345.6, '12,346'),
  ],
)
def test_numbers_are_written_as_people_do(value, text):
  assert style.number(value) == text


def test_lines_of_one_mechanism_are_told_apart():
  looks = style.looks({f'blt:{i}': 'blt' for i in range(6)})
  assert len({look.colour for look in looks.values()}) == 6
  rgb = np.array([colors.to_rgb(look.colour) for look in looks.values()])
  apart = np.linalg.norm(rgb[:, None] - rgb, axis=2) + np.eye(6)
  assert apart.min() > 0.2
  assert len({look.dashes for look in looks.values()}) == 6
  assert {look.marker for look in looks.values()} == {'o'}
