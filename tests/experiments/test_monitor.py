"""Progress of a run: its table, its event file, and what computes its rounds."""

import errno
import io
import types

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.stackoverflow import configuration, machines, training
from experiments.stackoverflow import monitor as monitor_lib
from fl_dpftrl.learning import checkpoints, metrics

pytestmark = pytest.mark.tff

FLAGS = configuration.Hparams(report_goal=2, num_rounds=2, noise_multiplier=1.0)


def checkpoint(num_rounds: int, burnt=()) -> checkpoints.Checkpoint:
  return checkpoints.Checkpoint(
    num_rounds=num_rounds,
    state=types.SimpleNamespace(global_model_weights=num_rounds),
    measurements={'loss': float(num_rounds)},
    burnt=burnt,
  )


def begin(path, latest, earlier):
  warnings = []
  monitor = monitor_lib.Monitor(
    table=metrics.MetricsTable(path),
    writer=None,
    num_rounds=10,
    rounds_per_evaluation=4,
    evaluate=lambda weights: {'accuracy': weights / 100},
    so_far=lambda num_rounds: {'epsilon': num_rounds / 10},
    warn=warnings.append,
  )
  monitor.begin(latest, iter(earlier))
  return warnings


def test_what_ran_computations_before_a_run_runs_them_again(monkeypatch):
  monkeypatch.setattr(tf.config.experimental, 'enable_op_determinism', lambda: None)
  stack = tff.framework.get_context_stack()
  before = stack.current
  with pytest.raises(KeyError), training._runtime(machines.Machines(), 0, print) as worker:
    assert stack.current is worker
    raise KeyError
  assert stack.current is before


def test_a_full_disk_at_the_start_of_the_events_is_one_line(tmp_path, monkeypatch):
  def full(folder):
    raise tf.errors.ResourceExhaustedError(None, None, f'{folder}; no space\n\tFailed to flush')

  monkeypatch.setattr(tf.summary, 'create_file_writer', full)
  with pytest.raises(OSError) as error:
    monitor_lib.event_writer(tmp_path, FLAGS)
  assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path))


def test_a_whole_table_is_left_as_it_is(tmp_path):
  path = tmp_path / 'metrics.csv'
  table = metrics.MetricsTable(path)
  for t in (0, 1, 3):
    table.put(t, {'loss': t + 1.0})
  assert not begin(path, checkpoint(4, burnt=(2,)), [])
  table.keep_only({0, 1})
  # The last row may be missing where the run was killed before it was written.
  assert not begin(path, checkpoint(3), [])


def test_lost_rows_come_from_checkpoints_or_are_named(tmp_path):
  path = tmp_path / 'metrics.csv'
  metrics.MetricsTable(path).put(0, {'loss': 1.0})
  earlier = [checkpoint(r, burnt=(2,)) for r in (8, 4)]
  warnings = begin(path, checkpoint(9, burnt=(2,)), earlier)
  table = metrics.MetricsTable(path)
  assert table.column('loss') == {0: 1.0, 3: 4.0, 7: 8.0}
  assert table.column('validation/accuracy') == {3: 0.04, 7: 0.08}
  assert len(warnings) == 2
  assert 'had lost rounds 3, 7:' in warnings[0]
  assert 'has lost rounds 1, 4-6:' in warnings[1]


def test_progress_says_what_trains(tmp_path):
  stream = io.StringIO()
  monitor = monitor_lib.Monitor(
    table=metrics.MetricsTable(tmp_path / 'metrics.csv'),
    writer=None,
    num_rounds=10,
    rounds_per_evaluation=1,
    evaluate=lambda weights: {},
    so_far=lambda num_rounds: {},
    warn=print,
    status=lambda: '2 of 2 actors, 1 lost so far',
    stream=stream,
  )
  monitor.publish(types.SimpleNamespace(num_rounds=4, measurements={}, burnt=()))
  assert stream.getvalue() == 'round 4/10 | 2 of 2 actors, 1 lost so far\n'
