import numpy as np
import pytest

from fl_dpftrl.simulation import server


@pytest.mark.parametrize('rounds', [0, -1, 1.5, True, None])
def test_refuses_timers_in_rounds(rounds):
  with pytest.raises(ValueError, match='timer_rounds'):
    server.RoundTimer(rounds)


@pytest.mark.parametrize('hours', [0.0, -1.0, np.inf, np.nan])
def test_refuses_timers_in_hours(hours):
  with pytest.raises(ValueError, match='timer_hours'):
    server.HourTimer(hours)


@pytest.mark.parametrize(
  'name, value',
  [
    ('report_goal', 0),
    ('clients_per_round', 4),
    ('minutes_between_rounds', -1.0),
    ('pace_minutes', np.nan),
    ('max_wait_days', 0.0),
    ('max_wait_days', np.inf),
  ],
)
def test_refuses_servers(name, value):
  with pytest.raises(ValueError, match=name):
    server.Server(**{'report_goal': 5, name: value})


def test_a_server_asks_for_what_is_missing_in_proportion():
  thirty_more = server.Server(report_goal=100, clients_per_round=130)
  assert thirty_more.more(90) == 13
  assert thirty_more.more(99) == 2
  assert server.Server(report_goal=5).more(3) == 2
