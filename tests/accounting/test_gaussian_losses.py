"""The distribution as arrays is that of dp_accounting."""

import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import pld_privacy_accountant

from fl_dpftrl.accounting import gaussian


@pytest.mark.slow
@pytest.mark.parametrize(
  'multiplier, step',
  [(0.02, 0.005), (0.5, 2e-4), (1.0, 1e-4), (7.379, 1e-4), (250.0, 1e-4), (3e4, 1e-4)],
)
def test_is_the_distribution_of_the_accountant(multiplier, step):
  accountant = pld_privacy_accountant.PLDAccountant(
    privacy_accountant.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=step
  )
  accountant.compose(dp_event.GaussianDpEvent(multiplier))
  found = gaussian.distribution(multiplier, step)
  for delta in (1e-12, 1e-6, 0.01, 0.3):
    expected = accountant.get_epsilon(delta)
    # With the locked release they are equal; others round cutoffs otherwise.
    assert found.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-9)
