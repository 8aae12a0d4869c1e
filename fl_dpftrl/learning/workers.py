"""The local TFF worker process, tied to the life of the process that uses it.

TFF's own local context leaves its worker behind when the run ends, holding the run's output
open. Here the operating system ends the worker together with its parent, however that ends.
"""

import atexit
import concurrent.futures
import contextlib
import gc
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import IO, Any

import grpc
import portpicker
import tensorflow_federated as tff

from fl_dpftrl.learning import isolation
from fl_dpftrl.runtime import callbacks

_START_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05
# gRPC's largest message; TFF's worker is compiled with the same limit.
_MAX_MESSAGE_BYTES = 2_000_000_000
CHANNEL_OPTIONS = [
  ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
]
# What TensorFlow says of an operation that a deterministic worker refuses.
_REFUSED = re.compile(r'[^.:\n]{,80}determinism is enabled[^.\n"]{,80}', re.I)


class HungError(RuntimeError):
  """The worker gave no result in the time that it was given."""


class LocalWorker:
  """One TFF worker process on this machine.

  TFF's worker listens on every interface and computes whatever it is sent. Where the system
  allows it, the worker gets a network namespace of its own, and is reached through a Unix
  socket that has no name. Else anybody who reaches its port can read what this run holds, the
  seed of its noise included, and `warn` is told so.

  Start it from a thread that lives as long as the worker is needed, best the
  main thread: Linux ends the worker when that thread ends.

  Args:
    max_concurrent_calls: clients that the worker trains at the same time; 0 for no limit.
    deterministic: same floating-point results for the same inputs, in every
      run. TensorFlow then refuses random operations without a seed, such as
      dropout, random rotations and TFF's own noise.
    warn: told, in one line, of a worker that others can reach.
    timeout: how many seconds a computation, such as a round, may take; None for no limit.

  Attributes:
    is_isolated: whether the worker has a network of its own.

  Raises:
    RuntimeError: if the worker's program is missing or does not start.
  """

  def __init__(
    self,
    max_concurrent_calls: int = 0,
    *,
    deterministic: bool = True,
    warn: Callable[[str], None] = warnings.warn,
    timeout: float | None = None,
  ):
    self._timeout = timeout
    launch = isolation.launcher(max_concurrent_calls, deterministic)
    self._relay: IO[bytes] | None
    try:
      self._process, channel, self._relay = _launch_isolated(launch)
      self.is_isolated = True
    except isolation.NotIsolatedError as error:
      self.is_isolated, self._relay = False, None
      port = portpicker.pick_unused_port()
      warn(
        f'the TensorFlow Federated worker listens on every interface, port'
        f' {port}: while it runs, whoever reaches it can read the noise seed'
        f" and this user's files. It got no network namespace"
        f' ({error}): allow unprivileged user namespaces, or'
        ' keep others off this machine and port'
      )
      self._process = launch(port)
      channel = grpc.insecure_channel(f'localhost:{port}', CHANNEL_OPTIONS)
    self._stub = tff.framework.RemoteExecutorGrpcStub(channel)
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while not self._stub.is_ready:
      if not self._is_running() or time.monotonic() > deadline:
        self.stop()
        raise RuntimeError(
          f'the TensorFlow Federated worker did not start (exit status {self._process.returncode})'
        )
      time.sleep(_POLL_SECONDS)

  @property
  def pid(self) -> int:
    return self._process.pid

  def stop(self) -> None:
    """Ends the worker and waits until it is gone."""
    self._process.kill()
    self._process.wait()

  def _is_running(self) -> bool:
    """Returns whether worker and relay run; a worker needs its relay."""
    if self._process.poll() is not None:
      return False
    # The relay holds the other end, and writes no more.
    return self._relay is None or not select.select([self._relay], [], [], 0)[0]

  def context(self, default_num_clients: int = 0) -> tff.framework.SyncContext:
    """An execution context whose computations this worker runs."""

    def check():
      if not self._is_running():
        self.stop()
        raise RuntimeError(
          'the TensorFlow Federated worker has ended (exit status'
          f' {self._process.returncode}); resume the run to start another'
        )

    return context_of(self._stub, check, default_num_clients, self._timeout)


