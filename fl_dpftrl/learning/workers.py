"""The local TFF worker process, tied to the life of the process that uses it.

TFF's own local context leaves its worker behind when the run ends, holding the
run's output open. Here the operating system ends the worker together with its
parent, however that ends.
"""

import atexit
from collections.abc import Callable
import gc
import os
import subprocess
import sys
import time

import grpc
import portpicker
import tensorflow_federated as tff

from fl_dpftrl import worker_program

_START_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05
# gRPC's largest message; TFF's worker is compiled with the same limit.
_MAX_MESSAGE_BYTES = 2_000_000_000
CHANNEL_OPTIONS = [
    ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
    ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
    ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
]
# Asks Linux for SIGKILL on the parent's death (PR_SET_PDEATHSIG is 1), makes
# sure that the parent did not die before, then becomes the worker.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == 'linux':
  ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
  sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class LocalWorker:
  """One TFF worker process on this machine.

  Start it from a thread that lives as long as the worker is needed, best the
  main thread: Linux ends the worker when that thread ends.

  Args:
    max_concurrent_calls: clients that the worker trains at the same time; 0 for
      no limit.
    deterministic: same floating-point results for the same inputs, in every
      run. TFF's own noise does not run so.

  Raises:
    RuntimeError: where the worker's program is missing or does not start.
  """

  def __init__(
      self, max_concurrent_calls: int = 0, *, deterministic: bool = True
  ):
    port = portpicker.pick_unused_port()
    program = worker_program.command(port, max_concurrent_calls)
    self._process = subprocess.Popen(
        [
            sys.executable,
            '-IS',
            '-c',
            _DIE_WITH_PARENT,
            str(os.getpid()),
            *program,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the run, which ends the worker.
        env=worker_program.environment(deterministic),
    )
    channel = grpc.insecure_channel(f'localhost:{port}', CHANNEL_OPTIONS)
    self._stub = tff.framework.RemoteExecutorGrpcStub(channel)
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while not self._stub.is_ready:
      if self._process.poll() is not None or time.monotonic() > deadline:
        self.stop()
        raise RuntimeError(
            'the TensorFlow Federated worker did not start (exit status'
            f' {self._process.returncode})'
        )
      time.sleep(_POLL_SECONDS)

  @property
  def pid(self) -> int:
    return self._process.pid

  def stop(self) -> None:
    """Ends the worker and waits until it is gone."""
    self._process.kill()
    self._process.wait()

  def context(self, default_num_clients: int = 0) -> tff.framework.SyncContext:
    """An execution context whose computations this worker runs."""

    def check():
      if self._process.poll() is not None:
        raise RuntimeError(
            'the TensorFlow Federated worker has ended (exit status'
            f' {self._process.returncode}); resume the run to start another'
        )

    return context_of(self._stub, check, default_num_clients)


def context_of(
    stub: tff.framework.RemoteExecutorGrpcStub,
    check: Callable[[], None],
    default_num_clients: int = 0,
) -> tff.framework.SyncContext:
  """An execution context whose computations the worker behind a stub runs.

  Args:
    stub: talks to the worker.
    check: called before the worker is first used and after each failure, which
      TFF would otherwise repeat for ever; raises where there is no use in that.
    default_num_clients: where a computation's arguments do not say.
  """

  def executor(cardinalities):
    check()
    cardinalities.setdefault(tff.CLIENTS, default_num_clients)
    remote = tff.framework.RemoteExecutor(stub, dispose_batch_size=1)
    remote.set_cardinalities(cardinalities)
    return remote

  return tff.framework.SyncExecutionContext(
      executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
      compiler_fn=tff.backends.native.desugar_and_transform_to_native,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
  )


def use_local_worker(max_concurrent_calls: int = 0) -> LocalWorker:
  """Starts a worker and makes it run every TFF computation from now on."""
  worker = LocalWorker(max_concurrent_calls)
  atexit.register(worker.stop)
  tff.framework.set_default_context(worker.context())
  gc.collect()  # TFF's own context complains where it is left to the exit.
  return worker
