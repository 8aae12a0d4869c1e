"""Serves noise rows by file, each for one round, made ahead of time."""

import contextlib
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fl_dpftrl import files, json_files, sealed
from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise.engine import ahead, draws, shards, snapshots, source
from fl_dpftrl.noise.engine import certificates as certificates_lib
from fl_dpftrl.noise.engine import maker as makers

# What a row's file begins with, as int64: these, then the bits of its standard
# deviation as a float64. Float32 coordinates follow.
MAGIC = 0x776F_7200_0001
HEADER_BYTES = 40
ROW_DIGITS = 9
MARK_NAME = 'served.json'


def row_name(row: int) -> str:
  return f'row-{row:0{ROW_DIGITS}d}'


class _Mark(NamedTuple):
  """State of the rows of a folder, as its mark file records it.

  Attributes:
    row: the largest row that was given out; −1 if none was.
    released: rounds whose results may have been used; None if not recorded.
    stddev: standard deviation of Z with which the row was given out.
  """

  row: int = -1
  released: int | None = None
  stddev: float = 0.0


class RowServer:
  """The rows of one run's noise, in a folder that only its owner can read.

  `serve(row)` makes that row's file, and removes those of earlier rows. The next row is then
  made in the background. The largest row that was served is kept durably, and rows before it
  are refused for ever: whatever state a run is brought to, no row enters the sums of two
  rounds. The row itself may be asked for again, for a round whose result was never seen. Rounds
  whose results may have been used are kept durably too, and their rows are refused.

  Another standard deviation goes on with the same rows, otherwise multiplied. A row that was
  given out before is then refused, since the difference of two sums with it would uncover them.

  A run that goes on finds the seed in the folder, and with it the very same
  rows: from the last snapshot, or where there is none from row 0, all rows up to
  the one that is asked for are made again.

  Args:
    strategy: C and N.
    folder: made where it does not exist. It holds the secret seed.
    size: coordinates in a row.
    num_rounds: rows that there will be at most.
    stddev: of each entry of Z.
    noise_seed: None for a secret seed, drawn when the folder is first used. A
      number makes the noise repeatable, for tests, and voids the guarantee.
    memory, precision: see `RowMaker`.
    num_threads: see `RowMaker`.
    snapshot_rows: rows between two snapshots of the buffers; 0 for none.
    workers: host:port of the processes that make the rows, a slice each; see
      `shards`. None for rows that are made here. The rows are the same.
    worker_certificates: what this process proves itself to those with, and how
      it knows them.
    worker_timeout: how many seconds one of them may give no sign while its part
      of a row is waited for. Each row that it makes on its way to that one is a sign.

  Attributes:
    folder, strategy, size, num_rounds, stddev: as given.
    identity: stands for all that determines the rows, but for their standard
      deviation; it is no secret.

  Raises:
    ValueError: for an argument that will not do, and where rows were served from
      the folder and their seed is gone.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    folder: str | os.PathLike[str],
    *,
    size: int,
    num_rounds: int,
    stddev: float,
    noise_seed: int | None = None,
    memory: str = 'memory',
    precision: str = 'float32',
    num_threads: int | None = None,
    snapshot_rows: int = 16,
    workers: Sequence[str] = (),
    worker_certificates: certificates_lib.Certificates | None = None,
    worker_timeout: float = shards.TIMEOUT_SECONDS,
  ):
    makers.check(size=size, stddev=stddev, memory=memory, precision=precision)
    strategies.check_num_rounds(strategy, num_rounds)
    if snapshot_rows < 0:
      raise ValueError(f'snapshot_rows must be at least 0, got {snapshot_rows}')
    self.folder = pathlib.Path(folder).absolute()
    self.strategy, self.size, self.stddev = strategy, size, stddev
    self.num_rounds = num_rounds
    self._is_secret = noise_seed is None
    if noise_seed is None:
      self._seed = self._found_seed() or draws.system_seed()
    else:
      self._seed = draws.fixed_seed(noise_seed)
    recipe: json_files.Object = dict(
      strategy=strategy, size=size, seed=self._seed, memory=memory, precision=precision
    )
    self.identity = makers.identity(**recipe)
    recipe |= {'stddev': stddev, 'num_rounds': num_rounds}
    self._source: source.Source = (
      shards.ShardedSource(workers, worker_certificates, recipe, snapshot_rows, worker_timeout)
      if workers
      else source.LocalSource(
        functools.partial(makers.RowMaker, **recipe, folder=self.folder, num_threads=num_threads),
        snapshots.Snapshots(self.folder, self.identity, num_rounds),
        snapshot_rows,
      )
    )
    self._stack: contextlib.ExitStack | None = None  # Of what is open.
    self._completed = -1
    self._ahead = ahead.Ahead(self._produce)

  def open(self) -> None:
    """Keeps the seed durably, and other processes from serving its rows.

    `serve` does it as well. Until then nothing is written.

    Raises:
      ValueError: if another process serves from the folder, or it holds other noise.
    """
    if self._stack is not None:
      return
    self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    self.folder.chmod(0o700)
    with contextlib.ExitStack() as stack:
      stack.enter_context(files.exclusive(self.folder / 'lock'))
      self._prepare()
      self._stack = stack.pop_all()

  def serve(self, row: int) -> None:
    """Makes sure that the row's file is there, and no other row's.

    Raises:
      ValueError: for a row before the last that was served, or past the end; and as `open`.
    """
    self.open()
    served = self.served()
    if row < served:
      raise ValueError(
        f'row {row} of the noise in {self.folder} was asked for, and row'
        f' {served} was given out before: a row of noise enters one sum'
      )
    if not 0 <= row < self.num_rounds:
      raise ValueError(f'row {row} is not among the {self.num_rounds} that there are')
    if row <= self._completed or row < (self.released() or 0):
      raise ValueError(
        f'row {row} of the noise in {self.folder} is in the sum of a completed'
        ' round: go on from the state that this round gave'
      )
    if row == served and self._read_mark().stddev != self.stddev:
      raise ValueError(
        f'row {row} of the noise in {self.folder} was given out with another'
        ' standard deviation: go on with that one, or burn the row with skip_row'
      )
    path = self.folder / row_name(row)
    if not path.exists():
      self._ahead.take(row)
      if row > served:
        self._write_mark(self._read_mark()._replace(row=row, stddev=self.stddev))
      self._remove_rows()
      os.replace(self._ready, path)
    if row + 1 < self.num_rounds:
      self._ahead.begin(row + 1)

  def complete(self, row: int) -> None:
    """Marks the row as part of a sum; this process never serves it again."""
    self._completed = max(self._completed, row)

  def mark_released(self, num_rounds: int) -> None:
    """Records durably that the first num_rounds rounds' results may be used."""
    self.open()
    self._write_mark(self._read_mark()._replace(released=num_rounds))

  def released(self) -> int | None:
    """Number of rounds whose results may have been used; None if unknown.

    Raises:
      ValueError: as `served`.
    """
    return self._read_mark().released

  def served(self) -> int:
    """The largest row that was ever served; −1 if none was.

    Raises:
      ValueError: if that cannot be read, or was other noise.
    """
    return self._read_mark().row

  def _write_mark(self, mark: _Mark) -> None:
    mark = mark._replace(released=mark.released or 0)
    sealed.write(self._mark, {**mark._asdict(), 'identity': self.identity})

  def _read_mark(self) -> _Mark:
    try:
      found = sealed.read(self._mark)
      row, identity = int(found['row']), int(found['identity'])
      released, stddev = int(found['released']), float(found['stddev'])
    except FileNotFoundError:
      return _Mark()
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f'{error}; without {self._mark.name} nobody knows which rows of noise'
        ' were used: put it back as it was'
      ) from error
    if identity != self.identity:
      raise ValueError(
        f'{self.folder} holds other noise: another strategy, size, memory, seed'
        ' or release; resume with the flags that the run was started with'
      )
    return _Mark(row, released, stddev)

  def close(self) -> None:
    """Ends background work, and removes rows that were not used."""
    if self._stack is None:
      return
    self._source.abandon()
    self._ahead.wait()
    self._ahead = ahead.Ahead(self._produce)
    self._source.close()
    self._remove_rows()
    self._ready.unlink(missing_ok=True)
    self._stack.close()
    self._stack = None

  @property
  def _mark(self) -> pathlib.Path:
    return self.folder / MARK_NAME

  @property
  def _ready(self) -> pathlib.Path:
    return self.folder / 'ready'

  def _found_seed(self) -> bytes | None:
    """The seed in the folder, if there is one."""
    path = self.folder / 'seed'
    try:
      seed = path.read_bytes()
    except FileNotFoundError:
      if self._mark.exists():
        raise ValueError(
          f'{path} is lost, and rows of its noise were used: the run cannot go on'
        ) from None
      return None
    if len(seed) != draws.SEED_BYTES:
      raise ValueError(f'{path} is not a seed; the run cannot go on')
    return seed

  def _prepare(self) -> None:
    """Prepares the folder for a start; no other process uses it."""
    self.served()
    if self._is_secret:
      if self._found_seed() not in (None, self._seed):
        raise ValueError(f'{self.folder} was taken by another run meanwhile')
      files.write_durably(self.folder / 'seed', self._seed, private=True)
    self._remove_rows()
    files.remove_leftovers(self.folder)

  def _remove_rows(self) -> None:
    for path in self.folder.glob('row-*'):
      path.unlink()

  def _produce(self, row: int) -> None:
    """Makes a row, and writes it to where `serve` looks for it."""
    values = np.empty(self.size, np.float32)
    try:
      stddev = self._source.make(row, values, self.served())
    except source.Abandoned:
      return
    header = np.empty(HEADER_BYTES // 8, '<i8')
    header[:4] = MAGIC, self.identity, row, self.size
    header[4:] = np.array([stddev], '<f8').view('<i8')
    with files.replacing(self._ready, private=True, durable=False) as path:
      with path.open('wb') as file:
        file.write(header.tobytes())
        file.write(values.data.cast('B'))
