"""Traces against loops over their intervals, and tables of them, good and bad."""

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from fl_dpftrl.planning.simulation import trace_tables
from fl_dpftrl.support import machine
from tests import made

MONDAY = 1767571200
"""2026-01-05 00:00 UTC."""

HOUR, DAY = 3600, 86400


def traced(lists):
  """Returns traces of lists of (start, end), in seconds after a Monday."""
  owners = [i for i, intervals in enumerate(lists) for _ in intervals]
  pairs = np.array([pair for intervals in lists for pair in intervals], np.int64).reshape(-1, 2)
  starts, ends = pairs.T + MONDAY
  return trace_tables.Traces(np.array(owners), starts, ends)


def following(lists):
  return trace_tables.TracedPresence(traced(lists), np.arange(len(lists)))


def is_there(intervals, period, time):
  return any((time - MONDAY - start) % period < end - start for start, end in intervals)


@st.composite
def cases(draw):
  """Intervals of a few traces, of seconds or of days."""
  unit = draw(st.sampled_from([1, 600, HOUR, 5 * HOUR]))
  starts = st.integers(-20, 60).map(lambda k: k * unit)
  lengths = st.integers(1, 12).map(lambda k: k * unit)
  pairs = st.tuples(starts, lengths).map(lambda pair: (pair[0], sum(pair)))
  return draw(st.lists(st.lists(pairs, min_size=1, max_size=5), min_size=1, max_size=6))


@hypothesis.given(cases(), st.lists(st.integers(0, 10**6) | st.floats(0, 1e6), max_size=40))
def test_at_is_the_loop_over_intervals(lists, offsets):
  presence, period = following(lists), traced(lists).period
  # Edges of intervals are the times that matter most.
  edges = [time % 10**6 for pairs in lists for pair in pairs for time in pair]
  times = MONDAY + np.array([*offsets, *edges, 0.0])
  for trace, intervals in enumerate(lists):
    found = presence.at(np.full(times.size, trace), times)
    assert found.tolist() == [is_there(intervals, period, time) for time in times]


@pytest.mark.slow
@hypothesis.given(
  cases(),
  st.floats(0, 1e6),
  st.floats(0, 86400.0) | st.floats(0, 10.0) | st.floats(0, 1e6),
  st.integers(0, 2**32),
)
def test_ceiling_is_never_below_at(lists, offset, length, seed):
  presence = traced(lists).presence(40, seed)
  assert presence.cells.shape == (40,)
  start, end = MONDAY + offset, MONDAY + offset + length
  hypothesis.assume(start < end)
  ceiling = presence.ceiling(start, end)
  inside = np.linspace(start, end, 200)[:-1]
  devices = np.arange(40)
  for time in inside[inside < end]:
    there = presence.at(devices, np.full(40, time))
    assert np.all(there <= ceiling[presence.cells])


@pytest.mark.parametrize('last, days', [(1, 1), (DAY, 1), (DAY + 1, 2), (8 * DAY, 14)])
def test_times_repeat_after_days_or_weeks(last, days):
  traces = traced([[(0, 1), (last - 1, last)]])
  assert traces.period == days * DAY


def test_a_device_draws_a_trace_by_the_seed_and_all_equally_often():
  lists = [[(hour * HOUR, (hour + 1) * HOUR)] for hour in range(10)]
  time = np.full(20_000, MONDAY + 3.5 * HOUR)
  first, again, other = (
    traced(lists).presence(20_000, seed).at(np.arange(20_000), time) for seed in (4, 4, 5)
  )
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()
  assert first.mean() == pytest.approx(0.1, abs=0.01)


def write(path, **columns):
  pq.write_table(pa.table(columns), path)
  return path


def at(*texts, zone=None):
  return pa.array(np.array(texts, 'datetime64[ms]'), pa.timestamp('ms', zone))


