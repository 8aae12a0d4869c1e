"""Commands that run in processes of their own, whose usage is measured."""

import dataclasses
import multiprocessing
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable

SECONDS = 60
MEMORY = 2**31

_LOADED = (
  'fl_dpftrl.commands.main',
  'fl_dpftrl.commands.describe',
  'fl_dpftrl.commands.replay',
  'fl_dpftrl.commands.simulate',
  'experiments.stackoverflow.train',
  'tests.fuzz.processes',
)
_USAGE = '\nused: '


@dataclasses.dataclass(frozen=True)
class Done:
  """How a command ended."""

  status: int
  errors: str
  seconds: float
  memory: int

  @property
  def fault(self) -> str:
    """Returns the fault of an ending; empty for a good one."""
    lines = self.errors.splitlines()
    if self.seconds > SECONDS:
      return f'took {self.seconds:.0f} s'
    if self.memory > MEMORY:
      return f'took {self.memory} bytes'
    if self.status not in (0, 2):
      return f'exit status {self.status}: {self.errors[-300:]}'
    if self.status == 2 and (len(lines) != 1 or len(lines[0]) > 300):
      return f'{len(lines)} lines of {len(self.errors)} characters'
    if self.status == 2 and not lines[0].isprintable():
      return f'unprintable: {lines[0]!r}'
    return ''


def run(command: Callable[[list[str]], None], arguments: list[str]) -> Done:
  """Runs a command in a process of its own, which is measured.

  Args:
    command: a function of a module; ends as a program does.
    arguments: of it.
  """
  context = multiprocessing.get_context('forkserver')
  # What takes long to load is loaded once.
  context.set_forkserver_preload(list(_LOADED))
  with tempfile.NamedTemporaryFile() as errors:
    process = context.Process(target=_measured, args=(command, arguments, errors.name))
    process.start()
    process.join()
    text = errors.read().decode('utf-8', 'backslashreplace')
  text, _, usage = text.rpartition(_USAGE)
  if process.exitcode not in (0, 2):
    return Done(process.exitcode, text + usage, 0.0, 0)
  seconds, memory = usage.split()
  return Done(process.exitcode, text, float(seconds), int(memory))


def _measured(command: Callable[[list[str]], None], arguments: list[str], path: str) -> None:
  """Writes what the command writes to stderr to a file, and then its usage."""
  resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
  os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), 2)
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  status = 0
  try:
    command(arguments)
  except SystemExit as end:
    status = end.code or 0
  except BaseException:
    traceback.print_exc()
    status = 1
  used = resource.getrusage(resource.RUSAGE_SELF)
  sys.stderr.write(f'{_USAGE}{used.ru_utime + used.ru_stime} {1024 * used.ru_maxrss}')
  sys.stderr.flush()
  os._exit(status)
