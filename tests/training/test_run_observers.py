"""Observers of a run: its table, its event file, its progress lines and its plot."""

import errno
import io
import types

import pytest
import tensorflow as tf

from fl_dpftrl import metrics
from fl_dpftrl.training import checkpoints, loop, run_observers

pytestmark = pytest.mark.tff


def checkpoint(num_rounds: int, burnt=()) -> checkpoints.Checkpoint:
  return checkpoints.Checkpoint(
    num_rounds=num_rounds, state=num_rounds, measurements={'loss': float(num_rounds)}, burnt=burnt
  )


def run_of(**kwargs):
  process = types.SimpleNamespace(weights=lambda state: state)
  run = dict(
    num_rounds=10,
    folder=None,
    process=process,
    rounds=None,
    client_data=None,
    aggregator=None,
    claim=None,
  )
  return loop.TrainingRun(**{**run, **kwargs})


def begin(path, latest):
  warnings = []
  run_observers.Table(metrics.MetricsTable(path)).begin(run_of(say=warnings.append), latest)
  return warnings


def test_a_full_disk_at_the_start_of_the_events_is_one_line(tmp_path, monkeypatch):
  def full(folder):
    raise tf.errors.ResourceExhaustedError(None, None, f'{folder}; no space\n\tFailed to flush')

  monkeypatch.setattr(tf.summary, 'create_file_writer', full)
  with pytest.raises(OSError) as error:
    run_observers.event_writer(tmp_path, {'seed': 0})
  assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path))


def test_a_whole_table_is_left_as_it_is(tmp_path):
  path = tmp_path / 'metrics.csv'
  table = metrics.MetricsTable(path)
  for t in (0, 1, 3):
    table.put(t, {'loss': t + 1.0})
  assert not begin(path, checkpoint(4, burnt=(2,)))
  table.keep_only({0, 1})
  # The last row may be missing where the run was killed before it was written.
  assert not begin(path, checkpoint(3))


def test_lost_rows_are_named(tmp_path):
  path = tmp_path / 'metrics.csv'
  metrics.MetricsTable(path).put(0, {'loss': 1.0})
  (warning,) = begin(path, checkpoint(9, burnt=(2,)))
  assert 'has lost 6 rounds (1, 3, 4, 5, 6, 7):' in warning


def test_progress_lines_tell_the_last_evaluation_and_epsilon():
  said = []
  shown = run_observers.ProgressLine()
  run = run_of(say=said.append)
  first = checkpoint(0)
  shown.begin(run, first)
  for t, row in enumerate([{'validation/accuracy': 0.25, 'epsilon': 1.23}, {'train/loss': 2.0}]):
    one = checkpoints.Checkpoint(num_rounds=t + 1, state=None, measurements=row)
    shown.released(run, one)
  assert said[0].startswith('round 1/10 | validation accuracy 25.00 % | ε so far 1.23 | ')
  assert said[1].startswith('round 2/10 | training loss 2.000 | validation accuracy 25.00 % | ε')
  assert said[1].endswith(' left')
  stream = io.StringIO()
  seldom = run_observers.ProgressLine(4, stream=stream)
  for t in range(10):
    seldom.released(run, checkpoint(t + 1))
  assert [line.split(' ')[1] for line in stream.getvalue().splitlines()] == [
    '4/10',
    '8/10',
    '10/10',
  ]


def test_long_rounds_have_a_line_every_half_minute(monkeypatch):
  stream, now = io.StringIO(), [100.0]
  monkeypatch.setattr(run_observers.time, 'monotonic', lambda: now[0])
  shown = run_observers.ProgressLine(100, stream=stream)
  shown.begin(run_of(), checkpoint(0))
  for t in range(7):
    now[0] += 10.0
    shown.released(run_of(), checkpoint(t + 1))
  lines = stream.getvalue().splitlines()
  assert [line.split(' ')[1] for line in lines] == ['3/10', '6/10'] and 'left' in lines[0]


def test_a_checkpoint_that_observers_see_does_not_show_its_state():
  one = checkpoints.Checkpoint(num_rounds=3, state={'seed': 20301}, measurements={'loss': 1.0})
  assert '20301' not in f'{one} {one!r}' and 'num_rounds=3' in repr(one)
