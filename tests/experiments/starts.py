"""Starts of the training command, forked from a process that has imported TensorFlow."""

import functools
import gc
import io
import json
import os
import pathlib
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from typing import NoReturn

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = [sys.executable, '-m', 'experiments.stackoverflow.train']
"""The true command line, for what a fork does not show: imports and exit."""

_LONGEST_REQUEST = 2**16


@functools.cache
def _server() -> socket.socket:
  """Returns a channel to the server of all processes that test; the first one starts it."""
  name = os.environ.get('PYTEST_XDIST_TESTRUNUID', str(os.getpid()))
  address = f'\0fl_dpftrl-starts-{name}'  # It is gone with its socket.
  channel, listening = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
  with listening:
    try:
      listening.bind(address)
    except OSError:
      pass  # Another process has.
    else:
      listening.listen()
      subprocess.Popen(
        [sys.executable, '-m', 'tests.experiments.starts', str(listening.fileno())],
        cwd=ROOT,
        # Threads of linear algebra would not be in the forks.
        env={**os.environ, 'OPENBLAS_NUM_THREADS': '1'},
        pass_fds=[listening.fileno()],
      )
  channel.connect(address)
  return channel


class Start:
  """A command under way, with what the tests use of `subprocess.Popen`."""

  def __init__(
    self,
    *arguments: str,
    kill_at: tuple[str, int] | None = None,
    pause_at: tuple[str, int] | None = None,
    umask: int = 0o022,
    largest_file: int | None = None,
  ):
    """Starts the command."""
    request = dict(arguments=arguments, umask=umask, largest_file=largest_file)
    request |= dict(kill_at=kill_at, pause_at=pause_at)
    self._streams = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
    self._status, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
      descriptors = [file.fileno() for file in (*self._streams, theirs)]
      socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
    self.returncode = None
    self.pid = self._received(300)  # The first start waits for the server's imports.
    if self.pid is None:
      raise TimeoutError('the server has not started the command')

  def _received(self, timeout: float) -> int | None:
    """Returns the next number that the server says; None if it says none in time."""
    if not select.select([self._status], [], [], timeout)[0]:
      return None
    return int(self._status.recv(100))

  def poll(self) -> int | None:
    return self._wait(0)

  def _wait(self, timeout: float) -> int | None:
    if self.returncode is None:
      self.returncode = self._received(timeout)
    return self.returncode

  def wait(self, timeout: float = 300) -> int:
    """Returns the exit status; a command that takes longer is killed."""
    if self._wait(timeout) is None:
      self.kill()
      raise subprocess.TimeoutExpired('train', timeout, self.out.encode(), self.err.encode())
    return self.returncode

  def wait_until_paused(self, timeout: float = 300) -> None:
    """Waits until the command has stopped itself, so that nothing of it runs meanwhile."""
    deadline = time.monotonic() + timeout
    while pathlib.Path(f'/proc/{self.pid}/stat').read_text().rsplit(')', 1)[1].split()[0] != 'T':
      assert self.poll() is None and time.monotonic() < deadline, self.err
      time.sleep(0.01)

  def go_on(self) -> None:
    self.send_signal(signal.SIGCONT)

  def send_signal(self, number: int) -> None:
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self) -> None:
    self.send_signal(signal.SIGKILL)
    self._wait(60)

  @property
  def out(self) -> str:
    return self._read(0)

  @property
  def err(self) -> str:
    return self._read(1)

  def _read(self, stream: int) -> str:
    descriptor = self._streams[stream].fileno()
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()


def _serve(listening: socket.socket) -> list[str]:
  """Forks for each request, until all channels end; returns a start's arguments in its process."""
  channels = set()
  running = {}  # By a descriptor of the process, its number and who wants its status.
  while True:
    for ready in select.select([listening, *channels, *running], [], [])[0]:
      if ready is listening:
        channels.add(listening.accept()[0])
        continue
      if ready in running:
        pid, status = running.pop(ready)
        os.close(ready)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _tell(status, code)
        status.close()
        continue
      message, descriptors, _, _ = socket.recv_fds(ready, _LONGEST_REQUEST, 3)
      if not message:
        channels.remove(ready)
        if not channels:
          sys.exit(0)
        continue
      out, err, theirs = descriptors
      pid = os.fork()
      status = socket.socket(fileno=theirs)
      if not pid:
        for one in (listening, *channels):
          one.close()
        _become(json.loads(message), out, err)
        _tell(status, os.getpid())  # Only now: it may be sent signals from here on.
        status.close()
        return json.loads(message)['arguments']
      os.close(out)
      os.close(err)
      running[os.pidfd_open(pid)] = pid, status


def _tell(status: socket.socket, number: int) -> None:
  try:
    status.send(str(number).encode())
  except BrokenPipeError:
    pass  # The test has ended without waiting for it.


def _become(request: dict, out: int, err: int) -> None:
  """Makes this process that of a start."""
  os.dup2(out, 1)
  os.dup2(err, 2)
  os.umask(request['umask'])
  if request['largest_file'] is not None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (request['largest_file'],) * 2)
  # Also where the tests run in the background, which would be inherited as ignored.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os._exit(128 + number))
  for name, number in (('kill_at', signal.SIGKILL), ('pause_at', signal.SIGSTOP)):
    if request[name] is not None:
      _signal_at(*request[name], number)


def _signal_at(step: str, round_index: int, number: int) -> None:
  from experiments.stackoverflow import run

  original = run.run

  def on_step(*now):
    if now == (step, round_index):
      os.kill(os.getpid(), number)

  run.run = lambda *args, **kwargs: original(*args, **{**kwargs, 'on_step': on_step})


def _main() -> None:
  gc.disable()
  import pyarrow.dataset
  from matplotlib import pyplot

  from experiments.stackoverflow import train, training
  from fl_dpftrl.reports import page
  from tests.experiments import conversions

  del pyarrow, training  # Imported here, once, for all.
  pyplot.figure().savefig(io.BytesIO())  # Loads what plots take.
  conversions.convert()
  for name in page._environment().list_templates():
    page._environment().get_template(name)  # Compiles it.
  gc.enable()
  gc.freeze()  # No fork looks through the modules for garbage, or copies them for it.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    tempfile.tempdir = folder  # Forks do not remove the code that TensorFlow writes for them.
    _start(_serve(socket.socket(fileno=int(sys.argv[1]))), train)


def _start(arguments: list[str], train: types.ModuleType) -> NoReturn:
  """Runs the command in a fork, and ends it."""
  status = 1
  try:
    train.app.run(train.main, argv=['train', *arguments], flags_parser=train._parse)
  except SystemExit as ended:
    status = ended.code or 0
  except BaseException:
    traceback.print_exc()
  sys.stdout.flush()
  sys.stderr.flush()
  # The interpreter's own end would wait for threads that are not in a fork.
  os._exit(status)


if __name__ == '__main__':
  _main()
