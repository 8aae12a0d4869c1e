"""Sums over patterns of rounds."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.participation import schemas
from fl_dpftrl.sensitivity import patterns as pattern_sums
from tests import drawn, oracle


@hypothesis.given(st.data())
def test_max_min_sep_sum_is_the_maximum(data):
  schema = data.draw(drawn.schemas(schemas.MinSep))
  values = data.draw(drawn.matrices(3, schema.num_rounds))
  found = pattern_sums.max_min_sep_sum(values, schema.min_sep, schema.max_participations)
  expected = [max(row[list(p)].sum() for p in oracle.patterns(schema)) for row in values]
  np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize('size', [1, 2, 7])
@pytest.mark.parametrize('step', [1, 2, 3, 9])
@pytest.mark.parametrize('count', [1, 2, 4, 9])
def test_repeated_is_a_sum_of_shifts(size, step, count):
  values = np.random.default_rng(0).normal(size=size)
  expected = [sum(values[i - a * step] for a in range(count) if i >= a * step) for i in range(size)]
  np.testing.assert_allclose(pattern_sums.repeated(values, step, count), expected, atol=1e-14)
