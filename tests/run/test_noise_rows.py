"""Rows of noise in a folder: the engine's, each once, over any starts; copies are noticed."""

import errno
import json
import os
import pathlib
import shutil
import threading
import time
from concurrent import futures

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.noise import integer_rows, normals, snapshots, trails
from fl_dpftrl.run import guards, noise_rows
from fl_dpftrl.support.files import durable, mark
from tests import every_family, made

BLT = made.BLT
SIZE = 37


def opened(folder, strategy=BLT, **arguments):
  return dpftrl.NoiseRows(strategy, SIZE, folder=folder, **dict(noise_seed=5) | arguments)


def engine_rows(strategy, num_rounds, seed=5):
  maker = integer_rows.RowMaker(
    strategy,
    size=SIZE,
    num_rounds=strategy.max_rounds or 2**20,
    seed=normals.fixed_seed(seed),
    num_threads=1,
  )
  result = np.empty((num_rounds, SIZE), np.int64)
  for row in result:
    maker.make(row)
  maker.close()
  return result


# No buffers, a fixed number, and as many as the row needs: tests/noise has each family.
@pytest.mark.parametrize('family', ['identity', 'blt', 'tree_online'])
def test_rows_are_the_engines_over_any_starts(family, tmp_path):
  strategy = every_family.example(family, 9)
  expected = engine_rows(strategy, 7)
  at = 0
  for end in (3, 4, 7):
    with opened(tmp_path / 'noise', strategy) as rows:
      assert rows.next_row == at
      for t in range(at, end):
        np.testing.assert_array_equal(rows.integers(t), expected[t])
    at = end


def test_a_row_whose_thread_cannot_be_started_is_made_without(tmp_path, monkeypatch):
  def start(thread):
    raise RuntimeError("can't start new thread")

  expected = engine_rows(BLT, 2)
  rows = opened(tmp_path / 'noise')
  with monkeypatch.context() as patched:
    patched.setattr(threading.Thread, 'start', start)
    np.testing.assert_array_equal(rows.integers(0), expected[0])
  ended = threading.Thread(target=rows.close, daemon=True)
  ended.start()
  ended.join(20.0)
  assert not ended.is_alive()
  with opened(tmp_path / 'noise') as rows:
    np.testing.assert_array_equal(rows.integers(1), expected[1])


def test_a_row_is_made_once_where_an_interrupt_came_as_its_thread_began(tmp_path, monkeypatch):
  start = threading.Thread.start

  def interrupted(thread):
    start(thread)
    raise KeyboardInterrupt

  expected = engine_rows(BLT, 2)
  with opened(tmp_path / 'noise') as rows:
    with monkeypatch.context() as patched:
      patched.setattr(threading.Thread, 'start', interrupted)
      with pytest.raises(KeyboardInterrupt):
        rows.integers(0)
    for t in range(2):
      np.testing.assert_array_equal(rows.integers(t), expected[t])


def test_rows_go_on_without_snapshots_where_there_is_no_room(tmp_path, monkeypatch):
  def full(*arguments, **options):
    raise OSError(errno.ENOSPC, 'No space left on device')

  num_rows = 3 * 64
  strategy = every_family.example('banded', num_rows)
  monkeypatch.setattr(noise_rows, '_MOST_SNAPSHOT_ROWS', 64)
  expected = engine_rows(strategy, num_rows)
  with opened(tmp_path / 'noise', strategy) as rows, monkeypatch.context() as patched:
    patched.setattr(snapshots.durable, 'write', full)
    with pytest.warns(UserWarning, match='no snapshot.*No space left') as warned:
      for t in range(num_rows - 1):
        np.testing.assert_array_equal(rows.integers(t), expected[t])
  assert len(warned) == 1
  with opened(tmp_path / 'noise', strategy) as rows:
    np.testing.assert_array_equal(rows.integers(num_rows - 1), expected[-1])