def _launch_isolated(
  launch: isolation.Launch,
) -> tuple[subprocess.Popen[bytes], grpc.Channel, IO[bytes]]:
  """Starts a worker in a network of its own.

  Returns:
    The worker, a channel to it, and a pipe that ends with the relay between them.

  Raises:
    isolation.NotIsolatedError: if the system does not allow that.
  """
  if sys.platform != 'linux':
    raise isolation.NotIsolatedError('only Linux has them')
  try:
    listener, name = _nameless_socket()
  except OSError as error:
    raise isolation.NotIsolatedError(str(error)) from error
  try:
    process, relay = isolation.launch_behind(launch, listener, isolation.PORT_ALONE)
  except BaseException:
    os.close(name)
    raise
  channel = grpc.insecure_channel(f'unix:/proc/self/fd/{name}', CHANNEL_OPTIONS)
  weakref.finalize(channel, os.close, name)
  return process, channel, relay


def _nameless_socket() -> tuple[socket.socket, int]:
  """A listening Unix socket, and a descriptor by which this process connects.

  Its name is gone at once: nobody else can connect, and nothing is left behind.
  """
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    # By descriptor: the path of a socket has room for 107 bytes.
    folder_fd = os.open(folder, os.O_PATH)
    stack.callback(os.close, folder_fd)
    path = f'/proc/self/fd/{folder_fd}/socket'
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener, os.open(path, os.O_PATH)


def context_of(
  stub: tff.framework.RemoteExecutorGrpcStub,
  check: Callable[[], None],
  default_num_clients: int = 0,
  timeout: float | None = None,
) -> tff.framework.SyncContext:
  """An execution context whose computations the worker behind a stub runs.

  What it runs may raise a `HungError`.

  Args:
    stub: talks to the worker.
    check: called before the worker is first used and after each failure, which
      TFF would otherwise repeat for ever; raises where there is no use in that.
    default_num_clients: where a computation's arguments do not say.
    timeout: how many seconds a computation may take; None for no limit.
  """

  def executor(cardinalities):
    check()
    cardinalities.setdefault(tff.CLIENTS, default_num_clients)
    remote = tff.framework.RemoteExecutor(stub, dispose_batch_size=1)
    remote.set_cardinalities(cardinalities)
    return remote

  context = _WorkerContext(
    executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
    compiler_fn=lambda comp: tff.backends.native.desugar_and_transform_to_native(
      with_plain_sums(comp)
    ),
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )
  context.timeout = timeout
  return context


def with_plain_sums(comp: Any) -> Any:
  """The computation, with plain sums in place of secure ones.

  TFF's worker has no protocol for a secure sum, and refuses it ("Cannot embed a
  federated value"). Clients are simulated here, so there is nothing to hide from
  whoever adds them up; the sums are those that the protocol would give.
  """
  plain = tff.backends.test.replace_secure_intrinsics_with_bodies(comp)
  # Which Python classes its results are of is lost on the way.
  return type(plain).with_type(plain, comp.type_signature)


class _WorkerContext(tff.framework.SyncExecutionContext):
  """Ends in time, and names the switch where a deterministic worker refuses to draw numbers."""

  timeout: float | None = None

  def invoke(self, comp: Any, arg: Any) -> Any:
    try:
      if self.timeout is None:
        return super().invoke(comp, arg)
      result = in_background(super().invoke, comp, arg)
      if not concurrent.futures.wait([result], self.timeout).done:
        raise HungError(
          f'the TensorFlow Federated worker gave no result for {self.timeout:g} s, the worker'
          ' timeout: allow more time if it is only slow, and resume'
        )
      return result.result()
    except grpc.RpcError as error:
      if callbacks.OPERATION in str(error):
        raise ValueError(
          "a worker has no engine: build the process with memory='state' or a"
          ' RowServer, or run it in process'
        ) from error
      refused = _REFUSED.search(str(error))
      if not refused:
        raise
      raise ValueError(
        f'{refused[0].strip()}: for dropout, rotations or noise of TFF start'
        ' the worker with use_local_worker(deterministic=False) or'
        ' `fl-dpftrl worker --deterministic=false`'
      ) from error


def in_background(function: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
  """Runs a function in a thread that does not keep the process from ending."""
  future: concurrent.futures.Future[Any] = concurrent.futures.Future()

  def run():
    try:
      future.set_result(function(*args))
    except BaseException as error:
      future.set_exception(error)

  threading.Thread(target=run, daemon=True).start()
  return future


def use_local_worker(
  max_concurrent_calls: int = 0,
  *,
  deterministic: bool = True,
  warn: Callable[[str], None] = warnings.warn,
  timeout: float | None = None,
) -> LocalWorker:
  """Starts a worker and makes it run every TFF computation from now on.

  The arguments are those of `LocalWorker`.
  """
  worker = LocalWorker(
    max_concurrent_calls, deterministic=deterministic, warn=warn, timeout=timeout
  )
  atexit.register(worker.stop)
  tff.framework.set_default_context(worker.context())
  gc.collect()  # TFF's own context complains where it is left to the exit.
  return worker
