import numpy as np
import pytest

from fl_dpftrl.aggregators import state_size
from fl_dpftrl.families import banded, blt, identity, tree_online

pytestmark = pytest.mark.tff

STACKOVERFLOW = 4 * 4_050_748


def bands(num_bands, num_rounds=400):
  coefficients = np.zeros((num_rounds, num_bands))
  coefficients[:, 0] = 1.0
  return banded.Banded(coefficients)


def test_predicts_the_size():
  size = state_size.noise_state_bytes
  assert size(identity.Identity(), 100) == 0
  assert size(blt.BLT((0.9, 0.5), (0.1, 0.1)), 100) == 200
  assert size(bands(342), 100) == 34_100
  assert size(tree_online.TreeOnline(), 100) == 2_100


@pytest.mark.parametrize(
  'strategy', [identity.Identity(), blt.BLT((0.9,) * 4, (0.1,) * 4), tree_online.TreeOnline()]
)
def test_papers_model_fits(strategy):
  state_size.check_state_size(strategy, STACKOVERFLOW)


def test_what_does_not_fit_is_refused_with_what_would():
  with pytest.raises(ValueError) as error:
    state_size.check_state_size(bands(342), STACKOVERFLOW)
  message = str(error.value)
  assert '\n' not in message
  assert 'banded keeps 341 vectors of 16.2 MB' in message
  assert 'at most 1,376,811 parameters' in message
  assert 'at most 113 vectors' in message
  # What it says would fit does, and one more does not.
  state_size.check_state_size(bands(342), 4 * 1_376_811)
  state_size.check_state_size(bands(114), STACKOVERFLOW)
  for strategy, num_parameters in ((342, 1_376_812), (115, 4_050_748)):
    with pytest.raises(ValueError):
      state_size.check_state_size(bands(strategy), 4 * num_parameters)


def test_model_that_is_too_large_itself():
  with pytest.raises(ValueError, match='118,750,000 parameters would fit$'):
    state_size.check_state_size(identity.Identity(), 2_000_000_000)
