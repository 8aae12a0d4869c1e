import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.participation import schemas
from fl_dpftrl.simulation import attendance as attendance_lib


@hypothesis.settings(deadline=None)
@hypothesis.given(rounds=st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=25))
def test_counts_are_those_of_the_log(rounds):
  attendance = attendance_lib.Attendance()
  for t, devices in enumerate(rounds):
    ids = np.array(sorted(devices), np.int64)
    attendance.add(schemas.Cohort(t, ids, 100 * t, 100 * t + 50))
  columns = [(t, d) for t, devices in enumerate(rounds) for d in devices]
  assert attendance.num_participations == len(columns)
  assert attendance.num_devices == len({d for _, d in columns})
  assert attendance.days == pytest.approx((100 * len(rounds) - 50) / 86400)
  if columns:
    observed = schemas.schema_of([t for t, _ in columns], [d for _, d in columns], len(rounds))
    assert attendance.min_sep == observed.min_sep
    assert attendance.max_participations == observed.participations
    assert attendance.participations.total == attendance.num_devices
    twice = attendance.num_participations - attendance.num_devices
    assert attendance.separations.total == twice


def test_rounds_have_to_come_in_order():
  attendance = attendance_lib.Attendance()
  with pytest.raises(ValueError, match='next round is 0, got 1'):
    attendance.add(schemas.Cohort(1, np.arange(3), 0, 1))
