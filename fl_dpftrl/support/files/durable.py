"""Atomic writes: a file has its old or its new content, never a mixture.

Files about single devices, and files that would help to undo the noise, are private: only their
owner may read them. All other files get the permissions of the umask. Each writer says which
kind its file is, and only this module sets permissions.
"""

import contextlib
import errno
import functools
import gc
import hashlib
import io
import json
import os
import pathlib
import secrets
import shutil
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from fl_dpftrl.support.files import json_files, paths

try:
  import fcntl
except ImportError:  # Such a system has no locks between processes.
  fcntl = None  # type: ignore[assignment]

TEMPORARY_PREFIX = '.writing-'
_DIGITS, _FOLDER = 16, '.folder'  # after it; a folder has a locked file of its name beside it
_DIGEST = 'sha256'

_Args = ParamSpec('_Args')
_Result = TypeVar('_Result')


def write_durably(
  path: str | os.PathLike[str], content: bytes | memoryview, *, private: bool = False
) -> None:
  """Replaces a file's content in one step that survives a loss of power."""
  with replacing(path, private=private) as temporary:
    temporary.write_bytes(content)


@contextlib.contextmanager
def replacing(
  path: str | os.PathLike[str], *, private: bool = False, durable: bool = True
) -> Iterator[pathlib.Path]:
  """Yields a temporary file that replaces the file if the block succeeds.

  Args:
    path: path of the file; its folder must exist.
    private: True if only its owner may read and write it, whatever the umask; other files have
      the permissions that the umask leaves.
    durable: True if it must survive a loss of power, which takes time.
  """
  path = paths.local(path)
  # A process can only read the umask by changing it, so the system applies it.
  with _temporary(path, 0o600 if private else 0o666) as (temporary, handle):
    yield temporary
    if private:
      os.fchmod(handle, 0o600)
    if durable:
      os.fsync(handle)
    os.replace(temporary, path)
  if durable:
    sync_folder(path.parent)


