import numpy as np
import pytest

from fl_dpftrl.simulation import timer


def test_round_timer_counts_rounds_from_the_devices_own_last():
  three = timer.RoundTimer(3)
  last = np.array([-1, 4, 5])
  eligible = three.eligible(7, 0, last, np.zeros(3, np.int64))
  assert eligible.tolist() == [True, True, False]
  assert three.eligible(8, 0, last, np.zeros(3, np.int64)).all()


def test_hour_timer_counts_seconds_from_the_devices_own_last():
  two = timer.HourTimer(2.0)
  last_round, last_time = np.array([-1, 0, 0]), np.array([0, 800, 801])
  eligible = two.eligible(1, 8000, last_round, last_time)
  assert eligible.tolist() == [True, True, False]
  assert two.eligible(1, 8001, last_round, last_time).all()


def test_hour_timer_says_when_enough_timers_will_have_run():
  two = timer.HourTimer(2.0)
  last_round, last_time = np.array([-1, 0, 0]), np.array([0, 800, 9000])
  earliest = [
      two.earliest(1, 1000, last_round, last_time, count) for count in (1, 2, 3)
  ]
  assert earliest == [1000, 8000, 16200]
  assert two.earliest(1, 1000, last_round, last_time, 4) is None


def test_round_timer_does_not_wait_for_time():
  two = timer.RoundTimer(2)
  last = np.array([-1, -1, 3])
  assert two.earliest(4, 77, last, np.zeros(3, np.int64), 2) == 77
  assert two.earliest(4, 77, last, np.zeros(3, np.int64), 3) is None


@pytest.mark.parametrize('rounds', [0, -1, 1.5, True, None])
def test_refuses_timers_in_rounds(rounds):
  with pytest.raises(ValueError, match='timer_rounds'):
    timer.RoundTimer(rounds)


@pytest.mark.parametrize('hours', [0.0, -1.0, np.inf, np.nan])
def test_refuses_timers_in_hours(hours):
  with pytest.raises(ValueError, match='timer_hours'):
    timer.HourTimer(hours)
