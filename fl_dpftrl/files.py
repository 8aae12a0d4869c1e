"""Files that are either the old or the new, never something between."""

import os
import pathlib
import tempfile

TEMPORARY_PREFIX = '.writing-'


def write_durably(
    path: str | os.PathLike[str], content: bytes, *, mode: int = 0o644
) -> None:
  """Replaces a file's content in one step that survives a loss of power.

  Args:
    path: its folder must exist.
    content: the new content.
    mode: permissions, whatever the umask.

  Raises:
    OSError: where it cannot be written; the old content is then still there.
  """
  path = pathlib.Path(path)
  handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY_PREFIX)
  try:
    with os.fdopen(handle, 'wb') as file:
      os.fchmod(file.fileno(), mode)
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    pathlib.Path(temporary).unlink(missing_ok=True)
    raise
  sync_folder(path.parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
  """Makes the names in a folder survive a loss of power."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
