"""A row in slices, each made by a process of its own, here or elsewhere.

A slice's recurrence needs no other slice, so workers hold nothing in common, and
what travels is their part of each row. The rows are those that one process would
make. Workers and whoever asks them for rows know each other by a key; nothing is
encrypted, and what they say to each other is as secret as the noise. They talk in
pickles: who has the key can run anything at the other end.

Source: McKenna 2024 (scaling BandMF), section 3.3.
"""

import contextlib
import functools
import multiprocessing
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import NamedTuple, NoReturn

import numpy as np

from fl_dpftrl import addresses, json_files
from fl_dpftrl.noise.engine import draws, snapshots, source
from fl_dpftrl.noise.engine import maker as makers

_SHORTEST_KEY = 16
# How long a worker that is being started anew is waited for.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_HANDSHAKE_SECONDS = 10.0


class Slice(NamedTuple):
  """The coordinates that a worker makes, and the noise that they belong to.

  Attributes:
    recipe: arguments of `RowMaker`, whose size is the slice's.
    identity: identity of the whole noise.
    snapshot_rows: rows between two snapshots; 0 for none.
    made_by: versions that must agree for the rows to be the same.
  """

  recipe: json_files.Object
  identity: int
  snapshot_rows: int
  made_by: str


def _maker() -> str:
  return f'fl_dpftrl with rows {makers.VERSION}, NumPy {np.__version__}'


class _Shard:
  """One worker's slice, as seen by the process that requests it.

  Args:
    address: address of the worker.
    key: key that the worker has too.
    where: position of the slice in a whole row.
    of_slice: description of the slice that is sent to the worker.
  """

  def __init__(self, address: addresses.Address, key: bytes, where: slice, of_slice: Slice):
    self._address, self._key = address, key
    self._where, self._slice = where, of_slice
    self._worker: connection.Connection | None = None
    self._asked: int | None = None

  def ask(self, row: int, used: int) -> None:
    """Requests a row, unless it was requested before and not yet taken."""
    if self._worker is not None and self._asked == row:
      return
    with self._telling():
      if self._worker is None or self._asked is not None:
        self.disconnect()
        self._worker = connection.Client((self._address.host, self._address.port))
        _keep_alive(self._worker)
        connection.answer_challenge(self._worker, self._key)
        connection.deliver_challenge(self._worker, self._key)
        self._worker.send(self._slice)
      self._worker.send((row, used))
    self._asked = row

  def take(self, out: np.ndarray) -> float:
    """Writes the requested row's slice; returns its standard deviation."""
    with self._telling():
      if self._worker is None:
        raise EOFError
      answer = self._worker.recv()
      if isinstance(answer, str):
        self._asked = None
        raise RuntimeError(f'the noise worker at {self._address} failed: {answer}')
      self._worker.recv_bytes_into(out[self._where].data.cast('B'))
    self._asked = None
    return answer

  @contextlib.contextmanager
  def _telling(self):
    """Names the worker in errors."""
    try:
      yield
    except multiprocessing.AuthenticationError as error:
      self.disconnect()
      raise RuntimeError(
        f'the noise worker at {self._address} has another key: give both the same file'
      ) from error
    except (OSError, EOFError) as error:
      self.disconnect()
      raise ConnectionError(
        f'the noise worker at {self._address} is not there'
        f' ({str(error) or type(error).__name__}): start it with the same key,'
        ' and resume'
      ) from error

  def interrupt(self) -> None:
    """Ends all waiting for the worker, from another thread."""
    if self._worker is not None:
      _shut(self._worker)

  def disconnect(self) -> None:
    if self._worker is not None:
      self._worker.close()
    self._worker = self._asked = None


