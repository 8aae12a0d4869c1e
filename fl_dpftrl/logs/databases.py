"""Databases of SQLite: made whole, opened with settings, and copied while others write them."""

import contextlib
import errno
import os
import pathlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator

from fl_dpftrl.logs import refusals
from fl_dpftrl.support.files import durable
from fl_dpftrl.support.text import messages

WAL, JOURNAL = '-wal', '-journal'
"""Ends of the names of SQLite's own files beside a database."""

_TRIES = 20
# How errors begin that SQLite calls operational, and that tell of damage.
_DAMAGED = ('Could not decode', 'no such table', 'no such column')


@contextlib.contextmanager
def in_one_line(path: str | os.PathLike[str]) -> Iterator[None]:
  """Raises SQLite's errors as those of the file: OSError, or LogError for a damaged one."""
  try:
    yield
  except (sqlite3.Error, UnicodeDecodeError) as error:
    if isinstance(error, sqlite3.OperationalError) and not str(error).startswith(_DAMAGED):
      number = errno.ENOSPC if 'full' in str(error) else errno.EIO
      raise OSError(number, str(error), str(path)) from error
    raise refusals.LogError(f'{path}: is no ledger, or damaged: {error}') from error


@contextlib.contextmanager
def making(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
  """Yields a new database, which is whole at its path, durably, once the block succeeds."""
  durable.remove_leftovers(path.parent)
  with durable.replacing(path, private=True) as temporary, in_one_line(path):
    with contextlib.closing(sqlite3.connect(temporary)) as database, database:
      yield database
  durable.sync_names(path.parent)


def connected(
  path: pathlib.Path, *settings: str, journal: str = 'delete', timeout: float = 0.0
) -> sqlite3.Connection:
  """Returns a database, of which SQLite undoes what a journal of a crash says.

  Args:
    settings: pragmas, as NAME=VALUE.
    journal: mode of its journal; OSError where none can be kept so.
    timeout: seconds to wait for another process.
  """
  database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=timeout)
  try:
    for setting in ('trusted_schema=off', *settings):
      database.execute(f'PRAGMA {setting}')
    if database.execute(f'PRAGMA journal_mode={journal}').fetchone() != (journal,):
      raise OSError(errno.ENOTSUP, f'no journal of mode {journal} can be kept there', str(path))
    check_version(path, database)
  except BaseException:  # It is part of a cycle, and would keep its locks.
    database.close()
    raise
  return database


@contextlib.contextmanager
def opened(
  path: pathlib.Path, *settings: str, timeout: float = 0.0
) -> Iterator[sqlite3.Connection]:
  """Yields a database that is there, as `connected`; each commit is durable."""
  if not path.exists():
    raise refusals.LogError(f'{path}: is gone; put it back')
  with in_one_line(path):
    database = connected(path, 'synchronous=extra', *settings, timeout=timeout)
    with contextlib.closing(database):
      yield database


def check_version(path: str | os.PathLike[str], database: sqlite3.Connection) -> None:
  """Raises LogError for a database of a later version, which numbers its format; here it is 0."""
  ((version,),) = database.execute('PRAGMA user_version')
  if version:
    raise refusals.LogError(
      f'{path}: is of format {messages.quoted(version)}, of a later version: read it with that one'
    )


def copy(path: str, target: str, side: str, state: Callable[[str], object]) -> None:
  """Copies a database, and the file beside it, of a moment at which nobody wrote.

  Args:
    side: end of the name of the file beside it.
    state: returns what differs after a write.
  """
  for _ in range(_TRIES):
    initial_state = state(path)
    pathlib.Path(target + side).unlink(missing_ok=True)
    shutil.copyfile(path, target)
    with contextlib.suppress(FileNotFoundError):
      shutil.copyfile(path + side, target + side)
    if state(path) == initial_state:
      return
    time.sleep(0.05)
  raise refusals.LogError(f'{path}: is written all the time; replay it again')
