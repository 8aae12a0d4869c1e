"""Progress lines, and the observers that measure for them."""

import io
import types

import pytest

from fl_dpftrl.run.observers import measuring, observer, progress

RUN = types.SimpleNamespace(max_rounds=10)


def test_progress_lines_tell_the_last_evaluation_and_epsilon(capsys):
  shown = progress.ProgressLine()
  shown.begin(RUN)
  shown.begin(RUN, 0)
  for t, row in enumerate([{'validation/accuracy': 0.25, 'epsilon': 1.23}, {'train/loss': 2.0}]):
    shown.released(RUN, t, row)
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].startswith('round 1/10 | validation accuracy 25.00 % | ε so far 1.23 | ')
  assert lines[1].startswith('round 2/10 | training loss 2.000 | validation accuracy 25.00 % | ε')
  assert lines[1].endswith(' left')
  stream = io.StringIO()
  seldom = progress.ProgressLine(4, stream=stream)
  for t in range(10):
    seldom.released(RUN, t, {})
  assert [line.split()[1] for line in stream.getvalue().splitlines()] == ['4/10', '8/10', '10/10']


def test_a_run_without_an_end_has_no_last_round_and_no_time_left():
  shown, run = progress.ProgressLine(), types.SimpleNamespace(max_rounds=2**20)
  shown.begin(run, 0)
  assert [shown.line(run, t, {}) for t in range(2)] == ['round 1', 'round 2']


def test_long_rounds_have_a_line_every_half_minute(monkeypatch):
  stream, now = io.StringIO(), [100.0]
  monkeypatch.setattr(progress.time, 'monotonic', lambda: now[0])
  shown = progress.ProgressLine(100, stream=stream)
  shown.begin(RUN, 0)
  for t in range(7):
    now[0] += 10.0
    shown.released(RUN, t, {})
  lines = stream.getvalue().splitlines()
  assert [line.split(' ')[1] for line in lines] == ['3/10', '6/10'] and 'left' in lines[0]


def test_seconds_of_a_round_that_an_earlier_start_began_are_not_known(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(measuring.time, 'monotonic', lambda: now[0])
  seconds = measuring.Seconds()
  assert seconds.released(RUN, 3, {}) == {}
  now[0] += 2.0
  seconds.begin(RUN, 4)
  assert seconds.released(RUN, 4, {}) == {'seconds': 2.0}


def test_observers_that_measure_come_first_and_others_are_refused():
  seen = []

  class Seeing(observer.Observer):
    def released(self, run, round_index, measurements):
      seen.append(dict(measurements))

  evaluation = measuring.Evaluation(lambda weights: {'accuracy': weights}, 1)
  run = types.SimpleNamespace(max_rounds=10, weights=lambda: 0.5)
  several = observer.Observers([Seeing(), evaluation], 'run')
  assert several.released(run, 0, {'loss': 1.0}) == seen[0]
  assert seen == [{'loss': 1.0, 'validation/accuracy': 0.5}]
  for wrong in (['tensorboard'], evaluation):
    with pytest.raises(ValueError, match='observers must be a list of Observers, got '):
      observer.Observers(wrong, 'run')
