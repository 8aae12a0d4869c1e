"""Totals of rounds, and sentences that explain their min-sep."""

import numpy as np
import pytest

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.planning.simulation import attendances


def test_cohorts_are_counted_with_their_times():
  attendance = attendances.Attendance()
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
