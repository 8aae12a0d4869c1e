import numpy as np
import pytest

from fl_dpftrl.simulation import availability

MIDNIGHT = 1767225600
DEVICES = 20_000


def curve(windows, days=1):
  """Part of the devices that can be reached at each hour of UTC."""
  return np.array([
      windows.available(MIDNIGHT + 3600 * hour).mean()
      for hour in range(24 * days)
  ])


def test_always():
  windows = availability.Always().windows(7, seed=3)
  assert curve(windows).min() == 1.0
  assert windows.available(MIDNIGHT).shape == (7,)


def test_mean_over_a_day_is_the_mean_window():
  nightly = availability.Nightly(window_hours=(3.0, 7.0))
  share = curve(nightly.windows(DEVICES, seed=0), days=3).mean()
  assert share == pytest.approx(5.0 / 24.0, abs=0.005)


def test_nights_are_full_and_afternoons_empty():
  share = curve(availability.Nightly().windows(DEVICES, seed=0))
  assert 0 <= share.argmax() <= 3
  assert share.max() > 0.75
  assert share[11:18].max() < 0.01


def test_share_follows_the_two_normals_that_bound_a_window():
  # With one length and no jitter, a device is in at h if it started within the
  # last four hours, and starts are normal.
  nightly = availability.Nightly(
      charging_hour=22.0,
      charging_hour_spread=2.0,
      window_hours=(4.0, 4.0),
      jitter_hours=0.0,
  )
  at_midnight = nightly.windows(DEVICES, seed=5).available(MIDNIGHT).mean()
  assert at_midnight == pytest.approx(0.6827, abs=0.015)


def test_time_zones_move_the_night():
  here = availability.Nightly(time_zones=(0.0,)).windows(DEVICES, seed=0)
  east = availability.Nightly(time_zones=(6.0,)).windows(DEVICES, seed=0)
  noon = MIDNIGHT + 12 * 3600
  for hour in range(24):
    now = noon + 3600 * hour
    np.testing.assert_array_equal(
        east.available(now), here.available(now + 6 * 3600)
    )
  spread = availability.Nightly(time_zones=tuple(range(-11, 13)))
  flat = curve(spread.windows(DEVICES, seed=0))
  assert flat.max() - flat.min() < 0.04


def test_jitter_changes_with_the_night_and_not_with_the_asking():
  nightly = availability.Nightly(jitter_hours=2.0)
  windows = nightly.windows(DEVICES, seed=1)
  evening = MIDNIGHT + 22 * 3600
  first, again = windows.available(evening), windows.available(evening)
  np.testing.assert_array_equal(first, again)
  other = nightly.windows(DEVICES, seed=1).available(evening)
  np.testing.assert_array_equal(first, other)
  next_night = windows.available(evening + 86400)
  changed = (first != next_night).mean()
  assert 0.1 < changed < 0.6
  steady = availability.Nightly(jitter_hours=0.0).windows(DEVICES, seed=1)
  np.testing.assert_array_equal(
      steady.available(evening), steady.available(evening + 86400)
  )


def test_habits_come_from_the_seed():
  nightly = availability.Nightly()
  first, second = (nightly.windows(50, seed=s) for s in (1, 2))
  assert (first.starts != second.starts).all()
  np.testing.assert_array_equal(first.starts, nightly.windows(50, 1).starts)


@pytest.mark.parametrize(
    'name, value',
    [
        ('charging_hour', 11.0),
        ('charging_hour_spread', -1.0),
        ('jitter_hours', np.nan),
        ('window_hours', (5.0, 4.0)),
        ('window_hours', (0.0, 4.0)),
        ('window_hours', (4.0, 25.0)),
        ('time_zones', ()),
        ('time_zones', (15.0,)),
    ],
)
def test_refuses(name, value):
  with pytest.raises(ValueError, match=name):
    availability.Nightly(**{name: value})