@made.cases(
  'zone, ids',
  (None, ['b', 'a', 'b']),
  ('UTC', [12, 7, 12]),
  ('Asia/Tokyo', pa.array(['b', 'a', 'b']).dictionary_encode()),
)
def test_a_table_of_times(zone, ids, tmp_path):
  path = write(
    tmp_path / 'a.parquet',
    device=ids,
    start=at('2026-01-05T01:00', '2026-01-06T00:00', '2026-01-05T03:00:00.500', zone=zone),
    end=at('2026-01-05T02:00', '2026-01-06T01:00', '2026-01-05T04:00:00.500', zone=zone),
    more=[1, 2, 3],
  )
  traces = trace_tables.read_traces(path)
  rows = sorted(zip(traces.owners, traces.starts - MONDAY, traces.ends - MONDAY))
  assert rows == [(0, DAY, DAY + HOUR), (1, HOUR, 2 * HOUR), (1, 3 * HOUR, 4 * HOUR + 1)]
  assert traces.period == DAY


EARLY, LATE = at('2026-01-05T01:00'), at('2026-01-05T02:00')


@made.cases(
  'columns, words',
  (dict(device=[1], start=EARLY), 'must be a Parquet table'),
  (dict(device=[1], start=[3], end=[4]), 'must be a Parquet table'),
  (dict(device=[[1]], start=EARLY, end=LATE), 'must be a Parquet table'),
  (dict(device=[None], start=EARLY, end=LATE), 'device is missing in a row'),
  (dict(device=[1], start=EARLY, end=pa.nulls(1, LATE.type)), 'end is missing in a row'),
  (dict(device=[1], start=LATE, end=EARLY), 'end must be after start in every row'),
  (dict(device=[1], start=at('1990-01-01'), end=LATE), 'more than 3650'),
  (
    dict(device=pa.array([], pa.int64()), start=EARLY[:0], end=LATE[:0]),
    'no time at which a device',
  ),
)
def test_other_tables_are_refused(columns, words, tmp_path):
  path = write(tmp_path / 'a.parquet', **columns)
  with pytest.raises(ValueError, match=words) as error:
    trace_tables.read_traces(path)
  assert str(error.value).startswith(str(path)) and len(str(error.value)) < 300


def test_a_damaged_table_is_refused_by_its_name(tmp_path):
  twice = dict(start=EARLY.take([0, 0]), end=LATE.take([0, 0]))
  path = write(tmp_path / 'a.parquet', device=['a', 'b'], **twice)
  whole = path.read_bytes()
  for place in range(4, len(whole)):
    path.write_bytes(whole[:place] + b'\xff' + whole[place + 1 :])
    try:
      trace_tables.read_traces(path)
    except ValueError as error:
      assert str(error).startswith(str(path))


def test_a_table_beyond_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
  monkeypatch.setattr(machine, 'free_memory', lambda: 3 << 20)
  count = 100_000
  columns = dict(start=pa.concat_arrays([EARLY] * count), end=pa.concat_arrays([LATE] * count))
  path = write(tmp_path / 'a.parquet', device=[f'{i:060}' for i in range(count)], **columns)
  with pytest.raises(
    ValueError, match='a.parquet must be .* it needs 15 MiB of memory, and 3 are free'
  ):
    trace_tables.read_traces(path)


@pytest.mark.parametrize('lines, files', [
  ('0::/job/step', ('job/step/memory.max', 'job/step/memory.current', 'job/step/memory.stat')),
  ('0::/of/the/host', ('memory.max', 'memory.current', 'memory.stat')),
  ('7:cpu:/\n4:memory:/job', (
    'memory/job/memory.limit_in_bytes', 'memory/job/memory.usage_in_bytes',
    'memory/job/memory.stat',
  )),
])  # fmt: skip
def test_the_memory_of_a_container_counts(lines, files, tmp_path, monkeypatch):
  whole = machine.free_memory()
  assert whole > 0
  monkeypatch.setattr(machine, '_GROUPS', tmp_path / 'cgroup')
  monkeypatch.setattr(machine, '_ROOT', tmp_path / 'fs')
  (tmp_path / 'cgroup').write_text(lines + '\n')
  texts = '9000\n', '5000\n', 'anon 1\ninactive_file 700\ntotal_inactive_file 700\n'
  for name, text in zip(files, texts):
    path = tmp_path / 'fs' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  assert machine.free_memory() == 4700
  (tmp_path / 'fs' / files[0]).write_text('max\n')
  assert machine.free_memory() > 10_000


def test_other_files_are_refused(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text('device,start,end\n')
  with pytest.raises(ValueError, match='must be a Parquet table'):
    trace_tables.read_traces(path)
  with pytest.raises(FileNotFoundError):
    trace_tables.read_traces(tmp_path / 'none')
