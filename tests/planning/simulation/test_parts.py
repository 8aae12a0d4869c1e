"""Populations, servers and timers: what the seed decides, and what each part refuses."""

import numpy as np
import pytest

from fl_dpftrl.planning.simulation import availabilities, populations, servers


def test_what_devices_are_like_is_the_seeds():
  first, same, other = (
    populations.SimulatedPopulation(num_devices=400, seed=seed) for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first.rates, same.rates)
  assert (first.rates != other.rates).all()
  assert (first.rates != first.report_seconds).all()


def test_rates_are_log_normal():
  people = populations.SimulatedPopulation(
    num_devices=100_000, check_ins_per_hour=3.0, rate_spread=0.7
  )
  assert np.median(people.rates) == pytest.approx(3.0, rel=0.02)
  assert np.log(people.rates).std() == pytest.approx(0.7, rel=0.02)
  alike = populations.SimulatedPopulation(num_devices=9, rate_spread=0.0)
  assert (alike.rates == 2.0).all()


def test_a_server_asks_for_what_is_missing_in_proportion():
  thirty_more = servers.Server(report_goal=100, clients_per_round=130)
  assert thirty_more.more(90) == 13
  assert thirty_more.more(99) == 2
  assert servers.Server(report_goal=5).more(3) == 2


# Part → values that it refuses, by argument.
REFUSED = {
  availabilities.Nightly: {
    'charging_hour': [11.0],
    'charging_hour_spread': [-1.0],
    'jitter_hours': [np.nan],
    'charging_nights': [1.1],
    'weekend_delay_hours': [13.0],
    'daytime': [-0.1],
    'window_hours': [(5.0, 4.0), (0.0, 4.0), (4.0, 25.0)],
    'time_zones': [(), (15.0,)],
  },
  populations.SimulatedPopulation: {
    'num_devices': [0, 2**31],
    'seed': [-1, 1.5],
    'check_ins_per_hour': [0.0, np.inf],
    'report_minutes': [-1.0],
    'rate_spread': [5.1],
    'speed_spread': [np.nan],
    'dropout': [1.0, -0.1],
    'turnover_per_day': [1.1],
    'forgetting_per_day': [-1.0],
  },
  servers.Server: {
    'report_goal': [0],
    'clients_per_round': [4],
    'minutes_between_rounds': [-1.0],
    'pace_minutes': [np.nan],
    'max_wait_days': [0.0, np.inf],
  },
  servers.RoundTimer: {'rounds': [0, -1, 1.5, True, None]},
  servers.HourTimer: {'hours': [0.0, -1.0, np.inf, np.nan]},
}
NEEDED = {populations.SimulatedPopulation: {'num_devices': 5}, servers.Server: {'report_goal': 5}}


@pytest.mark.parametrize(
  'part, name, value',
  [(p, name, value) for p, named in REFUSED.items() for name in named for value in named[name]],
)
def test_refused_arguments_are_named(part, name, value):
  with pytest.raises(ValueError, match=name):
    part(**NEEDED.get(part, {}) | {name: value})
