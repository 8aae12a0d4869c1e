import errno
import os
import stat
import subprocess
import sys

import pytest

from fl_dpftrl.support.files import durable


def mode(path):
  return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(name='umask', params=[0o022, 0o077, 0o007])
def fixture_umask(request):
  old = os.umask(request.param)
  yield request.param
  os.umask(old)


def test_private_files_are_the_owners_alone_and_others_honour_the_umask(tmp_path, umask):
  durable.write_durably(tmp_path / 'private', b'content', private=True)
  durable.write_durably(tmp_path / 'file', b'content')
  with durable.replacing(tmp_path / 'other', durable=False) as temporary:
    temporary.write_bytes(b'content')
  assert {path.read_bytes() for path in tmp_path.iterdir()} == {b'content'}
  assert mode(tmp_path / 'private') == 0o600
  assert mode(tmp_path / 'file') == mode(tmp_path / 'other') == 0o666 & ~umask


def test_a_file_that_was_open_to_all_becomes_private(tmp_path):
  path = tmp_path / 'file'
  path.write_bytes(b'old')
  path.chmod(0o644)
  with durable.replacing(path, private=True) as temporary:
    assert mode(temporary) == 0o600  # before there is anything to read
    temporary.write_bytes(b'new')
  assert (mode(path), path.read_bytes()) == (0o600, b'new')


@pytest.mark.parametrize('name', ['fsync', 'replace'])
def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch, name):
  path = tmp_path / 'file'
  durable.write_durably(path, b'old')

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, name, full)
  with pytest.raises(OSError, match=f'No space left on device: .{path}') as e:
    durable.write_durably(path, b'new')
  assert e.value.errno == errno.ENOSPC
  assert path.read_bytes() == b'old' and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_synced_is_named(tmp_path, monkeypatch):
  def failed(descriptor):
    raise OSError(errno.EIO, os.strerror(errno.EIO))

  monkeypatch.setattr(os, 'fsync', failed)
  with pytest.raises(OSError, match=f'Input/output error: .{tmp_path}') as e:
    durable.sync_folder(tmp_path)
  assert e.value.errno == errno.EIO


KILLED = """
import os, signal, sys
from fl_dpftrl.support.files import durable
with durable.{0}(sys.argv[1]) as temporary:
  path = temporary / 'log' if temporary.is_dir() else temporary
  path.write_text('devices')
  os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize('writer', ['replacing', 'building'])
def test_what_a_killed_writer_left_goes_and_what_one_at_work_has_stays(tmp_path, writer):
  run, other = tmp_path / 'run', tmp_path / 'other'
  run.mkdir()
  other.write_text('whole')
  subprocess.run([sys.executable, '-c', KILLED.format(writer), run / 'new'], check=False)
  left = set(run.iterdir())
  assert {path.name[: len('.writing-')] for path in left} == {durable.TEMPORARY_PREFIX}
  (run / '.writing-mine').write_text('of another program')
  (run / f'.writing-{7:016x}').symlink_to(other)
  with durable.replacing(run / 'a') as file, durable.building(run / 'b') as folder:
    at_work = {*run.iterdir()} - left
    assert {file, folder} < at_work  # What was left goes before a folder is begun.
    durable.remove_leftovers(run)
    assert {*run.iterdir()} == at_work
    file.write_text('whole')
  durable.remove_leftovers(run)
  names = {'a', 'b', '.writing-mine', f'.writing-{7:016x}'}
  assert {path.name for path in run.iterdir()} == names and other.read_text() == 'whole'


def test_a_file_that_is_removed_as_it_is_begun_is_begun_again(tmp_path, monkeypatch):
  original = durable.fcntl.flock

  def flock(*args):
    original(*args)
    if not removed:
      removed.extend(tmp_path.iterdir())
      removed[0].unlink()

  removed = []
  monkeypatch.setattr(durable.fcntl, 'flock', flock)
  durable.write_durably(tmp_path / 'file', b'new')
  assert removed and list(tmp_path.iterdir()) == [tmp_path / 'file']


def test_a_lock_is_held_once(tmp_path):
  with durable.locked(tmp_path / 'lock'):
    with pytest.raises(ValueError, match='held by another process'):
      with durable.locked(tmp_path / 'lock'):
        pass
  with durable.locked(tmp_path / 'lock'):
    pass


def test_a_lock_file_that_is_removed_meanwhile_locks_nobody_out(tmp_path, monkeypatch):
  path, original = tmp_path / 'lock', durable.fcntl.flock

  def flock(*args):
    original(*args)
    path.unlink()

  monkeypatch.setattr(durable.fcntl, 'flock', flock)
  with pytest.raises(ValueError, match='held by another process'):
    with durable.locked(path):
      pass
