"""Looks, ticks and labels of figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colors
from matplotlib.backends import backend_agg

from fl_dpftrl.drawing import style
from fl_dpftrl.optimization import registry


@given(st.lists(st.floats(-1, 2), min_size=1, max_size=12).map(sorted), st.floats(0.01, 0.3))
def test_names_never_touch_and_stay_in_order(wanted, gap):
  places = style.spread(wanted, gap)
  assert all(b - a >= gap * (1 - 1e-9) for a, b in zip(places, places[1:]))
  if (len(wanted) - 1) * gap <= 1.0:
    assert -1e-9 <= places[0] <= places[-1] <= 1 + 1e-9
  else:
    assert places[0] == pytest.approx(1.0 - places[-1])


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


@pytest.mark.parametrize(
  'low, high', [(16, 128), (1, 1e9), (5, 30), (50, 1000), (3.7, 12.2), (1e-8, 1.0)]
)
def test_ticks_are_few_and_inside(low, high):
  ticks = style.ticks(low, high, 8)
  assert 2 <= len(ticks) <= 8
  assert all(low * 0.99 <= tick <= high * 1.01 for tick in ticks)


def test_every_mechanism_has_a_colour_and_a_marker_of_its_own():
  looks = style.looks({name: name for name in registry.OPTIMIZERS})
  assert len({look.colour for look in looks.values()}) == len(looks)
  assert len({look.marker for look in looks.values()}) == len(looks)


def test_lines_of_one_mechanism_are_told_apart():
  looks = style.looks({f'blt:{i}': 'blt' for i in range(6)})
  assert len({look.colour for look in looks.values()}) == 6
  rgb = np.array([colors.to_rgb(look.colour) for look in looks.values()])
  apart = np.linalg.norm(rgb[:, None] - rgb, axis=2) + np.eye(6)
  assert apart.min() > 0.2
  assert len({look.dashes for look in looks.values()}) == 6
  assert {look.marker for look in looks.values()} == {'o'}


@pytest.mark.parametrize('width', [3.0, 5.6])
def test_a_title_is_no_wider_than_its_figure(width):
  figure = style.new_figure(
    width, 3.0, 'Timers, and strategies for other min-seps: ' * 2, 'a\nb' * 40
  )
  canvas = backend_agg.FigureCanvasAgg(figure)
  canvas.draw()
  for text in figure.texts:
    assert text.get_window_extent(canvas.get_renderer()).x1 <= figure.bbox.x1
  assert style.new_figure(20, 3, 'short', 'short').texts[0].get_fontsize() == 14
