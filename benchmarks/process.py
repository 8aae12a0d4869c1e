"""Measured process on few cores: its time, its memory, and how it ended.

Until a process runs its program, the system counts the memory of its parent as
its own. The measuring process therefore imports little.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

_THREADS = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')

_MAXRSS_PER_MEBIBYTE = 2**20 if sys.platform == 'darwin' else 2**10


@dataclasses.dataclass(frozen=True)
class Finished:
  """Result of a process.

  Attributes:
    seconds: time from start to end, including imports and compilation.
    cpu_seconds: processor time; far below `seconds` on a busy machine.
    peak_mebibytes: peak resident memory.
    failure: reason in one line why it gave no result; None if it gave one.
    output: stdout of the process.
  """

  seconds: float
  cpu_seconds: float
  peak_mebibytes: float
  failure: str | None
  output: str


def pin(num_cores: int) -> bool:
  """Pins this process and its future children, if the system supports it."""
  if not hasattr(os, 'sched_setaffinity'):
    return False
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-num_cores:])
  return True


def run(command: list[str], *, timeout: float, threads: int = 1) -> Finished:
  """Runs a command for at most timeout seconds.

  Args:
    command: program and its arguments.
    timeout: time limit in seconds.
    threads: maximum number of threads of each library.
  """
  with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
    start = time.monotonic()
    child = subprocess.Popen(
      command,
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=errors,
      env={**os.environ, **_environment(threads)},
    )
    expired = threading.Event()

    def end():
      expired.set()
      child.kill()

    timer = threading.Timer(timeout, end)
    timer.start()
    try:
      _, status, usage = os.wait4(child.pid, 0)
    except BaseException:
      child.kill()
      child.wait()
      raise
    finally:
      timer.cancel()
    seconds = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    output.seek(0)
    errors.seek(0)
    return Finished(
      seconds=seconds,
      cpu_seconds=usage.ru_utime + usage.ru_stime,
      peak_mebibytes=usage.ru_maxrss / _MAXRSS_PER_MEBIBYTE,
      failure=failure(
        child.returncode,
        errors.read().decode(errors='replace'),
        expired_after=timeout if expired.is_set() else None,
      ),
      output=output.read().decode(errors='replace'),
    )


def _environment(threads: int) -> dict[str, str]:
  multi_thread = 'true' if threads > 1 else 'false'
  return {
    **{name: str(threads) for name in _THREADS},
    'XLA_FLAGS': (
      f'--xla_cpu_multi_thread_eigen={multi_thread} intra_op_parallelism_threads={threads}'
    ),
    'JAX_PLATFORMS': 'cpu',
  }


def failure(returncode: int, errors: str, *, expired_after: float | None = None) -> str | None:
  """Returns in one line why a process failed; None if it did not."""
  if expired_after is not None:
    return f'no result after {expired_after:.0f} s'
  if returncode == 0:
    return None
  if returncode < 0:
    return f'ended by {signal.Signals(-returncode).name}'
  # The message of a traceback is its last line that is not indented.
  lines = [line for line in errors.splitlines() if line and line[0] != ' ']
  messages = [line for line in lines if 'Error' in line.split(':')[0]]
  last = (messages or lines or [f'exit status {returncode}'])[-1].strip()
  return last if len(last) <= 100 else f'{last[:99]}…'
