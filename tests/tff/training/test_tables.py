"""The table of a run: rows of lost rounds go, and lost rows are named."""

import types

import numpy as np
import pytest

from fl_dpftrl.support import metrics
from fl_dpftrl.tff.training import checkpoints, report

pytestmark = pytest.mark.tff


RUN = 'ab' * 16


def bound(path):
  table = metrics.MetricsTable(path)
  table.bind(RUN)
  return table


def restored(path, num_rounds, burnt=()):
  checkpoint = checkpoints.Checkpoint(
    num_rounds=num_rounds, state={'seed': 20301}, measurements={'loss': 1.0}, burnt=burnt
  )
  assert '20301' not in f'{checkpoint} {checkpoint!r}' and 'num_rounds' in repr(checkpoint)
  warnings = []
  guard = types.SimpleNamespace(log=types.SimpleNamespace(run=RUN))
  run = types.SimpleNamespace(checkpoint=checkpoint, say=warnings.append, guard=guard)
  report.Table(path).restore(run)
  return warnings


def test_a_whole_table_is_left_as_it_is(tmp_path):
  path = tmp_path / 'metrics.csv'
  table = bound(path)
  for t in (0, 1, 3):
    table.put(t, {'loss': t + 1.0})
  assert not restored(path, 4, burnt=(2,))
  table.keep_only({0, 1})
  # The last row may be missing where the run was killed before it was written.
  assert not restored(path, 3)


def test_rows_of_lost_rounds_go_and_lost_rows_are_named(tmp_path):
  path = tmp_path / 'metrics.csv'
  bound(path).put(0, {'loss': 1.0})
  bound(path).put(2, {'loss': 1.0})
  (warning,) = restored(path, 9, burnt=(2,))
  assert 'has lost 6 rounds (1, 3, 4, 5, 6, 7):' in warning
  assert metrics.MetricsTable(path).rounds == [0]


@pytest.mark.parametrize('sample', [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_row_that_was_changed_or_is_of_another_run_is_refused(tmp_path, sample):
  path = tmp_path / 'metrics.csv'
  for t in range(3):
    bound(path).put(t, {'loss': 0.1 + t, **({'val/accuracy': 0.25} if t == 1 else {})})
  expected, content = bound(path).history(), path.read_bytes()
  header, first, *_ = content.splitlines()
  assert header == b'round,loss,val/accuracy,sha256' and first.startswith(b'0,0.1,,')
  for bit in np.random.default_rng(0).permutation(8 * len(content))[:sample].tolist():
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    try:
      history = bound(path).history()
    except ValueError:
      continue
    for name, column in history.measured.items():  # A row may be lost, which `restore` names.
      assert column.items() <= expected.column(name).items()
  path.write_bytes(content)
  with pytest.raises(ValueError, match='round 0 was changed, or is of another run'):
    metrics.MetricsTable(path).bind('cd' * 16)
