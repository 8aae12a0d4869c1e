"""Figures name the candidates that they do not show, and first columns of C and of its inverse."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.comparison import figures


def entries(names):
  schemas = [dpftrl.MinSep(num_rounds=n, min_sep=20) for n in (4, 120)]
  return dpftrl.compare(names, schemas).entries


def above(axes):
  return axes.get_title(loc='left')


@pytest.mark.slow
@pytest.mark.parametrize(
  'names, note',
  [
    (['blt:1', 'banded_toeplitz'], ''),
    # In sight at the first point, but not where its name would be.
    (['blt:1', 'identity', 'banded_toeplitz'], 'higher than shown: identity'),
    (['blt:1', 'banded_toeplitz', 'tree_online'], 'higher than shown: tree_online'),
  ],
)
def test_lines_out_of_the_ratios_are_named(names, note):
  figure = figures.against(entries(names), 'num_rounds', 'max')
  assert above(figure.axes[1]) == note


def test_axes_say_what_is_on_them():
  labels = lambda figure: [(a.get_xlabel(), a.get_ylabel()) for a in figure.axes]
  over = {
    'num_rounds': ('rounds', [dict(num_rounds=n, min_sep=4) for n in (8, 16)]),
    'min_sep': ('min-sep (rounds)', [dict(num_rounds=16, min_sep=b) for b in (2, 4)]),
    'max_participations': (
      'participations of one device',
      [dict(num_rounds=16, min_sep=2, max_participations=k) for k in (2, 4)],
    ),
  }
  for axis, (said, fields) in over.items():
    found = dpftrl.compare(['identity', 'tree_online'], [dpftrl.MinSep(**one) for one in fields])
    top, bottom = labels(figures.against(found.entries, axis, 'max'))
    assert bottom == (said, 'ratio to the best here') and top[1] == 'MaxLoss (clip norms)'
  ((x, _),) = labels(figures.side_by_side(found.entries[:2], 'rms'))
  assert x == 'RmsLoss (circle) and MaxLoss (diamond) in clip norms'
  assert [x for x, _ in labels(figures.lags(columns(1), {'0': 'blt'}))] == ['lag (rounds)'] * 2


def columns(count):
  decay = 0.5 ** np.arange(9.0)
  return {str(i): figures.Columns(decay, decay) for i in range(count)}


def test_those_without_coefficients_are_named():
  kinds = {'0': 'blt', 'tree_online': 'tree_online'}
  figure = figures.lags(columns(1), kinds)
  assert above(figure.axes[0]) == 'no coefficients to show: tree_online'
  figure = figures.lags(columns(1), {'0': 'blt'})
  assert not above(figure.axes[0])


@pytest.mark.parametrize(
  'strategy',
  [
    dpftrl.Identity(),
    dpftrl.BLT([0.9, 0.5], [0.2, 0.3]),
    dpftrl.Banded(np.tril(np.ones((9, 3))) + np.eye(9, 3, -2)),
    dpftrl.BandedToeplitz([1.0, 0.6, 0.3]),
    dpftrl.BandedToeplitz([2.0, 0.6, 0.3], 9),
    dpftrl.LambdaCGD(0.8),
  ],
)
def test_columns_are_those_of_the_matrices(strategy):
  found = figures.first_columns(strategy, 9)
  for column, matrix in zip(found, (strategy.strategy_matrix(9), strategy.noising_matrix(9))):
    np.testing.assert_allclose(column, matrix[:, 0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
  'strategy', [dpftrl.load_strategy('blt-b400'), dpftrl.BandedToeplitz([1.0, 0.6, 0.3])]
)
def test_long_ones_are_cut(strategy):
  found = figures.first_columns(strategy, 10**9)
  assert found.strategy.shape == found.noising.shape == (10_000,)


def test_none_where_there_is_no_column_of_lags():
  assert figures.first_columns(dpftrl.TreeOnline(), 8) is None
  assert figures.first_columns(dpftrl.TreeFull(), 8) is None
  assert figures.first_columns(dpftrl.Identity(), 10**6) is None
