"""Starts of the training command, forked from a process that has imported TensorFlow."""

import contextlib
import multiprocessing
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = [sys.executable, '-m', 'experiments.stackoverflow.train']
"""The true command line, for what a fork does not show: imports and exit."""

# Threads of linear algebra would not be in the forks.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
_FORKS = multiprocessing.get_context('forkserver')
_FORKS.set_forkserver_preload(['tests.experiments.preloaded'])


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
    self._folder = tempfile.TemporaryDirectory()
    is_ready, theirs = _FORKS.Pipe(duplex=False)
    self._process = _FORKS.Process(
      target=_run,
      args=(arguments, self._folder.name, theirs),
      kwargs=dict(kill_at=kill_at, pause_at=pause_at, umask=umask, largest_file=largest_file),
    )
    self._process.start()
    self.pid = self._process.pid
    is_ready.recv()  # It may be sent signals from here on.

  @property
  def returncode(self) -> int | None:
    return self._process.exitcode

  def wait(self, timeout: float = 300) -> int:
    """Returns the exit status; a command that takes longer is killed."""
    self._process.join(timeout)
    if self.returncode is None:
      self.kill()
      raise subprocess.TimeoutExpired('train', timeout, self.out.encode(), self.err.encode())
    return self.returncode

  def wait_until_paused(self, timeout: float = 300) -> None:
    """Waits until the command has stopped itself, so that nothing of it runs meanwhile."""
    deadline, stat = time.monotonic() + timeout, pathlib.Path(f'/proc/{self.pid}/stat')
    while True:
      assert self.returncode is None and time.monotonic() < deadline, self.err
      with contextlib.suppress(FileNotFoundError):  # It has just ended.
        if stat.read_text().rsplit(')', 1)[1].split()[0] == 'T':
          return
      time.sleep(0.01)

  def go_on(self) -> None:
    self.send_signal(signal.SIGCONT)

  def send_signal(self, number: int) -> None:
    if self.returncode is None:
      os.kill(self.pid, number)

  def kill(self) -> None:
    self._process.kill()
    self._process.join()

  @property
  def out(self) -> str:
    return pathlib.Path(self._folder.name, 'out').read_text()

  @property
  def err(self) -> str:
    return pathlib.Path(self._folder.name, 'err').read_text()


def _run(arguments, folder, is_ready, *, kill_at, pause_at, umask, largest_file) -> None:
  """Runs the command in a fork, and ends it."""
  from experiments.stackoverflow import train
  from tests.tff.training import steps

  for name, descriptor in (('out', 1), ('err', 2)):
    os.dup2(os.open(pathlib.Path(folder, name), os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor)
  tempfile.tempdir = folder  # The fork does not remove the code that TensorFlow writes.
  os.umask(umask)
  if largest_file is not None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
  # Also where the tests run in the background, which would be inherited as ignored.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os._exit(128 + number))

  def on_step(*now):
    for at, number in ((kill_at, signal.SIGKILL), (pause_at, signal.SIGSTOP)):
      if now == at:
        os.kill(os.getpid(), number)

  steps.watch(on_step)
  is_ready.send(None)
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
