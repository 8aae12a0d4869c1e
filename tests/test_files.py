import errno
import os
import stat

import pytest

from fl_dpftrl import files


@pytest.mark.parametrize('mode', [0o600, 0o644])
def test_mode_does_not_depend_on_the_umask(tmp_path, mode):
  old = os.umask(0o077)
  try:
    files.write_durably(tmp_path / 'file', b'content', mode=mode)
  finally:
    os.umask(old)
  assert (tmp_path / 'file').read_bytes() == b'content'
  assert stat.S_IMODE((tmp_path / 'file').stat().st_mode) == mode


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
  path = tmp_path / 'file'
  files.write_durably(path, b'old', mode=0o600)

  def fail(*_):
    raise OSError('disk full')

  monkeypatch.setattr(os, 'replace', fail)
  with pytest.raises(OSError, match='disk full'):
    files.write_durably(path, b'new', mode=0o600)
  assert path.read_bytes() == b'old'
  assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file_and_leaves_the_old_one(
    tmp_path, monkeypatch
):
  path = tmp_path / 'file'
  files.write_durably(path, b'old')

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  with pytest.raises(OSError, match=f'No space left on device: .{path}') as e:
    files.write_durably(path, b'new')
  assert e.value.errno == errno.ENOSPC
  assert path.read_bytes() == b'old' and list(tmp_path.iterdir()) == [path]


def test_leftovers_of_killed_writers_go(tmp_path):
  (tmp_path / f'{files.TEMPORARY_PREFIX}x').write_bytes(b'half')
  (tmp_path / 'file').write_bytes(b'whole')
  files.remove_leftovers(tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ['file']


def test_a_lock_is_held_once(tmp_path):
  with files.exclusive(tmp_path / 'lock'):
    with pytest.raises(ValueError, match='held by another process'):
      with files.exclusive(tmp_path / 'lock'):
        pass
  with files.exclusive(tmp_path / 'lock'):
    pass


def test_a_lock_file_that_is_removed_meanwhile_locks_nobody_out(
    tmp_path, monkeypatch
):
  path, original = tmp_path / 'lock', files.fcntl.flock

  def flock(*args):
    original(*args)
    path.unlink()

  monkeypatch.setattr(files.fcntl, 'flock', flock)
  with pytest.raises(ValueError, match='held by another process'):
    with files.exclusive(path):
      pass