@pytest.mark.parametrize('name', ['secret.json', 'trail', 'used'])
def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch, name):
  opened(tmp_path).close()
  real_open, real_read = os.open, pathlib.Path.read_bytes

  def refuse(read):
    def refused(path, *given, **options):
      if str(path) == str(tmp_path / name):
        raise PermissionError(errno.EACCES, 'Permission denied', str(path))
      return read(path, *given, **options)

    return refused

  monkeypatch.setattr(os, 'open', refuse(real_open))
  monkeypatch.setattr(pathlib.Path, 'read_bytes', refuse(real_read))
  with pytest.raises(PermissionError, match=f'Permission denied: .*{name}'):
    opened(tmp_path)


def test_a_secret_seed_is_another_each_time_and_only_its_owner_can_read_it(tmp_path):
  rows = []
  (tmp_path / 'b').mkdir(mode=0o755)
  for name in 'ab':
    with opened(tmp_path / name, noise_seed=None) as noise:
      rows.append(noise.row(0))
    folder = tmp_path / name
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
  assert (rows[0] != rows[1]).mean() > 0.9


def test_no_row_is_given_out_twice(tmp_path):
  with opened(tmp_path) as rows:
    rows.row(0)
    for t in (0, -1):
      with pytest.raises(guards.RepeatedRowError, match='the next is 1'):
        rows.row(t)
    rows.row(4)
    with pytest.raises(
      guards.RepeatedRowError, match='row 3 was given out before, or one after it'
    ):
      rows.row(3)
    expected = engine_rows(BLT, 6)
    np.testing.assert_array_equal(rows.integers(5), expected[5])
    rows.skip_to(9)
    assert rows.next_row == 9
    rows.skip_to(2)
    assert rows.next_row == 9
  with pytest.raises(ValueError, match='closed'):
    rows.row(9)


def test_rows_end_with_the_strategy(tmp_path):
  with opened(tmp_path, every_family.example('banded', 3)) as rows:
    assert rows.max_rows == 3
    for t in range(3):
      rows.row(t)
      rows.prepare()
    with pytest.raises(ValueError, match='row 3 is not among the 3'):
      rows.row(3)


def test_threads_share_no_row(tmp_path):
  with opened(tmp_path) as rows:
    with futures.ThreadPoolExecutor(8) as pool:
      asked = [pool.submit(rows.integers, 0) for _ in range(8)]
    refused = [isinstance(each.exception(), guards.RepeatedRowError) for each in asked]
    assert sum(refused) == 7


@pytest.mark.parametrize(
  'other', [dict(strategy=dpftrl.Identity()), dict(noise_seed=6)], ids=['strategy', 'seed']
)
def test_another_noise_is_refused(other, tmp_path):
  opened(tmp_path).close()
  with pytest.raises(ValueError, match='has the noise of another'):
    opened(tmp_path, **other)
  with pytest.raises(ValueError, match='has the noise of another size: 37, and not 38'):
    dpftrl.NoiseRows(BLT, SIZE + 1, folder=tmp_path)
  opened(tmp_path).close()


def test_a_folder_that_got_another_name_is_the_same(tmp_path):
  with opened(tmp_path / 'noise') as rows:
    rows.row(0)
  os.rename(tmp_path / 'noise', tmp_path / 'renamed')
  with opened(tmp_path / 'renamed', moved=True) as rows:
    assert rows.next_row == 1
  os.rename(tmp_path / 'renamed', tmp_path / 'again')
  opened(tmp_path / 'again').close()


@pytest.mark.parametrize('in_place', [True, False])
def test_a_mark_alone_that_was_put_back_is_noticed(in_place, tmp_path):
  """As tools leave it that put back what has changed alone: the seed is where it was."""
  with opened(tmp_path) as rows:
    rows.row(0)
  path, other = tmp_path / 'used', tmp_path / 'other'
  before = path.read_bytes()
  with opened(tmp_path) as rows:
    rows.row(1)
  time.sleep(0.3)
  if in_place:
    path.write_bytes(before)
  else:
    other.write_bytes(before)
    os.replace(other, path)
  with pytest.raises(mark.LostStateError, match='was put back from a backup'):
    opened(tmp_path)
  with pytest.raises(mark.LostStateError, match='in part: row 1 was given out, and would repeat'):
    opened(tmp_path, moved=True)


