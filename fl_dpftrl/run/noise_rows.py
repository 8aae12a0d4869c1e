"""Rows of correlated noise, each given out once, whatever happens to the process."""

import contextlib
import functools
import os
from collections.abc import Callable

import numpy as np

from fl_dpftrl.mechanisms import lattice, schemas
from fl_dpftrl.mechanisms.files import documents, files
from fl_dpftrl.noise import ahead, integer_rows, normals, trails
from fl_dpftrl.run import guards
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import durable, mark, paths

_FORMAT = 1
_SECRET_NAME, _MARK_NAME, _LOCK_NAME = 'secret.json', 'used', 'lock'
# Fewest and most rows from one snapshot to the next, and their coordinates between these.
_SNAPSHOT_ROWS, _MOST_SNAPSHOT_ROWS, _SMALL_ROWS = 64, 1024, 1 << 21
# Most nanoseconds for which a process may have been held up before it was killed.
_HELD_UP = 10_000_000_000


class NoiseRows(contextlib.AbstractContextManager['NoiseRows']):
  """Rows 0, 1, … of N·Z for one vector of coordinates, kept in a folder.

  Row t is the noise of round t: multiply it by noise multiplier and clip norm, and add it to the
  sum of round t. It is a function of a secret seed of 256 bits, which is made with the folder and
  stays there. Each row is given out once: it is marked as used, durably, before `row` returns it.
  A process that starts again goes on with `next_row`.

  Threads may ask at the same time; a process that was forked from this one may not.

  The next row is made in the background while the last one is in use, unless rows take less than a
  millisecond. Buffers are in memory, and a snapshot of them in the folder every 64 rows, or more
  rarely of small ones.

  The folder must not be copied and used twice, nor be put back from a backup: rows that were used
  since would repeat. Both are noticed by the times that the file system keeps, and refused. A
  snapshot of the whole machine is not noticed.

  Args:
    strategy: C and N.
    size: number of coordinates.
    folder: made where it does not exist; only its owner can read it.
    noise_seed: None for a secret seed. A number makes the noise repeatable, for tests, and voids
      every guarantee.
    moved: True for a folder that was moved here from another disk, or whose permissions were
      changed, and that nobody has used since.
    begun: mark of a ledger, by which the rows of rounds that were begun are used up; None for a
      mark in the folder, which each row is entered into as it is given out.

  Attributes:
    next_row: the first row that may be asked for.

  Raises:
    ValueError: for an argument that will not do, for a folder of another strategy or size, and if
      another process uses the folder.
    LostStateError: if files of the folder are missing, damaged or copies.

  Source: Choquette-Choo et al. 2023, algorithm 1, for the rows; docs/decisions/arithmetic.md for
  their integers.
  """

  @durable.letting_go
  def __init__(
    self,
    strategy: files.Given,
    size: int,
    *,
    folder: str | os.PathLike[str],
    noise_seed: int | None = None,
    moved: bool = False,
    begun: mark.MarkFile | None = None,
  ):
    strategy = files.resolved(strategy)
    self.size = checks.whole(size=size)
    self._strategy, self._folder = strategy, paths.local(folder)
    self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    self._giving, self._process = durable.ThreadLock(self._folder), os.getpid()
    self._is_shared, self._mark = begun is not None, begun
    self._trail = -1  # Descriptor of its file.
    self._next, self._is_checked = 0, False  # Whether this machine makes the rows given out.
    source = self._source()
    self._rows = ahead.Rows(lambda seed: source(seed=seed), size, self.max_rows)
    try:
      self._held = durable.locked(self._folder / _LOCK_NAME)  # Until `close`.
    except ValueError:
      raise ValueError(
        f'{self._folder} is in use by another process, or by this one, which has to close() what'
        ' uses it first'
      ) from None
    try:
      durable.remove_leftovers(self._folder)
      self._seed = self._secret(noise_seed)
      self._next, self._known = self._opened().num_rounds, self._read_trail()
      self._check_not_copied(moved)
    except BaseException:
      self.close()
      raise

  def __repr__(self) -> str:
    return f'NoiseRows({self._strategy.family}, next row {self._next}, {self._folder})'

  def __exit__(self, *unused) -> None:
    try:
      self.close()
    finally:
      self.close()  # If an interrupt ended the first early.

  @property
  def max_rows(self) -> int:
    """Number of rows that there are."""
    return self._strategy.max_rounds or schemas.LAST_ROW

  @property
  def next_row(self) -> int:
    self._opened()
    return self._next

  def row(self, t: int) -> np.ndarray:
    """Returns row t, float64, shape [size]; the entries of Z have standard deviation 1.

    Numbers are whole multiples of 2⁻³⁴, and nothing is rounded.

    Args:
      t: `next_row`, or a later one; those between are never given out.
    """
    return np.ldexp(self.integers(t).astype(np.float64), -lattice.BITS)

  def integers(self, t: int) -> np.ndarray:
    """Returns what `row` does, in units of 2⁻³⁴, int64, shape [size]. It must not be changed."""
    with self._giving:
      first = self.next_row
      if t < first:
        raise guards.RepeatedRowError(
          f'row {t} was given out before, or one after it, and would enter a second sum; the next'
          f' is {first}'
        )
      self._check_machine()
      values, made = self._rows.row(self._seed, t)
      self._use(t + 1)
      # Without a sync: only a loss of power leaves an earlier row's.
      os.pwrite(self._trail, trails.packed(t + 1, made.after), 0)
      return values

  def prepare(self, *, now: bool = False) -> None:
    """Starts to make the next row in the background; with `now`, makes one that is quick here."""
    row = self.next_row if self._is_checked else self._known[0]
    if row < self.max_rows:
      self._rows.prepare(self._seed, row, now=now)

  def skip_to(self, t: int) -> None:
    """Marks the rows before row t as used, durably, without making them."""
    with self._giving:
      if t > self.next_row:
        self._use(t)

  def close(self) -> None:
    """Lets another process use the folder."""
    try:
      if os.getpid() == self._process:  # A fork has no thread that makes rows.
        self._rows.close()
    finally:
      opened, self._mark = self._mark, None
      if opened is not None and not self._is_shared:
        opened.close()
      trail, self._trail = self._trail, -1
      if trail >= 0:
        os.close(trail)
      self._held.close()

  def _opened(self) -> mark.MarkFile:
    if self._mark is None:
      raise ValueError('the noise rows are closed; open the folder again')
    if os.getpid() != self._process:  # A fork knows nothing of the rows that others use.
      raise ValueError('the noise rows were opened by another process, which alone may use them')
    return self._mark

  def _use(self, num_rows: int) -> None:
    """Marks rows as given out, durably; those of a shared mark are so since their rounds began."""
    if num_rows > self._opened().num_rounds:
      if self._is_shared:
        raise ValueError(f'row {num_rows - 1} is of a round that was not begun')
      self._opened().write(num_rounds=num_rows)
    self._next = num_rows

  def _check_machine(self) -> None:
    """Makes the row after the last that was given out again: it tells all before it."""
    row, trail = self._known
    if not self._is_checked and row < self.max_rows:
      if self._rows.row(self._seed, row)[1].before != trail:
        raise mark.LostStateError(
          'this machine makes other rows of noise than the one that made the rows before; go on'
          ' there'
        )
    self._is_checked = True

  def _read_trail(self) -> tuple[int, int]:
    """Returns a row after one that was given out, and what the rows before it add up to."""
    path, trail = self._folder / trails.NAME, None
    with contextlib.suppress(FileNotFoundError):
      self._trail = os.open(path, os.O_RDWR)
      trail = trails.unpacked(os.pread(self._trail, trails.SIZE, 0))
    if trail is None:
      raise mark.LostStateError(
        f'{path} is gone or damaged, which alone says which rows were made; name another folder'
      )
    if trail[0] > self._opened().num_rounds:
      raise mark.LostStateError(
        f'{self._folder} was put back from a backup in part: row {trail[0] - 1} was given out,'
        ' and would repeat; name another folder'
      )
    return trail

  def _secret(self, noise_seed: int | None) -> bytes:
    """Returns the seed, which is made with the folder; opens the mark beside it."""
    secret, marked = self._folder / _SECRET_NAME, self._folder / _MARK_NAME
    facts: dict[str, str | int] = {
      'strategy': documents.strategy_digest(self._strategy),
      'size': self.size,
      'release': f'{_FORMAT}.{integer_rows.VERSION}',
      'kind of seed': 'secret' if noise_seed is None else 'noise_seed',
    }
    if not secret.exists():
      self._folder.chmod(0o700)
      self._mark = self._mark or mark.MarkFile(marked)
      if self._mark.num_rounds or (self._mark.record and any(self._mark.record.seed_file)):
        raise mark.LostStateError(
          f'{secret} is gone, and its noise cannot go on; name another folder'
        )
      if not self._is_shared:  # Before there is a seed: a mark that is gone was there.
        self._mark.write(num_rounds=0)
      durable.write_durably(self._folder / trails.NAME, trails.packed(0, 0), private=True)
      durable.sync_names(self._folder)
      seed = normals.system_seed() if noise_seed is None else normals.fixed_seed(noise_seed)
      durable.write(secret, {'seed': seed.hex(), **facts})
      return seed
    try:
      about = durable.read(secret)
      seed = bytes.fromhex(str(about['seed']))
    except (ValueError, KeyError) as error:
      raise mark.LostStateError(f'{secret} is damaged, and its noise cannot go on') from error
    for name, own in facts.items():
      if about.get(name) != own:
        raise ValueError(
          f'{self._folder} has the noise of another {name}: {about.get(name)}, and not {own}; go on'
          ' as it was begun, or name another folder for another run'
        )
    if noise_seed is not None and seed != normals.fixed_seed(noise_seed):
      raise ValueError(f'{self._folder} has the noise of another noise_seed; name another folder')
    if not self._is_shared:
      if not marked.exists():
        raise mark.LostStateError(
          f'{marked} is gone, which alone says which rows of noise were used; name another folder'
        )
      self._mark = mark.MarkFile(marked)
    if self._opened().record is None:
      raise mark.LostStateError(
        f'{marked} is empty, and alone says which rows of noise were used; name another folder'
      )
    return seed

  def _check_not_copied(self, moved: bool) -> None:
    """Records which file of the seed belongs to the mark; LostStateError if it was another one."""
    opened, state = self._opened(), (self._folder / _SECRET_NAME).stat()
    own = state.st_ino, state.st_ctime_ns  # No copy shares both, nor one from a backup.
    stated = opened.record.seed_file if opened.record else (0, 0)
    is_new = not any(stated) and not opened.num_rounds  # Or its process was killed before.
    # A process that was held up as it wrote the mark, and ended there, gave no row of it out.
    most = mark.TOLERANCE if self._known[0] == opened.num_rounds else _HELD_UP
    is_copy = opened.is_suspect or opened.late > most or not (stated == own or is_new)
    if not is_copy or moved:
      if is_copy or is_new or opened.late > mark.TOLERANCE:
        opened.trust(seed_file=own)
    else:
      raise mark.LostStateError(
        f'{self._folder} is a copy, or was put back from a backup: rows of noise may have been'
        ' used since, and would repeat. If it was only moved, and nobody used it since, give'
        ' moved=True'
      )

  def _source(self) -> Callable[..., ahead.Source]:
    """Returns what makes a source, and does not hold these rows: dropped, they let go at once."""
    return functools.partial(
      ahead.LocalSource,
      self._folder,
      max(_SNAPSHOT_ROWS, min(_MOST_SNAPSHOT_ROWS, _SMALL_ROWS // self.size)),
      strategy=self._strategy,
      size=self.size,
      num_rounds=self.max_rows,
    )
