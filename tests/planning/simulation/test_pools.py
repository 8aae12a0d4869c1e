import hypothesis
import numpy as np
from hypothesis import strategies as st

from fl_dpftrl.planning.simulation import pools


@hypothesis.given(
  groups=st.lists(st.integers(0, 4), min_size=1, max_size=40),
  steps=st.lists(st.sets(st.integers(0, 39)), max_size=12),
)
def test_the_pool_is_a_set(groups, steps):
  groups = np.array(groups, np.int16)
  places = np.zeros(groups.size, np.int32)
  devices = pools.Pool(groups, places)
  expected = set(range(groups.size))
  for step in steps:
    chosen = {device for device in step if device < groups.size}
    leaving, coming = chosen & expected, chosen - expected
    devices.remove(np.array(sorted(leaving) * 2, np.int64))  # Who is not a member stays away.
    devices.add(np.array(sorted(coming) * 2, np.int64))
    expected = (expected - leaving) | coming
    assert set(np.flatnonzero(places >= 0).tolist()) == expected
    assert devices.size == len(expected)
    for group in range(devices.sizes.size):
      members = {d for d in expected if groups[d] == group}
      first, size = devices.first[group], devices.sizes[group]
      assert size == len(members) and set(devices.members[first:][:size].tolist()) == members


@hypothesis.given(
  times=st.lists(st.lists(st.floats(0, 1000), max_size=8), min_size=1, max_size=6),
  asked=st.lists(st.floats(0, 1200), max_size=8),
  step=st.sampled_from([1.0, 60.0]),
)
def test_nobody_comes_back_early_and_everybody_within_a_step(times, asked, step):
  queue = pools.Waiting(step)
  due = {}
  for batch in times:
    first = len(due)
    due.update(enumerate(batch, first))
    devices = np.arange(first, len(due))
    queue.add(np.array(batch), devices, 7 * devices)
  back = set()
  for now in sorted(asked):
    devices, tokens = queue.due(now)
    assert (tokens == 7 * devices).all()
    assert not back & set(devices.tolist())
    back |= set(devices.tolist())
    assert all(due[d] <= now for d in back)
    assert all(now < due[d] + step for d in due.keys() - back)
    assert queue.size == len(due) - len(back)
    assert queue.earliest > now
