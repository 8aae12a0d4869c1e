"""Traces against loops over their intervals, second by second or one by one."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.simulation import traces as traces_lib

MONDAY = 1767571200
"""2026-01-05 00:00 UTC."""

HOUR, DAY = 3600, 86400


def is_there(intervals, period, time):
  """Returns true if a trace of [start, end) pairs is there, by its definition."""
  lap = int((time - traces_lib.MONDAY) // period)
  inside = time - traces_lib.MONDAY - lap * period
  # Intervals may be anywhere: look at every copy that can reach this lap.
  return any(
    start + copy * period <= inside < end + copy * period
    for start, end in intervals
    for copy in range(-int(max(end, 0) // period) - 1, int(-min(start, 0) // period) + 2)
  )


def traced(lists, periods):
  owners = [i for i, intervals in enumerate(lists) for _ in intervals]
  pairs = [pair for intervals in lists for pair in intervals]
  starts, ends = np.array(pairs, np.int64).reshape(-1, 2).T
  return traces_lib.Traces.from_intervals(
    np.array(owners, np.int64), starts, ends, np.array(periods, np.int64)
  )


def following(traces, devices):
  return traces_lib.TracedPresence(traces, np.asarray(devices))


@st.composite
def cases(draw):
  """Intervals and periods of a few traces, of seconds or of days."""
  unit = draw(st.sampled_from([1, 600, HOUR, 5 * HOUR]))
  lists, periods = [], []
  for _ in range(draw(st.integers(1, 6))):
    period = draw(st.sampled_from([7, 1800, DAY, 2 * DAY, 7 * DAY]))
    times = st.integers(-20, 60).map(lambda k: k * unit)
    lengths = st.integers(0, 12).map(lambda k: k * unit)
    lists.append(
      [
        (start, start + length)
        for start, length in draw(st.lists(st.tuples(times, lengths), max_size=5))
      ]
    )
    periods.append(period)
  return lists, periods


@hypothesis.given(cases(), st.lists(st.integers(0, 10**6) | st.floats(0, 1e6), max_size=40))
def test_at_is_the_loop_over_intervals(case, offsets):
  lists, periods = case
  traces = traced(lists, periods)
  presence = following(traces, np.arange(len(lists)))
  # Edges of intervals are the times that matter most.
  edges = [time % 10**6 for pairs in lists for pair in pairs for time in pair]
  times = np.array([*offsets, *edges, 0.0], np.float64)
  times = np.concatenate([times, MONDAY + times])
  for trace, intervals in enumerate(lists):
    found = presence.at(np.full(times.size, trace), times)
    expected = [is_there(intervals, periods[trace], time) for time in times]
    np.testing.assert_array_equal(found, np.array(expected, np.float64))


@pytest.mark.slow
@hypothesis.given(
  cases(),
  st.floats(0, 1e6),
  st.floats(0, 86400.0) | st.floats(0, 10.0) | st.floats(0, 1e6),
  st.integers(0, 2**32),
)
def test_ceiling_is_never_below_at(case, offset, length, seed):
  lists, periods = case
  presence = traced(lists, periods).presence(40, seed)
  assert presence.cells.shape == (40,)
  start, end = MONDAY + offset, MONDAY + offset + length
  hypothesis.assume(start < end)
  ceiling = presence.ceiling(start, end)
  assert presence.cells.max() < ceiling.size <= 48
  inside = np.linspace(start, end, 200)[:-1]
  devices = np.arange(40)
  for time in inside[inside < end]:
    there = presence.at(devices, np.full(40, time))
    assert np.all(there <= ceiling[presence.cells])


def test_intervals_that_overlap_or_touch_are_one():
  pairs = [(50, 60), (10, 20), (20, 30), (12, 14), (40, 40), (55, 70)]
  traces = traced([pairs, [(0, 5)]], [100, 100])
  assert traces.starts.tolist() == [10, 50, 0]
  assert traces.ends.tolist() == [30, 70, 5]


def test_same_seed_same_presence_and_all_traces_alike_often():
  lists = [[(hour * HOUR, (hour + 1) * HOUR)] for hour in range(10)]
  traces = traced(lists, [DAY] * 10)
  time = np.full(20_000, MONDAY + 3.5 * HOUR)
  first, again, other = (
    traces.presence(20_000, seed).at(np.arange(20_000), time) for seed in (4, 4, 5)
  )
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()
  assert first.mean() == pytest.approx(0.1, abs=0.01)


def test_cells_of_mornings_and_evenings_have_ceilings_of_their_own():
  lists = [[(h * HOUR, (h + 3) * HOUR)] for h in (5, 6, 7, 22, 23)]
  lists += [[(0, DAY)], []]
  presence = following(traced(lists, [DAY] * 7), np.arange(7))
  of_device = lambda hour: presence.ceiling(MONDAY + hour * HOUR, MONDAY + (hour + 0.1) * HOUR)[
    presence.cells
  ]
  assert of_device(6)[:5].tolist() == [1, 1, 0, 0, 0]
  assert of_device(23.5)[:5].tolist() == [0, 0, 0, 1, 1]
  assert of_device(15).tolist() == [0, 0, 0, 0, 0, 1, 0]


def test_a_ceiling_reaches_over_the_end_of_the_period():
  presence = following(traced([[(HOUR, 2 * HOUR)]], [2 * DAY]), [0])
  late = MONDAY + 2 * DAY - 3 * HOUR
  for hours, expected in ((3.5, 0), (4.5, 1), (48, 1)):
    assert presence.ceiling(late, late + hours * HOUR).tolist() == [expected]


def test_weekends_have_no_ceiling_on_weekdays():
  weekend = [(5 * DAY + 9 * HOUR, 5 * DAY + 12 * HOUR)]
  presence = following(traced([weekend], [7 * DAY]), [0])
  times = MONDAY + HOUR * np.arange(7 * 24)
  hours = [presence.ceiling(time, time + HOUR)[0] for time in times]
  assert np.flatnonzero(hours).tolist() == [128, 129, 130, 131]


def test_many_periods_share_a_cell_whose_ceiling_is_one():
  periods = [DAY] * 50 + [1000 + i for i in range(60)]
  presence = following(traced([[(0, 100)]] * 110, periods), np.arange(110))
  ceiling = presence.ceiling(MONDAY + 12 * HOUR, MONDAY + 13 * HOUR)
  assert ceiling.size <= 48
  assert ceiling[presence.cells[0]] == 0.0
  assert ceiling[presence.cells[-1]] == 1.0


def test_a_trace_that_is_never_there():
  presence = following(traced([[]], [DAY]), np.zeros(3, int))
  assert presence.at(np.arange(3), np.full(3, MONDAY + 0.5)).tolist() == [0] * 3
  assert presence.ceiling(MONDAY, MONDAY + DAY).tolist() == [0]
