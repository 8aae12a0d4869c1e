"""Random names of devices and their owners, so that logs hold no id and one id can be erased.

The table of names is the only file with ids. It is a database of SQLite, written anew when ids are
erased, and lies apart from the logs. A salt in a file of its own keys the hashes of erased ids,
which come back under no other name. The file counts its changes, and a ledger cites that count, so
that an older table is refused.
"""

import contextlib
import hashlib
import hmac
import os
import pathlib
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fl_dpftrl.logs import databases, limits, refusals
from fl_dpftrl.support.files import durable, paths

_TABLES = (
  'CREATE TABLE names (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE) WITHOUT ROWID',
  'CREATE TABLE closed (hash BLOB PRIMARY KEY) WITHOUT ROWID',
  'CREATE TABLE facts (changes INTEGER NOT NULL, salt BLOB NOT NULL, identity TEXT NOT NULL)',
)
_SALT_BYTES, _NAME_BYTES = 32, 16
LENGTH = 2 * _NAME_BYTES
"""Characters of a name."""

_MOST_VALUES = 500  # of a query
_NUMBER = re.compile(r'([+-]?)(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?')
_EITHER = re.compile('[0-9]+[eE][0-9]+')
Id = str | int


class Names:
  """Names of ids in a file; its users are kept apart by the lock of their population.

  Attributes:
    path: the file.
    identity: random name of the table.
  """

  def __init__(self, path: str | os.PathLike[str], salt: str | os.PathLike[str], *, is_new: bool):
    """Opens the file.

    Args:
      path: the table of names, which only its owner may read.
      salt: the file of the secret salt, in another folder, such as one of a key store.
      is_new: whether to make those that are not there, of a population that begins.

    Raises:
      ValueError: for a salt beside the names, and another salt than before.
      LogError: for a file that is gone or damaged.
    """
    self.path, salt = paths.local(path), paths.local(salt)
    check_apart(self.path, salt)
    if is_new:
      _begin(self.path, salt)
    try:
      self._salt = salt.read_bytes()
    except OSError as error:
      raise refusals.LogError(f'{salt}: {error.strerror}; put it back') from error
    with self._database() as database:
      ((check, self.identity),) = database.execute('SELECT salt, identity FROM facts')
    if is_new and self.changes:
      raise ValueError(f'{self.path}: is of another population; name another file')
    if check != self._hash(''):
      raise ValueError(
        f'{salt}: is another salt than that of {self.path}, whose erased ids it opens'
      )

  @property
  def changes(self) -> int:
    """New names and erasures so far."""
    with self._database() as database:
      ((changes,),) = database.execute('SELECT changes FROM facts')
    return int(changes)

  def find(self, ids: Sequence[Id]) -> list[str | None]:
    """Returns the name of each id; None for one that has none."""
    names = dict(self._among('SELECT id, name FROM names WHERE id', map(key, ids)))
    return [names.get(key(each)) for each in ids]

  def closed(self, ids: Sequence[Id]) -> list[bool]:
    """Returns which ids were erased, and come back under no name."""
    hashes = [self._hash(key(each)) for each in ids]
    closed = {row[0] for row in self._among('SELECT hash FROM closed WHERE hash', hashes)}
    return [each in closed for each in hashes]

  def have_ids(self, names: Sequence[str]) -> list[bool]:
    """Returns which names are of an id; an erased one, or one that was never added, has none."""
    recorded = {row[0] for row in self._among('SELECT name FROM names WHERE name', names)}
    return [name in recorded for name in names]

  def named(self, ids: Sequence[Id]) -> list[str | None]:
    """Returns the name of each id, new ones being durable then; None for one that was erased."""
    opened = [each for each, is_closed in zip(ids, self.closed(ids)) if not is_closed]
    unnamed = {key(each): each for each, name in zip(opened, self.find(opened)) if name is None}
    self.add(list(unnamed.values()), new_names(len(unnamed)))
    return self.find(ids)

  def _among(self, query: str, values: Iterable[Any]) -> list[tuple]:
    """Returns the rows of a query with one of the values."""
    ordered, rows = sorted(set(values)), list[tuple]()
    with self._database() as database:
      for start in range(0, len(ordered), _MOST_VALUES):
        part = ordered[start : start + _MOST_VALUES]
        rows += database.execute(f'{query} IN ({",".join("?" * len(part))})', part)
    return rows

  def add(self, ids: Sequence[Id], names: Sequence[str]) -> None:
    """Gives ids that have no name new ones, durably."""
    if not ids:
      return
    with self._change(len(ids)) as database:
      rows = zip(map(key, ids), names, strict=True)
      database.executemany('INSERT INTO names VALUES (?, ?)', rows)

  def erase(self, ids: Iterable[Id]) -> int:
    """Closes ids for ever, and deletes their names durably; returns how many had one."""
    erased = sorted(set(map(key, ids)))
    with self._change(len(erased)) as database:
      hashes = ((self._hash(key),) for key in erased)
      database.executemany('INSERT OR IGNORE INTO closed VALUES (?)', hashes)
      rows = database.executemany('DELETE FROM names WHERE id = ?', ((key,) for key in erased))
    with self._database() as database:
      database.execute('VACUUM')  # Pages that were split keep copies, which are not overwritten.
    return rows.rowcount

  def _hash(self, key: str) -> bytes:
    return hmac.new(self._salt, key.encode(), hashlib.sha256).digest()

  def _database(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
    # A temporary file would have ids in another folder.
    settings = 'secure_delete=on', 'temp_store=memory'
    return databases.opened(self.path, *settings, timeout=10.0)

  @contextlib.contextmanager
  def _change(self, count: int) -> Iterator[sqlite3.Connection]:
    with self._database() as database:
      database.execute('BEGIN IMMEDIATE')
      try:
        yield database
        database.execute('UPDATE facts SET changes = changes + ?', (count,))
        database.execute('COMMIT')
      except BaseException:
        if database.in_transaction:
          database.rollback()
        raise


def new_names(count: int) -> list[str]:
  """Returns so many names, which nobody can guess and nothing orders."""
  return [secrets.token_hex(_NAME_BYTES) for _ in range(count)]


def check_apart(*files: str | os.PathLike[str]) -> None:
  """Raises ValueError unless names, salt and ledger lie in folders of their own."""
  if len({pathlib.Path(file).resolve().parent for file in files}) < len(files):
    raise ValueError(
      'names, salt and population must lie in folders of their own: who has all can undo erasures'
    )


def _begin(path: pathlib.Path, salt: pathlib.Path) -> None:
  """Makes what is not there; a start may have been cut short between both."""
  for file in (path, salt):
    file.parent.mkdir(0o700, parents=True, exist_ok=True)
  if path.exists():
    return
  if not salt.exists():
    durable.write_durably(salt, secrets.token_bytes(_SALT_BYTES), private=True)
  secret = salt.read_bytes()
  with databases.making(path) as database:
    for table in _TABLES:
      database.execute(table)
    check = hmac.new(secret, b'', hashlib.sha256).digest()
    database.execute('INSERT INTO facts VALUES (0, ?, ?)', (check, secrets.token_hex(16)))


def key(device_id: Id) -> str:
  """Returns the id as the table has it: one spelling of a number, so that no other gets a name.

  Hexadecimal digits such as 1e5 are read as a number too: what is erased leaves nothing by which to
  tell. Two devices under one name are charged too much, unless they are of different classes.
  """
  match = _NUMBER.fullmatch(str(device_id))
  if match is None:
    return str(device_id)
  sign, whole, fraction, exponent = match.groups()
  digits = f'{whole}{fraction or ""}'
  significant = digits.lstrip('0')
  # Of the number 0.SIGNIFICANT · 10^power.
  power = len(whole) - len(digits) + len(significant) + int(exponent or 0)
  significant = significant.rstrip('0')
  if not significant:
    return '0'
  if abs(power) > limits.FIELD_BYTES:
    number = f'0.{significant}e{power}'
  elif power > 0:
    number = f'{significant[:power].ljust(power, "0")}.{significant[power:]}'.rstrip('.')
  else:
    number = f'0.{"0" * -power}{significant}'
  return f'-{number}' if sign == '-' else number


def may_be_two(device_id: Id) -> bool:
  """Returns whether an id has the name of a number, and may be hexadecimal digits, such as 1e5."""
  return bool(_EITHER.fullmatch(str(device_id)))
