import numpy as np
import pytest

from fl_dpftrl import workloads


def test_rises_stays_and_falls_over_the_stated_fractions():
  rates = workloads.warmup_cooldown(2.0, 100)
  assert rates.dtype == np.float32
  np.testing.assert_allclose(rates[0], 0.1)
  assert (np.diff(rates[:16]) > 0).all()
  np.testing.assert_allclose(rates[15:75], 2.0)
  assert (np.diff(rates[74:]) < 0).all()
  np.testing.assert_allclose(rates[-1], 0.1)
  np.testing.assert_allclose(rates.max(), 2.0)


def test_is_linear():
  rates = workloads.warmup_cooldown(1.0, 1000, warmup_fraction=0.5, cooldown_fraction=0.5)
  np.testing.assert_allclose(np.diff(rates[:500], 2), 0, atol=1e-6)
  np.testing.assert_allclose(rates, rates[::-1], atol=1e-6)


def test_no_ramps_is_constant():
  np.testing.assert_array_equal(
    workloads.warmup_cooldown(0.5, 7, warmup_fraction=0.0, cooldown_fraction=0.0),
    np.full(7, 0.5, np.float32),
  )


@pytest.mark.parametrize('num_rounds', [1, 2, 3])
def test_short_runs_have_a_positive_rate_everywhere(num_rounds):
  rates = workloads.warmup_cooldown(1.0, num_rounds)
  assert rates.shape == (num_rounds,) and (rates > 0).all()


@pytest.mark.parametrize(
  'arguments, named',
  [
    (dict(server_learning_rate=0.0), 'server_learning_rate'),
    (dict(server_learning_rate=float('nan')), 'server_learning_rate'),
    (dict(num_rounds=0), 'num_rounds'),
    (dict(warmup_fraction=-0.1), 'warmup_fraction'),
    (dict(cooldown_fraction=1.1), 'cooldown_fraction'),
    (dict(warmup_fraction=0.6, cooldown_fraction=0.5), 'warmup_fraction'),
  ],
)
def test_bad_arguments_are_named(arguments, named):
  with pytest.raises(ValueError, match=named):
    workloads.warmup_cooldown(**{'server_learning_rate': 1.0, 'num_rounds': 10, **arguments})