class ShardedSource:
  """Rows whose slices workers make, all at the same time.

  Args:
    workers: host:port of each. Of more than there are chunks, the first are not needed.
    key: that the workers have too.
    recipe: arguments of `RowMaker`.
    identity: of the noise.
    snapshot_rows: rows between two snapshots that workers write.

  Raises:
    ValueError: for addresses or a key that will not do.
  """

  def __init__(
    self,
    workers: Sequence[str],
    key: bytes,
    recipe: json_files.Object,
    identity: int,
    snapshot_rows: int,
  ):
    check_key(key)
    found = addresses.parse_all(workers)
    num_chunks = -(-recipe['size'] // draws.CHUNK)
    bounds = [num_chunks * i // len(found) for i in range(len(found) + 1)]
    self._shards = []
    for address, first, last in zip(found, bounds, bounds[1:]):
      where = slice(first * draws.CHUNK, min(last * draws.CHUNK, recipe['size']))
      if first < last:
        size = where.stop - where.start
        of_slice = Slice(
          {**recipe, 'size': size, 'first_chunk': first}, identity, snapshot_rows, _maker()
        )
        self._shards.append(_Shard(address, key, where, of_slice))
    self._closing = False

  def make(self, row: int, out: np.ndarray, used: int) -> float:
    """See `source.Source`. A worker that is started anew is asked again.

    Raises:
      RuntimeError: if a worker cannot be reached, or says that it failed.
    """
    give_up = None
    taken: dict[_Shard, float] = {}
    while True:
      try:
        left = [shard for shard in self._shards if shard not in taken]
        for shard in left:
          shard.ask(row, used)
        for shard in left:
          taken[shard] = shard.take(out)
        return taken[self._shards[0]]
      except ConnectionError as error:
        if self._closing:
          raise source.Abandoned from error
        give_up = give_up or time.monotonic() + _PATIENCE_SECONDS
        if time.monotonic() > give_up:
          raise RuntimeError(str(error)) from error
      time.sleep(_PAUSE_SECONDS)

  def abandon(self) -> None:
    """See `source.Source`; the workers finish the row that they are at."""
    self._closing = True
    for shard in self._shards:
      shard.interrupt()

  def close(self) -> None:
    """See `source.Source`."""
    for shard in self._shards:
      shard.disconnect()
    self._closing = False


def listen(
  address: addresses.Address, key: bytes, folder: pathlib.Path, say: Callable[[str], None]
) -> NoReturn:
  """Makes slices of rows for whoever has the key, for ever.

  Args:
    address: 0.0.0.0 as host for every interface of this machine.
    key: of at least 16 bytes.
    folder: for snapshots, so that a worker that is started anew need not make all rows again.
    say: told, in a line, who comes and goes.

  Raises:
    OSError: if the address is not free.
    ValueError: for a key that is too short.
  """
  check_key(key)
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  folder.chmod(0o700)
  with connection.Listener((address.host, address.port), backlog=8) as listener:
    say(f'makes noise at {address}')
    while True:
      with contextlib.suppress(OSError, EOFError):
        asking = listener.accept()
        threading.Thread(target=_answer, args=(asking, key, folder, say), daemon=True).start()


def _answer(
  asking: connection.Connection, key: bytes, folder: pathlib.Path, say: Callable[[str], None]
) -> None:
  """Authenticates who asks, and makes that one's slice until it goes."""
  made: list[source.LocalSource] = []
  try:
    with asking:
      _keep_alive(asking)
      stranger = threading.Timer(_HANDSHAKE_SECONDS, _shut, [asking])
      stranger.start()
      try:
        connection.deliver_challenge(asking, key)
        connection.answer_challenge(asking, key)
      finally:
        stranger.cancel()
      _make_rows(asking, folder, say, made)
  except multiprocessing.AuthenticationError:
    say('somebody with another key was refused')
  except (OSError, EOFError):
    say('who asked for noise is gone')
  finally:
    for rows in made:
      rows.close()


def _make_rows(
  asking: connection.Connection,
  folder: pathlib.Path,
  say: Callable[[str], None],
  made: list[source.LocalSource],
) -> None:
  """Answers with rows, or with a line that says why there is none."""
  of_slice = asking.recv()
  while True:
    row, used = asking.recv()
    try:
      if not made:
        _check(of_slice)
        size, first = of_slice.recipe['size'], of_slice.recipe['first_chunk']
        values = np.empty(size, np.float32)
        made.append(_source(of_slice, folder))
        say(f'makes {size:,} coordinates from {first * draws.CHUNK:,} on')
      stddev = made[0].make(row, values, used)
    except Exception as error:
      line = ' '.join(f'{error} ({type(error).__name__})'.split())
      say(f'row {row} failed: {line}')
      asking.send(line)
      continue
    asking.send(stddev)
    asking.send_bytes(values.data.cast('B'))


def _check(of_slice: Slice) -> None:
  if of_slice.made_by != _maker():
    raise ValueError(
      f'it is {_maker()}, and the run is {of_slice.made_by}: rows would differ;'
      ' install the same on both'
    )


def _source(of_slice: Slice, folder: pathlib.Path) -> source.LocalSource:
  first = of_slice.recipe['first_chunk']
  own = folder / f'{of_slice.identity:016x}-{first}-{of_slice.recipe["size"]}'
  own.mkdir(mode=0o700, exist_ok=True)
  return source.LocalSource(
    functools.partial(makers.RowMaker, **of_slice.recipe, folder=own),
    snapshots.Snapshots(own, of_slice.identity, of_slice.recipe['num_rounds']),
    of_slice.snapshot_rows,
  )


def read_key(path: str) -> bytes:
  """The key in a file.

  Raises:
    ValueError: if it cannot be read, or is too short.
  """
  try:
    key = pathlib.Path(path).read_bytes()
    check_key(key)
  except OSError as error:
    raise ValueError(f'{path}: {error.strerror or error}') from error
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return key


def check_key(key: bytes) -> None:
  if len(key) < _SHORTEST_KEY:
    raise ValueError(f'a key must have at least {_SHORTEST_KEY} bytes, got {len(key)}')


def _shut(talk: connection.Connection) -> None:
  """Makes whoever waits at a connection see its end."""
  with contextlib.suppress(OSError):
    handle = socket.fromfd(talk.fileno(), socket.AF_INET, socket.SOCK_STREAM)
    with handle:
      handle.shutdown(socket.SHUT_RDWR)


def _keep_alive(talk: connection.Connection) -> None:
  """Ends a connection to a machine that is gone, after some minutes."""
  handle = socket.fromfd(talk.fileno(), socket.AF_INET, socket.SOCK_STREAM)
  with handle:
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, 'TCP_KEEPIDLE'):
      handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
      handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
