"""The file of a journal: begun whole, appended to durably, held by one writer."""

import fcntl
import os
import pathlib
import weakref
from collections.abc import Iterable

from fl_dpftrl.files import durable
from fl_dpftrl.logs import journal


class JournalFile:
  """An open journal, which one writer at a time may append to.

  Attributes:
    path: the file.
    contents: what it held when it was opened.
  """

  def __init__(self, path: pathlib.Path):
    """Opens a journal for reading; the first append locks it.

    Raises:
      LogError: if it is damaged.
      OSError: if it cannot be read.
    """
    self.path = path
    self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    weakref.finalize(self, os.close, self._descriptor)
    with open(os.dup(self._descriptor), 'rb') as file:
      self.contents = journal.scan(str(path), file)
    self._end, self._digest = self.contents.end, self.contents.digest
    self._size = self._end + self.contents.torn_bytes
    self._locked = False

  @classmethod
  def begin(cls, path: pathlib.Path, frames: Iterable[tuple[bytes, bytes]]) -> 'JournalFile':
    """Writes a journal in one durable step, and holds it.

    Args:
      path: the file.
      frames: kind and payload of each, the metadata first.

    Raises:
      ValueError: if there is one, which another writer has begun.
      OSError: if it cannot be written; nothing has changed then.
    """
    digest = b''
    try:
      with durable.replacing(path, private=True, new=True) as temporary:
        with open(temporary, 'wb') as file:
          for kind, payload in frames:
            written = journal.frame(digest, kind, payload)
            file.write(written)
            digest = written[-journal.DIGEST_BYTES :]
    except FileExistsError as e:
      raise ValueError(
        f'{path} was begun by another writer: a log has one writer at a time; open the log again'
      ) from e
    result = cls(path)
    result._lock()
    return result

  def append(self, kind: bytes, payload: bytes) -> int:
    """Appends a frame, durable when this returns; returns the payload's offset.

    Raises:
      ValueError: if another writer holds the journal, or has changed it.
      OSError: if it cannot be written; the journal is then as before.
    """
    self._lock()
    written = journal.frame(self._digest, kind, payload)
    try:
      if self._size != self._end:  # What was torn would stand before the frame.
        os.ftruncate(self._descriptor, self._end)
      done = 0
      while done < len(written):
        done += os.pwrite(self._descriptor, written[done:], self._end + done)
      os.fsync(self._descriptor)
    except OSError as e:
      self._undo()
      raise OSError(e.errno, e.strerror or str(e), str(self.path)) from e
    offset = self._end + len(written) - len(payload) - journal.DIGEST_BYTES
    self._end += len(written)
    self._size, self._digest = self._end, written[-journal.DIGEST_BYTES :]
    return offset

  def read(self, entry: journal.Entry) -> bytes:
    """Returns the payload of a round, also after the file was removed."""
    return os.pread(self._descriptor, entry.size, entry.offset)

  def remove(self) -> None:
    """Removes the file durably; its rounds can still be read here."""
    self.path.unlink(missing_ok=True)
    durable.sync_folder(self.path.parent)

  def _undo(self) -> None:
    try:
      os.ftruncate(self._descriptor, self._end)
      self._size = self._end
    except OSError:  # The next append tries again; readers drop a torn frame.
      self._size = -1

  def _lock(self) -> None:
    if self._locked:
      return
    try:
      fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ValueError(
        f'{self.path} is held by another writer: a log has one writer at a time'
      ) from None
    own = os.fstat(self._descriptor)
    try:
      same = os.path.samestat(own, os.stat(self.path)) and own.st_size == self._size
    except FileNotFoundError:
      same = False
    if not same:
      fcntl.flock(self._descriptor, fcntl.LOCK_UN)
      raise ValueError(
        f'{self.path} was changed by another writer since it was opened; open the log again'
      )
    self._locked = True
