import datetime

import hypothesis
import numpy as np
from hypothesis import strategies as st

from fl_dpftrl.planning.simulation import availabilities
from fl_dpftrl.support.kernels import check_in_loops as loops

MONDAY = 1767571200  # 2026-01-05 00:00 UTC.
HOUR = 3600

kinds = st.builds(
  availabilities.Nightly,
  charging_hour=st.floats(12, 36),
  charging_hour_spread=st.floats(0, 12),
  window_hours=st.tuples(st.floats(0.5, 12), st.floats(12, 24)),
  jitter_hours=st.floats(0, 6),
  charging_nights=st.floats(0, 1),
  weekend_delay_hours=st.floats(0, 6),
  daytime=st.floats(0, 0.5),
  time_zones=st.lists(st.floats(-14, 14), min_size=1, max_size=3),
)


def by_hand(kind, habits, seed, device, time):
  """Presence of one device, with the standard library's calendar."""
  start, length, offset = (float(v) for v in habits[device])
  epoch = datetime.datetime(1970, 1, 1)
  local = epoch + datetime.timedelta(seconds=time + offset)
  noon = local.replace(hour=12, minute=0, second=0, microsecond=0)
  if local < noon:
    noon -= datetime.timedelta(days=1)
  night = (noon.date() - epoch.date()).days
  numbers = [np.uint64(value) for value in (device, night)]
  draw = lambda purpose: loops.uniform(np.uint64(seed % 2**64), np.uint64(purpose), *numbers)
  if kind.jitter_hours:
    start += HOUR * kind.jitter_hours * (2 * draw(1) - 1)
  if noon.weekday() in (4, 5):
    start += HOUR * kind.weekend_delay_hours
  start = min(max(start, 0.0), 24 * HOUR - length)
  since = (local - noon).total_seconds()
  charged = kind.charging_nights == 1 or draw(2) < kind.charging_nights
  return 1.0 if charged and start <= since < start + length else kind.daytime


@hypothesis.given(
  kind=kinds,
  seed=st.integers(0, 2**70),
  times=st.lists(st.floats(0, 30 * 86400), min_size=6, max_size=6),
)
def test_presence_is_that_of_the_calendar(kind, seed, times):
  presence = kind.presence(6, seed)
  times = MONDAY + np.array(times)
  devices = np.array([4, 0, 5, 5, 1, 2])
  found = presence.at(devices, times)
  expected = [
    by_hand(kind, presence._habits, seed, device, time)
    for device, time in zip(devices.tolist(), times.tolist())
  ]
  # The calendar counts microseconds.
  around = [presence.at(devices, times + d) for d in (-1e-3, 1e-3)]
  sure = (around[0] == found) & (around[1] == found)
  np.testing.assert_array_equal(found[sure], np.array(expected)[sure])


@hypothesis.given(
  kind=kinds,
  seed=st.integers(0, 1000),
  start=st.floats(0, 14 * 86400),
  length=st.floats(1, 7200),
  places=st.lists(st.floats(0, 1), min_size=200, max_size=200),
)
def test_ceilings_are_never_exceeded(kind, seed, start, length, places):
  presence = kind.presence(200, seed)
  start += MONDAY
  ceiling = presence.ceiling(start, start + length)
  found = presence.at(np.arange(200), start + length * np.array(places))
  assert (found <= ceiling[presence.cells]).all()


def test_many_devices_at_once_are_those_one_by_one():
  presence, rng = availabilities.Nightly().presence(50, 3), np.random.default_rng(4)
  devices, times = rng.integers(50, size=600), MONDAY + rng.uniform(0, 5 * 86400, 600)
  found = presence.at(devices, times)
  expected = [presence.at(devices[i : i + 1], times[i : i + 1])[0] for i in range(600)]
  assert found.tolist() == expected and len(set(expected)) == 2
