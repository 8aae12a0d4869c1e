"""Files that are either the old or the new, never something between.

What tells of single devices, or would help to undo the noise, is private: only
its owner may read it. Everything else is readable as the umask says. Each
writer says which of the two its file is, and only this module sets permissions.
"""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
import secrets

TEMPORARY_PREFIX = '.writing-'


def write_durably(
    path: str | os.PathLike[str], content: bytes, *, private: bool = False
) -> None:
  """Replaces a file's content in one step that survives a loss of power.

  Args:
    path: its folder must exist.
    content: the new content.
    private: whether only its owner may read it, as in `replacing`.

  Raises:
    OSError: where it cannot be written; the old content is then still there.
  """
  with replacing(path, private=private) as temporary:
    temporary.write_bytes(content)


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str],
    *,
    private: bool = False,
    durable: bool = True,
) -> Iterator[pathlib.Path]:
  """A temporary file that becomes the file where the block ends without error.

  Args:
    path: its folder must exist.
    private: whether only its owner may read and write it, whatever the umask;
      other files have the permissions that the umask leaves.
    durable: whether it must survive a loss of power; waiting for that takes
      time.

  Raises:
    OSError: where it cannot be written; the old content is then still there.
  """
  path = pathlib.Path(path)
  temporary = path.with_name(TEMPORARY_PREFIX + secrets.token_hex(8))
  # The system applies the umask, which a process can only read by changing it.
  handle = os.open(
      temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666
  )
  try:
    try:
      yield temporary
      if private:
        os.fchmod(handle, 0o600)
      if durable:
        os.fsync(handle)
    finally:
      os.close(handle)
    os.replace(temporary, path)
  except OSError as error:
    temporary.unlink(missing_ok=True)
    if error.filename not in (None, name):
      raise
    # A full disk names no file, or the temporary one, which nobody knows.
    raise OSError(
        error.errno, error.strerror or str(error), str(path)
    ) from error
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise
  if durable:
    sync_folder(path.parent)


@contextlib.contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[None]:
  """Holds a lock file, which the end of the process releases in any case.

  Raises:
    ValueError: where another process holds it.
  """
  descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
      # A file that was removed meanwhile locks nobody out.
      held = os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
      held = False
    if not held:
      raise ValueError(
          f'{path} is held by another process, which is still at work there'
      )
    yield
  finally:
    os.close(descriptor)


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
  """Removes what writers that were killed left; only for who holds its lock."""
  for leftover in pathlib.Path(folder).glob(f'{TEMPORARY_PREFIX}*'):
    leftover.unlink(missing_ok=True)


def sync_folder(folder: str | os.PathLike[str]) -> None:
  """Makes the names in a folder survive a loss of power."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
