import errno
import os
import stat

import pytest

from fl_dpftrl.files import durable


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


def test_what_killed_writers_left_goes_and_links_are_not_followed(tmp_path):
  other, run = tmp_path / 'other', tmp_path / 'run'
  for file in ('bundle/inner/log', 'file'):
    path = run / f'{durable.TEMPORARY_PREFIX}{file}'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'half')
  for folder in (other, run):
    folder.mkdir(exist_ok=True)
    (folder / 'file').write_bytes(b'whole')
  (run / f'{durable.TEMPORARY_PREFIX}link').symlink_to(other)
  (run / f'{durable.TEMPORARY_PREFIX}bundle' / 'link').symlink_to(other)
  durable.remove_leftovers(run)
  assert list(run.iterdir()) == [run / 'file']
  assert (run / 'file').read_bytes() == (other / 'file').read_bytes() == b'whole'


def test_a_lock_is_held_once(tmp_path):
  with durable.exclusive(tmp_path / 'lock'):
    with pytest.raises(ValueError, match='held by another process'):
      with durable.exclusive(tmp_path / 'lock'):
        pass
  with durable.exclusive(tmp_path / 'lock'):
    pass


def test_a_lock_file_that_is_removed_meanwhile_locks_nobody_out(tmp_path, monkeypatch):
  path, original = tmp_path / 'lock', durable.fcntl.flock

  def flock(*args):
    original(*args)
    path.unlink()

  monkeypatch.setattr(durable.fcntl, 'flock', flock)
  with pytest.raises(ValueError, match='held by another process'):
    with durable.exclusive(path):
      pass
