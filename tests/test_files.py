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
