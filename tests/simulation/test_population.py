import numpy as np
import pytest

from fl_dpftrl.simulation import population


def test_what_devices_are_like_is_the_seeds():
  first, same, other = (population.Population(num_devices=400, seed=seed) for seed in (1, 1, 2))
  np.testing.assert_array_equal(first.rates, same.rates)
  assert (first.rates != other.rates).all()
  assert (first.rates != first.report_seconds).all()


def test_rates_are_log_normal():
  people = population.Population(num_devices=100_000, check_ins_per_hour=3.0, rate_spread=0.7)
  assert np.median(people.rates) == pytest.approx(3.0, rel=0.02)
  assert np.log(people.rates).std() == pytest.approx(0.7, rel=0.02)
  alike = population.Population(num_devices=9, rate_spread=0.0)
  assert (alike.rates == 2.0).all()


@pytest.mark.parametrize(
  'name, value',
  [
    ('num_devices', 0),
    ('num_devices', 2**31),
    ('seed', -1),
    ('seed', 1.5),
    ('check_ins_per_hour', 0.0),
    ('check_ins_per_hour', np.inf),
    ('report_minutes', -1.0),
    ('rate_spread', 5.1),
    ('speed_spread', np.nan),
    ('dropout', 1.0),
    ('dropout', -0.1),
    ('turnover_per_day', 1.1),
    ('forgetting_per_day', -1.0),
    ('wrong_clocks', 2.0),
    ('clock_error_hours', np.inf),
  ],
)
def test_refuses(name, value):
  with pytest.raises(ValueError, match=name):
    population.Population(**{'num_devices': 5, name: value})