def test_the_clock_of_the_file_system_may_be_another(tmp_path, monkeypatch):
  clock = time.time_ns
  for hours in (0, -1, 1):
    monkeypatch.setattr(time, 'time_ns', lambda hours=hours: clock() + hours * 3600 * 10**9)
    with opened(tmp_path) as rows:
      rows.row(rows.next_row)
      rows.row(rows.next_row)


@pytest.mark.parametrize('first, then', [(5, None), (None, 5)])
def test_a_secret_seed_and_a_known_one_are_not_mixed(first, then, tmp_path):
  opened(tmp_path, noise_seed=first).close()
  with pytest.raises(ValueError, match='has the noise of another kind of seed: '):
    opened(tmp_path, noise_seed=then)
  about = json.loads((tmp_path / 'secret.json').read_text())
  kept = ('seed', 'strategy', 'size', 'release')
  durable.write(tmp_path / 'secret.json', {name: about[name] for name in kept})
  with pytest.raises(ValueError, match='has the noise of another kind of seed: None'):
    opened(tmp_path, noise_seed=first, moved=True)


@made.cases(
  'name, content, message',
  ('used', b'', 'used is empty'),
  ('secret.json', None, 'secret.json is gone'),
  ('secret.json', b'{}', 'secret.json is damaged'),
  ('used', None, 'used is gone'),
  ('used', b'\0' * 40, 'used is damaged'),
  ('trail', None, 'trail is gone or damaged'),
  ('trail', b'\0' * 24, 'trail is gone or damaged'),
)
def test_lost_files_are_told(name, content, message, tmp_path):
  with opened(tmp_path) as rows:
    rows.row(0)
  if content is None:
    (tmp_path / name).unlink()
  else:
    (tmp_path / name).write_bytes(content)
  with pytest.raises(mark.LostStateError, match=message):
    opened(tmp_path)
  (tmp_path / 'lock').unlink()  # Nobody holds it.
  with pytest.raises(mark.LostStateError, match=message):
    opened(tmp_path)


def test_a_torn_record_leaves_the_one_before(tmp_path):
  path = tmp_path / 'used'
  marked = mark.MarkFile(path)
  assert marked.record is None and mark.read(path) is None
  for rows in (1, 2, 4, 6):
    marked.write(num_rounds=rows, head=bytes([rows] * 32), run=b'r' * 16, seed_file=(rows, -7))
  marked.close()
  content = path.read_bytes()
  for byte in {*range(120), *range(4090, len(content))}:
    changed = bytearray(content)
    changed[byte] ^= 0xFF
    path.write_bytes(changed)
    record = mark.read(path)
    assert record.num_rounds in (4, 6) and record.seed_file == (record.num_rounds, -7)
    assert record.head == bytes([record.num_rounds] * 32) and record.run == b'r' * 16


@pytest.mark.parametrize('end', ['given', 'skipped'])
def test_a_machine_that_makes_other_rows_is_told(end, tmp_path):
  """Also where rows after the last that was given out are used up."""
  with opened(tmp_path) as rows:
    rows.row(0)
    rows.row(2)
    if end == 'skipped':
      rows.skip_to(7)
  path = tmp_path / 'trail'
  row, total = trails.unpacked(path.read_bytes())
  assert row == 3
  with opened(tmp_path) as rows:
    assert rows.next_row == {'given': 3, 'skipped': 7}[end]
    rows.row(rows.next_row)
  path.write_bytes(trails.packed(row, total + 1))
  with opened(tmp_path) as rows, pytest.raises(mark.LostStateError, match='makes other rows'):
    rows.row(rows.next_row)


def test_nothing_is_written_once_it_is_closed(tmp_path):
  for attempt in range(5):
    before = set(threading.enumerate())
    with dpftrl.NoiseRows(every_family.example('blt', 50), 300_000, folder=tmp_path / 'n') as rows:
      rows.row(15 + attempt)  # The row after a few more is preceded by a snapshot.
    mine = [each for each in threading.enumerate() if each not in before and each.name == 'noise']
    assert not mine
    shutil.rmtree(tmp_path / 'n')
