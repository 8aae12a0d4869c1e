"""A row in slices, each made by a process of its own, here or elsewhere.

A slice's recurrence needs no other slice, so workers hold nothing in common, and
what travels is their part of each row. The rows are those that one process would
make. Workers and whoever asks them for rows know each other by a key; nothing is
encrypted, and what they say to each other is as secret as the noise.

Source: McKenna 2024 (scaling BandMF), section 3.3.
"""

import contextlib
import functools
import multiprocessing
from multiprocessing import connection
import pathlib
import socket
import threading
import time
from typing import Any, Callable, NamedTuple, NoReturn, Sequence

import numpy as np

from fl_dpftrl import addresses
from fl_dpftrl.noise.engine import draws
from fl_dpftrl.noise.engine import maker as makers
from fl_dpftrl.noise.engine import snapshots
from fl_dpftrl.noise.engine import source

_SHORTEST_KEY = 16
# How long a worker that is being started anew is waited for.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.2


class Slice(NamedTuple):
  """Which coordinates a worker makes of whose noise.

  Attributes:
    recipe: arguments of `RowMaker`, its size being the slice's.
    identity: of the whole noise.
    snapshot_rows: rows between two snapshots; 0 for none.
  """

  recipe: dict[str, Any]
  identity: int
  snapshot_rows: int


class ShardedSource:
  """Rows whose slices workers make, all at the same time.

  Args:
    workers: host:port of each.
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
      recipe: dict[str, Any],
      identity: int,
      snapshot_rows: int,
  ):
    check_key(key)
    self._key = key
    found = addresses.parse_all(workers)
    num_chunks = -(-recipe['size'] // draws.CHUNK)
    bounds = [
        num_chunks * i // len(found) for i in range(len(found) + 1)
    ]
    self._shards = []
    for address, first, last in zip(found, bounds, bounds[1:]):
      where = slice(
          first * draws.CHUNK, min(last * draws.CHUNK, recipe['size'])
      )
      if first < last:
        of_slice = {
            **recipe, 'size': where.stop - where.start, 'first_chunk': first
        }
        self._shards.append(
            (address, where, Slice(of_slice, identity, snapshot_rows))
        )
    self._connections: list[connection.Connection] = []
    self._closing = False

  def make(self, row: int, out: np.ndarray, used: int) -> float:
    """See `source.Source`. A worker that is started anew is asked again.

    Raises:
      RuntimeError: where a worker cannot be reached, or says that it failed.
    """
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while True:
      try:
        return self._make(row, out, used)
      except ConnectionError as error:
        self._disconnect()
        if self._closing:
          raise source.Abandoned from error
        if time.monotonic() > give_up:
          raise RuntimeError(str(error)) from error
      time.sleep(_PAUSE_SECONDS)

  def _make(self, row: int, out: np.ndarray, used: int) -> float:
    if not self._connections:
      for address, _, of_slice in self._shards:
        with _telling(address):
          self._connections.append(
              connection.Client(tuple(address), authkey=self._key)
          )
          _keep_alive(self._connections[-1])
          self._connections[-1].send(of_slice)
    for (address, _, _), worker in zip(self._shards, self._connections):
      with _telling(address):
        worker.send((row, used))
    for (address, where, _), worker in zip(self._shards, self._connections):
      with _telling(address):
        answer = worker.recv()
        if isinstance(answer, str):
          self._disconnect()
          raise RuntimeError(f'the noise worker at {address} failed: {answer}')
        worker.recv_bytes_into(memoryview(out[where]).cast('B'))
    return answer

  def abandon(self) -> None:
    """See `source.Source`; the workers finish the row that they are at."""
    self._closing = True

  def close(self) -> None:
    """See `source.Source`."""
    self._disconnect()
    self._closing = False

  def _disconnect(self) -> None:
    for worker in self._connections:
      worker.close()
    self._connections = []


@contextlib.contextmanager
def _telling(address: addresses.Address):
  """Says in errors whose they are."""
  try:
    yield
  except multiprocessing.AuthenticationError as error:
    raise RuntimeError(
        f'the noise worker at {address} has another key'
    ) from error
  except (OSError, EOFError) as error:
    raise ConnectionError(
        f'the noise worker at {address} is not there'
        f' ({error or type(error).__name__}): start it with the same key, and'
        ' resume'
    ) from error


def listen(
    address: addresses.Address,
    key: bytes,
    folder: pathlib.Path,
    say: Callable[[str], None],
) -> NoReturn:
  """Makes slices of rows for whoever has the key, for ever.

  Args:
    address: 0.0.0.0 as host for every interface of this machine.
    key: of at least 16 bytes.
    folder: for snapshots, so that a worker that is started anew need not make
      all rows again.
    say: told, in a line, who comes and goes.

  Raises:
    OSError: where the address is not free.
    ValueError: for a key that is too short.
  """
  check_key(key)
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  folder.chmod(0o700)
  with connection.Listener(tuple(address), backlog=8) as listener:
    say(f'makes noise at {address}')
    while True:
      with contextlib.suppress(OSError, EOFError):
        asking = listener.accept()
        threading.Thread(
            target=_answer, args=(asking, key, folder, say), daemon=True
        ).start()


def _answer(
    asking: connection.Connection,
    key: bytes,
    folder: pathlib.Path,
    say: Callable[[str], None],
) -> None:
  """Authenticates who asks, and makes that one's slice until it goes."""
  rows = None
  try:
    with asking:
      _keep_alive(asking)
      connection.deliver_challenge(asking, key)
      connection.answer_challenge(asking, key)
      of_slice = asking.recv()
      rows = _source(of_slice, folder)
      size, first = of_slice.recipe['size'], of_slice.recipe['first_chunk']
      say(f'{size:,} coordinates from {first * draws.CHUNK:,} on are wanted')
      values = np.empty(size, np.float32)
      while True:
        row, used = asking.recv()
        try:
          stddev = rows.make(row, values, used)
        except (ValueError, OSError, MemoryError) as error:
          asking.send(f'{error} ({type(error).__name__})')
          continue
        asking.send(stddev)
        asking.send_bytes(memoryview(values).cast('B'))
  except multiprocessing.AuthenticationError:
    say('somebody with another key was refused')
  except (OSError, EOFError):
    say('who asked for noise is gone')
  finally:
    if rows is not None:
      rows.close()


def _source(of_slice: Slice, folder: pathlib.Path) -> source.LocalSource:
  first = of_slice.recipe['first_chunk']
  own = folder / f'{of_slice.identity:016x}-{first}-{of_slice.recipe["size"]}'
  own.mkdir(mode=0o700, exist_ok=True)
  return source.LocalSource(
      functools.partial(makers.RowMaker, **of_slice.recipe, folder=own),
      snapshots.Snapshots(own, of_slice.identity),
      of_slice.snapshot_rows,
  )


def read_key(path: str) -> bytes:
  """The key in a file.

  Raises:
    ValueError: where it cannot be read, or is too short.
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
    raise ValueError(
        f'a key must have at least {_SHORTEST_KEY} bytes, got {len(key)}'
    )


def _keep_alive(talk: connection.Connection) -> None:
  """Ends a connection to a machine that is gone, after some minutes."""
  handle = socket.fromfd(talk.fileno(), socket.AF_INET, socket.SOCK_STREAM)
  with handle:
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, 'TCP_KEEPIDLE'):
      handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
      handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
