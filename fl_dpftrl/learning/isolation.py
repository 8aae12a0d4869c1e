"""TFF's worker program in a network of its own, behind a socket of this process.

Nothing here imports TensorFlow.
"""

import functools
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import IO

from fl_dpftrl import worker_program
from fl_dpftrl.learning import worker_launcher

_LAUNCHER = pathlib.Path(__file__).with_name('worker_launcher.py')
# Any will do in a network where the worker is alone.
PORT_ALONE = 8000

Launch = Callable[..., 'subprocess.Popen[bytes]']


class NotIsolatedError(Exception):
  """The system gives the worker no network of its own, for this reason."""


def launcher(max_concurrent_calls: int, deterministic: bool) -> Launch:
  """A function that starts a worker; its arguments are a port and what `_launch` takes."""
  return functools.partial(_launch, max_concurrent_calls, deterministic)


def _launch(
  max_concurrent_calls: int, deterministic: bool, port: int, listener: int = -1, report: int = -1
) -> 'subprocess.Popen[bytes]':
  """Starts a worker that dies with this process; see `worker_launcher`."""
  program = worker_program.command(port, max_concurrent_calls)
  numbers = map(str, (os.getpid(), port, listener, report))
  return subprocess.Popen(
    [sys.executable, '-IS', str(_LAUNCHER), *numbers, *program],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    pass_fds=[number for number in (listener, report) if number >= 0],
    start_new_session=True,  # Ctrl-C is for the run, which ends the worker.
    env=worker_program.environment(deterministic),
  )


def launch_behind(
  launch: Launch, listener: socket.socket, port: int = PORT_ALONE
) -> 'tuple[subprocess.Popen[bytes], IO[bytes]]':
  """Starts a worker in a network of its own.

  Args:
    launch: as `launcher` returns.
    listener: a socket that listens, and whose connections reach the worker. It is closed here.
    port: port of the worker in its own network.

  Returns:
    The worker, and a pipe that ends with the relay between it and the socket.

  Raises:
    NotIsolatedError: if the system does not allow that.
    RuntimeError: if the worker's program is missing.
  """
  with listener:
    if sys.platform != 'linux':
      raise NotIsolatedError('only Linux has network namespaces')
    report, report_end = os.pipe()
    relay = open(report, 'rb', buffering=0)  # noqa: SIM115
    try:
      process = launch(port, listener.fileno(), report_end)
    except BaseException:
      relay.close()
      raise
    finally:
      os.close(report_end)
  said = relay.readline()
  if said != worker_launcher.ISOLATED:
    process.wait()
    relay.close()
    raise NotIsolatedError(said.decode() or 'its launcher did not start')
  return process, relay
