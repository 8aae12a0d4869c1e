"""The table of a run: rows of lost rounds go, and lost rows are named."""

import types

import pytest

from fl_dpftrl import metrics
from fl_dpftrl.training import checkpoints, report

pytestmark = pytest.mark.tff


def restored(path, num_rounds, burnt=()):
  checkpoint = checkpoints.Checkpoint(
    num_rounds=num_rounds, state={'seed': 20301}, measurements={'loss': 1.0}, burnt=burnt
  )
  assert '20301' not in f'{checkpoint} {checkpoint!r}' and 'num_rounds' in repr(checkpoint)
  warnings = []
  run = types.SimpleNamespace(checkpoint=checkpoint, say=warnings.append)
  report.Table(path).restore(run)
  return warnings


def test_a_whole_table_is_left_as_it_is(tmp_path):
  path = tmp_path / 'metrics.csv'
  table = metrics.MetricsTable(path)
  for t in (0, 1, 3):
    table.put(t, {'loss': t + 1.0})
  assert not restored(path, 4, burnt=(2,))
  table.keep_only({0, 1})
  # The last row may be missing where the run was killed before it was written.
  assert not restored(path, 3)


def test_rows_of_lost_rounds_go_and_lost_rows_are_named(tmp_path):
  path = tmp_path / 'metrics.csv'
  metrics.MetricsTable(path).put(0, {'loss': 1.0})
  metrics.MetricsTable(path).put(2, {'loss': 1.0})
  (warning,) = restored(path, 9, burnt=(2,))
  assert 'has lost 6 rounds (1, 3, 4, 5, 6, 7):' in warning
  assert metrics.MetricsTable(path).rounds == [0]
