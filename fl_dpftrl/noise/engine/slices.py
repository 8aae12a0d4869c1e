"""Makes slices of noise rows for runs elsewhere, which have a certificate."""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

import numpy as np

from fl_dpftrl import addresses
from fl_dpftrl.noise.engine import certificates as certificates_lib
from fl_dpftrl.noise.engine import gate, snapshots, source, wire
from fl_dpftrl.noise.engine import maker as makers

_MOST_CALLS = 16
_BACKLOG = 256
# How long a run may take to describe its slice, to receive a row, and to ask for the next.
_DESCRIBE_SECONDS = 600.0
_SEND_SECONDS = 1800.0
_IDLE_SECONDS = 24 * 3600.0
# How often a run is told that its row is being worked at.
_SIGN_SECONDS = 1.0
# Anything longer is refused before it is received. What is between is refused in our words.
_OPTIONS = [
  ('grpc.max_receive_message_length', 4 * wire.MOST_BYTES),
  ('grpc.max_send_message_length', wire.MOST_BYTES),
  ('grpc.max_metadata_size', 2**14),
  ('grpc.max_concurrent_streams', 4),
  ('grpc.http2.min_recv_ping_interval_without_data_ms', 10_000),
  ('grpc.keepalive_time_ms', 60_000),
  ('grpc.so_reuseport', 0),
]


def versions() -> str:
  """Returns the versions that must agree for two machines to make the same rows."""
  return f'fl_dpftrl with rows {makers.VERSION}, NumPy {np.__version__}'


def import_grpc() -> Any:
  """gRPC, which only those who have noise workers need.

  Raises:
    ValueError: where it is not installed.
  """
  try:
    import grpc
  except ImportError as error:
    raise ValueError(certificates_lib.MISSING) from error
  return grpc


def listen(
  address: addresses.Address,
  certificates: certificates_lib.Certificates,
  folder: pathlib.Path,
  say: Callable[[str], None],
) -> NoReturn:
  """Makes slices of rows for whoever has a certificate, for ever.

  Args:
    address: 0.0.0.0 as host for every interface of this machine.
    certificates: those of a worker.
    folder: for snapshots, so that a worker that is started anew need not make all rows again.
    say: told, in a line, who comes, goes and is refused.

  Raises:
    KeyboardInterrupt: on Ctrl-C or SIGTERM.
    OSError: if the address is not free.
    ValueError: where gRPC is not installed.
  """
  grpc = import_grpc()
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  folder.chmod(0o700)
  handler = grpc.stream_stream_rpc_method_handler(_Slices(grpc, folder, say).rows)
  with contextlib.ExitStack() as stack:
    inner = stack.enter_context(_private_socket())
    pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(_MOST_CALLS, 'calls'))
    server = grpc.server(pool, options=_OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS)
    server.add_generic_rpc_handlers(
      [grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: handler})]
    )
    server.add_insecure_port(f'unix:{inner}')
    listener = stack.enter_context(
      socket.create_server((address.host, address.port), backlog=_BACKLOG)
    )
    server.start()
    stack.callback(lambda: server.stop(0).wait())
    say(f'makes noise at {address}')
    with contextlib.suppress(asyncio.CancelledError):
      asyncio.run(_serve(gate.Gate(certificates.worker_context(), inner, say), listener))
  raise KeyboardInterrupt


async def _serve(entrance: gate.Gate, listener: socket.socket) -> NoReturn:
  """Opens a gate until a signal ends this task, between two steps of it."""
  task = cast('asyncio.Task[None]', asyncio.current_task())
  for number in (signal.SIGINT, signal.SIGTERM):
    with contextlib.suppress(ValueError, RuntimeError):  # Not in the main thread.
      asyncio.get_running_loop().add_signal_handler(number, task.cancel)
  await entrance.serve(listener)


@contextlib.contextmanager
def _private_socket() -> Iterator[str]:
  """A path for a Unix socket that only this user can connect to."""
  with tempfile.TemporaryDirectory() as folder:
    if sys.platform != 'linux':
      yield f'{folder}/s'
      return
    # By descriptor: the path of a socket has room for 107 bytes.
    descriptor = os.open(folder, os.O_PATH)
    try:
      yield f'/proc/self/fd/{descriptor}/s'
    finally:
      os.close(descriptor)