@contextlib.contextmanager
def building(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields a temporary folder, of its owner only, that gets its name if the block succeeds."""
  path = paths.local(path)
  remove_leftovers(path.resolve().parent)
  with _temporary(path.resolve(), 0o600) as (lock, _):
    folder = lock.with_suffix(_FOLDER)
    try:
      folder.mkdir(mode=0o700)
      yield folder
      os.rename(folder, path)
      lock.unlink()
    except BaseException as error:
      shutil.rmtree(folder, ignore_errors=True)
      if isinstance(error, OSError):
        _raise_named(error, folder, path)
      raise
  sync_folder(path.resolve().parent)


@contextlib.contextmanager
def _temporary(path: pathlib.Path, mode: int) -> Iterator[tuple[pathlib.Path, int]]:
  """Yields a new file beside a path, which is locked within the block, and is gone after it."""
  is_locked = False
  while not is_locked:
    temporary, handle = path.with_name(TEMPORARY_PREFIX + secrets.token_hex(_DIGITS // 2)), -1
    try:
      handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
      if is_locked := _lock(handle) is not False:
        yield temporary, handle
    except OSError as error:
      _raise_named(error, temporary, path)
      raise
    finally:
      with contextlib.suppress(OSError):
        temporary.unlink()
      if handle >= 0:
        os.close(handle)


def _lock(handle: int) -> bool | None:
  """Locks a file; False if another process has it or removed it, None without such locks."""
  if fcntl is None:
    return None
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError:
    return None
  return os.fstat(handle).st_nlink > 0


def _raise_named(error: OSError, temporary: pathlib.Path, path: pathlib.Path) -> None:
  """Raises the error with the name that the user gave, if it has a temporary one or none."""
  names = [str(name) for name in (error.filename, error.filename2) if name is not None]
  inner = [name for name in names if (name + os.sep).startswith(str(temporary) + os.sep)]
  if inner or not names:
    within = inner[0][len(str(temporary)) :] if inner else ''
    raise OSError(error.errno, error.strerror or str(error), f'{path}{within}') from error


class ThreadLock:
  """A lock of the threads of one process; a fork is refused, where it could wait for ever.

  `with` calls the methods of the lock within, which no interrupt comes between: one that is raised
  at the first line of an `__exit__` in Python would leave the other threads waiting for ever.
  """

  def __init__(self, what: object):
    self._what, self._process, self._lock = what, os.getpid(), threading.RLock()

  @property
  def __enter__(self) -> Callable[[], bool]:
    if os.getpid() != self._process:
      raise ValueError(f'{self._what} was opened by another process, and only that one may use it')
    return self._lock.__enter__

  @property
  def __exit__(self) -> Callable[..., None]:
    return self._lock.__exit__


def one_at_a_time(method: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
  """Lets one thread at a time into such methods of an object, by its `lock`."""

  @letting_go
  @functools.wraps(method)
  def locked(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
    with cast(Any, args[0]).lock:
      return method(*args, **kwargs)

  return locked


def letting_go(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
  """Lets locks go that an interrupt left in variables, which whoever keeps the interrupt has.

  A notebook keeps the last one, and a `with` block that was about to begin would never end.
  """

  @functools.wraps(function)
  def called(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
    try:
      return function(*args, **kwargs)
    except Exception:
      raise
    except BaseException as interrupt:
      traceback.clear_frames(interrupt.__traceback__)
      del args, kwargs  # This frame is not cleared, and has the object that was being opened.
      gc.collect(1)  # A database is part of a cycle, which is young where nothing has it yet.
      raise

  return called


@letting_go
def locked(path: str | os.PathLike[str], *, wait: bool = False) -> io.FileIO:
  """Returns a lock file, which is held until a `with` block or `close` ends, or the process.

  Closing it is one step, and so is dropping it: no interrupt comes between.

  Raises:
    ValueError: if another process has it, unless it waits.
    OSError: where no file can be locked.
  """
  if fcntl is None:
    raise OSError(errno.ENOTSUP, 'needs locks between processes: use Linux or macOS', str(path))
  file = io.FileIO(path, 'r+', opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o600))
  try:
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    is_held = is_at(file, path)
  except BlockingIOError:
    is_held = False
  except OSError as error:
    file.close()
    why = f'{error.strerror}: no file can be locked there; take a disk with locks, or start lockd'
    raise OSError(error.errno, why, str(path)) from error
  if not is_held:
    file.close()
    raise ValueError(f'{path} is held by another process, which is still at work there')
  return file


def is_at(file: io.FileIO, path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is still that of a lock file: one that was removed locks nobody out."""
  with contextlib.suppress(FileNotFoundError):
    return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
  return False


@contextlib.contextmanager
def locked_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
  """Waits until no other process is in such a block, where the system has locks between them."""
  if fcntl is None:
    yield
    return
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
  """Removes files and folders that killed writers left in a folder; those at work keep theirs."""
  for leftover in pathlib.Path(folder).glob(TEMPORARY_PREFIX + _DIGITS * '[0-9a-f]'):
    with contextlib.suppress(OSError):  # Of another owner, or gone.
      handle = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
      try:
        if _lock(handle):
          for path in leftover.parent.glob(f'{leftover.name}?*'):  # SQLite's too.
            shutil.rmtree(path) if path.is_dir() else path.unlink()
          leftover.unlink()
      finally:
        os.close(handle)


def sync_folder(folder: str | os.PathLike[str]) -> None:
  """Makes file names in a folder survive a loss of power, where folders can be opened."""
  if fcntl is None:
    return
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    with naming(folder):
      os.fsync(descriptor)
  finally:
    os.close(descriptor)


def sync_names(folder: str | os.PathLike[str]) -> None:
  """Makes a folder and those that it is in survive a loss of power, as far as they may be read."""
  folder = pathlib.Path(folder).resolve()
  sync_folder(folder)
  for parent in folder.parents:
    with contextlib.suppress(OSError):
      sync_folder(parent)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
  """Names a file in the errors of calls that know only its descriptor."""
  try:
    yield
  except OSError as error:
    raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write(path: str | os.PathLike[str], facts: Mapping[str, Any], *, durable: bool = True) -> None:
  """Replaces a file by facts and their digest, readable only by its owner."""
  text = json.dumps({**facts, _DIGEST: _digest(facts)})
  with replacing(path, private=True, durable=durable) as temporary:
    temporary.write_text(text)


def read(path: str | os.PathLike[str]) -> json_files.Object:
  """Returns the facts that `write` wrote; OSError without a file that can be read."""
  content = pathlib.Path(path).read_bytes()
  try:
    facts = json.loads(content)
    intact = facts.pop(_DIGEST) == _digest(facts)
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(f'{path} is not readable: {error} ({type(error).__name__})') from error
  if not intact:
    raise ValueError(f'{path} is not readable: its digest is of other content')
  return facts


def _digest(facts: Mapping[str, Any]) -> str:
  return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
