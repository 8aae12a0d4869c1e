import collections
import os
import stat

import numpy as np
import pytest

from fl_dpftrl.support import metrics

pytestmark = pytest.mark.tff


def test_rows_are_by_round_and_columns_by_first_appearance(tmp_path):
  path = tmp_path / 'metrics.csv'
  table = metrics.MetricsTable(path)
  table.put(1, {'loss': 0.1 + 0.2})
  table.put(0, {'loss': 1.5, 'accuracy': 0.25})
  assert path.read_text() == ('round,loss,accuracy\n0,1.5,0.25\n1,0.30000000000000004,\n')
  assert metrics.MetricsTable(path).history().column('accuracy') == {0: 0.25}
  assert metrics.MetricsTable(path).history().column('loss')[1] == 0.1 + 0.2


def test_a_round_is_replaced_and_others_dropped(tmp_path):
  path = tmp_path / 'metrics.csv'
  table = metrics.MetricsTable(path)
  for t in range(4):
    table.put(t, {'loss': float(t)})
  again = metrics.MetricsTable(path)
  again.put(2, {'loss': 9.0})
  again.keep_only({0, 2})
  assert metrics.MetricsTable(path).history().column('loss') == {0: 0.0, 2: 9.0}


def test_measurements_are_named_by_their_path():
  measurements = collections.OrderedDict(
    aggregator=collections.OrderedDict(row=np.int64(3), inner=()),
    train=collections.OrderedDict(loss=np.float32(0.5), vector=np.ones(2)),
  )
  assert metrics.flatten(measurements) == {'aggregator/row': 3, 'train/loss': 0.5}


@pytest.mark.parametrize('umask', [0o022, 0o077])
def test_measurements_without_noise_are_the_owners_alone(tmp_path, umask):
  path = tmp_path / 'metrics.csv'
  old = os.umask(umask)
  try:
    metrics.MetricsTable(path).put(0, {'train/loss': 1.5})
  finally:
    os.umask(old)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize('cut', range(1, 24))
def test_a_truncated_table_has_whole_rows_alone(tmp_path, cut):
  path = tmp_path / 'metrics.csv'
  table = metrics.MetricsTable(path)
  for t in range(2):
    table.put(t, {'loss': 0.125, 'words': 7})
  content = path.read_bytes()
  path.write_bytes(content[:-cut])
  again = metrics.MetricsTable(path)
  lines = content[:-cut].count(b'\n')
  assert again.rounds == list(range(max(lines - 1, 0)))
  assert set(again.history().column('loss').values()) <= {0.125}


@pytest.mark.parametrize('content', [b'\xff\n1\n', b'round\n"1\n2\n', b'a\n1\n'])
def test_what_is_no_table_is_refused_with_its_name(tmp_path, content):
  path = tmp_path / 'metrics.csv'
  path.write_bytes(content)
  with pytest.raises(ValueError, match='metrics.csv line .* move the file away'):
    metrics.MetricsTable(path)


def test_the_first_round_that_is_not_finite(tmp_path):
  table = metrics.MetricsTable(tmp_path / 'metrics.csv')
  table.put(0, {'loss': 0.5, 'name': 'text'})
  assert table.history().first_not_finite() is None
  table.put(1, {'loss': float('inf')})
  table.put(2, {'loss': float('nan')})
  assert table.history().first_not_finite() == 1