class _Slices:
  """Answers calls, each with the rows of one slice.

  Args:
    grpc: the module.
    folder: for snapshots.
    say: told, in a line, what is made and what fails.
  """

  def __init__(self, grpc: Any, folder: pathlib.Path, say: Callable[[str], None]):
    self._grpc, self._folder, self._say = grpc, folder, say

  def rows(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    """The messages of one call; see `wire`."""
    with contextlib.ExitStack() as stack:
      alarm = _Alarm(context.cancel)
      stack.callback(alarm.stop)
      try:
        yield from self._answers(requests, context, alarm, stack)
      except self._grpc.RpcError:
        self._say(
          'a run ended its call before its time, was too slow, or sent a message of more than'
          f' {4 * wire.MOST_BYTES} bytes'
        )

  def _answers(
    self, requests: Iterator[bytes], context: Any, alarm: '_Alarm', stack: contextlib.ExitStack
  ) -> Iterator[bytes]:
    try:
      alarm.set(_DESCRIBE_SECONDS)
      of_slice, arrays = _received(requests)
      rows = self._source(of_slice, arrays)
      values = np.empty(of_slice.size, np.float32)
      stack.callback(rows.close)
      context.add_callback(rows.abandon)
      self._say(f'makes {of_slice.size:,} coordinates from {of_slice.first:,} on')
      alarm.set(_IDLE_SECONDS)
      asked = [wire.decode_request(message) for message in _next(requests)]
    except (ValueError, TypeError, OSError, MemoryError) as error:
      yield self._failure('what a run asked for was refused', error)
      return
    worker = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1, 'slice'))
    while asked:
      (request,) = asked
      alarm.stop()
      try:
        making = worker.submit(rows.make, request.row, values, request.used)
        while not concurrent.futures.wait([making], _SIGN_SECONDS).done:
          yield wire.encode_working(wire.Working(rows.reached))
        stddev = making.result()
      except source.Abandoned:
        return
      except Exception as error:
        yield self._failure(f'row {request.row} failed', error)
      else:
        alarm.set(_SEND_SECONDS)
        yield from wire.encode_row(stddev, values)
      alarm.set(_IDLE_SECONDS)
      try:
        asked = [wire.decode_request(message) for message in _next(requests)]
      except ValueError as error:
        yield self._failure('what a run asked for was refused', error)
        return

  def _failure(self, what: str, error: Exception) -> bytes:
    line = f'{error} ({type(error).__name__})'
    self._say(f'{what}: {line}')
    return wire.encode_failure(line)

  def _source(self, of_slice: wire.Slice, arrays: bytes) -> source.LocalSource:
    with tempfile.TemporaryDirectory(dir=self._folder) as temporary:
      strategy = wire.unpack(of_slice.strategy, arrays, pathlib.Path(temporary))
    identity = of_slice.identity(strategy)
    own = self._folder / f'{identity:016x}-{of_slice.first_chunk}-{of_slice.size}'
    own.mkdir(mode=0o700, exist_ok=True)
    return source.LocalSource(
      functools.partial(
        makers.RowMaker,
        strategy,
        size=of_slice.size,
        num_rounds=of_slice.num_rounds,
        stddev=of_slice.stddev,
        seed=of_slice.seed,
        memory=of_slice.memory,
        precision=of_slice.precision,
        folder=own,
        first_chunk=of_slice.first_chunk,
      ),
      snapshots.Snapshots(own, identity, of_slice.num_rounds),
      of_slice.snapshot_rows,
    )


class _Alarm:
  """Calls a function unless it is set again, or stopped, in time."""

  def __init__(self, ring: Callable[[], Any]):
    self._ring = ring
    self._timer: threading.Timer | None = None

  def set(self, seconds: float) -> None:
    self.stop()
    self._timer = threading.Timer(seconds, self._ring)
    self._timer.daemon = True
    self._timer.start()

  def stop(self) -> None:
    if self._timer is not None:
      self._timer.cancel()


def _next(requests: Iterator[bytes]) -> list[bytes]:
  """The next message; none where the run has no more."""
  for message in requests:
    return [message]
  return []


def _received(requests: Iterator[bytes]) -> tuple[wire.Slice, bytes]:
  """The slice, and the arrays of its strategy.

  Raises:
    ValueError: for anything else, and for a run of other versions.
  """
  found = _next(requests)
  if not found:
    raise ValueError(f'the call has no message, or one of more than {4 * wire.MOST_BYTES} bytes')
  of_slice = wire.decode_slice(found[0])
  if of_slice.made_by != versions():
    raise ValueError(
      f'it is {versions()}, and the run is {of_slice.made_by}: rows would differ;'
      ' install the same on both'
    )
  arrays = bytearray()
  while len(arrays) < of_slice.arrays_bytes:
    found = _next(requests)
    if not found:
      raise ValueError('the call ends before the arrays do')
    arrays += wire.decode_array(found[0], of_slice.arrays_bytes - len(arrays))
  return of_slice, bytes(arrays)
