"""Banded strategies: columns count, not rows."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_dpftrl import participation, sensitivity
from fl_dpftrl.families import banded

SETTINGS = hypothesis.settings(deadline=None, max_examples=60)


@st.composite
def schemas(draw, cls=participation.MinSep, most_rounds=9):
  num_rounds = draw(st.integers(1, most_rounds))
  return cls(
    num_rounds=num_rounds,
    min_sep=draw(st.integers(1, num_rounds + 1)),
    max_participations=draw(st.one_of(st.none(), st.integers(1, num_rounds + 1))),
  )


def matrices(num_rounds, low=0.0, rows=None):
  entries = st.floats(low, 2.0).map(lambda x: round(x, 3))
  shape = (rows or num_rounds, num_rounds)
  return hnp.arrays(np.float64, shape, elements=entries)


@st.composite
def banded_strategies(draw, num_rounds, num_bands):
  coefficients = np.zeros((num_rounds, num_bands))
  values = draw(matrices(num_bands, rows=num_rounds))
  for j in range(num_bands):
    coefficients[j:, j] = values[j:, j]
  coefficients[:, 0] += 0.1
  return banded.Banded(coefficients)


@pytest.mark.parametrize('cls', [participation.MinSep, participation.FixedSeparation])
@hypothesis.given(st.data())
@SETTINGS
def test_banded_is_exact_up_to_min_sep_bands(brute, cls, data):
  schema = data.draw(schemas(cls))
  num_bands = data.draw(st.integers(1, min(schema.min_sep, schema.num_rounds)))
  strategy = data.draw(banded_strategies(schema.num_rounds, num_bands))
  result = sensitivity.sensitivity(strategy, schema)
  matrix = strategy.strategy_matrix(schema.num_rounds)
  assert result.kind == 'exact'
  assert result.value == pytest.approx(brute.worst(matrix, schema), rel=1e-12)
  general = sensitivity.gram_sensitivity(matrix.T @ matrix, schema)
  assert general == pytest.approx(result)


def test_columns_count_and_not_rows():
  coefficients = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]])
  strategy = banded.Banded(coefficients)
  once = participation.MinSep(num_rounds=3, max_participations=1)
  assert strategy.column_squares(3).tolist() == [5.0, 1.0, 1.0]
  assert sensitivity.sensitivity(strategy, once).value == math.sqrt(5.0)
  apart = participation.MinSep(num_rounds=3, min_sep=2)
  assert sensitivity.sensitivity(strategy, apart).value == math.sqrt(6.0)


def test_a_shorter_run_of_a_banded_strategy_cuts_columns_short():
  strategy = banded.Banded(np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]]))
  schema = participation.MinSep(num_rounds=1)
  assert sensitivity.sensitivity(strategy, schema) == (1.0, 'exact')
