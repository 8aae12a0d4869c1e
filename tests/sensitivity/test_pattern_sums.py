"""Sums over patterns of rounds."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_dpftrl import participation
from fl_dpftrl.sensitivity import patterns as pattern_sums

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


@hypothesis.given(st.data())
@SETTINGS
def test_max_min_sep_sum_is_the_maximum(brute, data):
  schema = data.draw(schemas())
  values = data.draw(matrices(schema.num_rounds, rows=3))
  found = pattern_sums.max_min_sep_sum(values, schema.min_sep, schema.max_participations)
  expected = [max(row[list(p)].sum() for p in brute.patterns(schema)) for row in values]
  np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize('size', [1, 2, 7])
@pytest.mark.parametrize('step', [1, 2, 3, 9])
@pytest.mark.parametrize('count', [1, 2, 4, 9])
def test_repeated_is_a_sum_of_shifts(size, step, count):
  values = np.random.default_rng(0).normal(size=size)
  expected = [sum(values[i - a * step] for a in range(count) if i >= a * step) for i in range(size)]
  np.testing.assert_allclose(pattern_sums.repeated(values, step, count), expected, atol=1e-14)
