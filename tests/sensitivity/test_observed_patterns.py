"""The sensitivity of given patterns."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import sensitivity
from fl_dpftrl.families import blt, identity
from tests import drawn, oracle


@st.composite
def blts(draw):
  size = draw(st.integers(1, 3))
  scale = np.array([draw(st.floats(0.0, 1.0)) for _ in range(size)])
  return blt.BLT(
    buffer_decay=[draw(st.floats(1e-3, 0.999)) for _ in range(size)],
    output_scale=(scale / max(1.0, scale.sum() * (1 + 1e-12))).tolist(),
  )


NEGATIVE = np.full((3, 3), -0.5) + 1.5 * np.eye(3)


@hypothesis.given(st.data())
def test_pattern_sensitivity_is_the_norm_of_each_sum(data):
  schema, strategy = data.draw(drawn.schemas()), data.draw(blts())
  every = oracle.patterns(schema)
  values, kind = sensitivity.pattern_sensitivity(strategy, schema.num_rounds, every + [()])
  matrix = strategy.strategy_matrix(schema.num_rounds)
  expected = [np.linalg.norm(matrix[:, list(p)].sum(axis=1)) for p in every]
  assert kind == 'exact'
  np.testing.assert_allclose(values, expected + [0.0], rtol=1e-10)


def test_pattern_sensitivity_is_exact_where_entries_are_negative():
  factor = np.linalg.cholesky(NEGATIVE + 1e-15 * np.eye(3)).T
  values, kind = sensitivity.pattern_sensitivity(oracle.AnyMatrix(factor), 3, [(2, 0), (0, 1, 2)])
  np.testing.assert_allclose(values, np.sqrt([3.0, 4.5]))
  assert kind == 'exact'
  _, kind = sensitivity.pattern_sensitivity(oracle.AnyMatrix(factor), 3, [(2, 0), (1,)])
  assert kind == 'exact'


@pytest.mark.parametrize(
  'pattern, message',
  [((0, 4), '0 to 3'), ((-1, 2), '0 to 3'), ((2, 2), 'twice'), ((0.5, 1.5), 'whole')],
)
def test_pattern_sensitivity_refuses_impossible_patterns(pattern, message):
  with pytest.raises(ValueError, match=message):
    sensitivity.pattern_sensitivity(identity.Identity(), 4, [pattern])
