import numpy as np
import pytest

from fl_dpftrl.families import low_rank


def test_bands_and_products():
  strategy = low_rank.LowRank(
    near=[[1.0, 0.0], [2.0, 0.5], [3.0, 0.25]],
    left=[[7.0], [7.0], [2.0]],
    right=[[3.0], [7.0], [7.0]],
  )
  np.testing.assert_array_equal(
    strategy.noising_matrix(3), [[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [6.0, 0.25, 3.0]]
  )
  assert (strategy.num_bands, strategy.rank) == (2, 1)
  assert strategy.memory_copies(3) == 1


@pytest.mark.parametrize(
  'change, message',
  [
    ({'near': np.ones(3)}, 'near must have shape'),
    ({'left': np.ones((3, 0))}, 'left must have shape'),
    ({'right': np.full((3, 2), np.inf)}, 'right must be finite'),
    ({'near': np.ones((3, 4))}, 'near must have at most 3 bands, got 4'),
    ({'left': np.ones((4, 2))}, 'left and right must have 3 rows'),
    ({'right': np.ones((3, 1))}, 'left and right must have 3 rows'),
    ({'near': np.zeros((3, 1))}, 'positive diagonal'),
    ({'near': np.ones((3, 2))}, r'near \[t, j\] must be 0 where t < j'),
  ],
)
def test_refuses_other_parameters(change, message):
  good = {'near': np.ones((3, 1)), 'left': np.ones((3, 2)), 'right': np.ones((3, 2))}
  with pytest.raises(ValueError, match=message):
    low_rank.LowRank(**{**good, **change})
