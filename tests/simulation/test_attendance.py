"""Totals of rounds, and sentences that explain their min-sep."""

import numpy as np
import pytest

from fl_dpftrl.participation import schemas
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import server


def test_cohorts_are_counted_with_their_times():
  attendance = attendance_lib.Attendance()
  assert attendance.days == 0.0
  for t, ids in enumerate(([3, 5000], [], [0, 3])):
    attendance.add_cohort(schemas.Cohort(t, np.array(ids, np.int64), 100 * t, 100 * t + 50))
  assert attendance.to_json() == {
    'num_rounds': 3,
    'num_devices': 3,
    'num_participations': 4,
    'min_sep': 2,
    'max_participations': 2,
    'simulated_days': 250 / 86400,
  }
  with pytest.raises(ValueError, match='next round is 3, got 4'):
    attendance.add_cohort(schemas.Cohort(4, np.arange(3), 0, 1))


def attended(*rounds):
  """Totals of rounds of an hour each, one after the other."""
  totals = attendance_lib.Attendance()
  for t, ids in enumerate(rounds):
    totals.add_cohort(schemas.Cohort(t, np.array(ids), 3600 * t, 3600 * (t + 1)))
  return totals


THRICE = attended([0, 1], [2], [0], [1, 2])


@pytest.mark.parametrize(
  'kind, totals, words',
  [
    (server.RoundTimer(2), attended([0], [1]), 'No device took part twice'),
    (server.RoundTimer(2), THRICE, 'the earliest device returned after 2 rounds'),
    (server.RoundTimer(3), THRICE, 'gave a min-sep of only 2'),
    (server.HourTimer(100.0), THRICE, 'is longer than the whole run; min-sep 2'),
    (server.HourTimer(2.0), THRICE, 'was 1 rounds long in the median, 1 at most and 1 at least'),
    (
      server.HourTimer(2.0),
      THRICE,
      'No device can return in under 1 rounds; the earliest returned',
    ),
    (server.HourTimer(4.0), THRICE, 'The min-sep of 2 is below that'),
  ],
)
def test_says_why(kind, totals, words):
  assert words in attendance_lib.explain(kind, totals)
