"""How commands on damaged files end, in this process or in one of their own."""

import dataclasses
import multiprocessing
import os
import resource
import sys
import tempfile
import traceback

from fl_dpftrl.commands import main

SECONDS = 60
MEMORY = 2 << 30  # bytes, resident, of each process

# What takes long to load is loaded once.
_LOADED = (
  'fl_dpftrl.commands.main',
  'fl_dpftrl.commands.describe',
  'fl_dpftrl.commands.replay',
  'fl_dpftrl.commands.simulate',
  'tests.fuzz.commands',
)
_USAGE = '\nused: '


@dataclasses.dataclass(frozen=True)
class Ending:
  """How a command ended."""

  status: int
  errors: str
  seconds: float = 0.0
  memory: int = 0

  @property
  def fault(self) -> str:
    """What is wrong with an ending; empty for success, and for one line with status 2."""
    lines = [line for line in self.errors.split('\n')[:-1] if 'warning: ' not in line]
    if self.seconds > SECONDS:
      return f'took {self.seconds:.0f} s'
    if self.memory > MEMORY:
      return f'took {self.memory >> 20} MiB'
    if self.status in (0, 3, 4):
      return ''
    # The line begins with the command's name.
    short = len(lines) == 1 and len(lines[0]) <= 300 + len('fl-dpftrl replay: ')
    if self.status == 2 and short and lines[0].isprintable():
      return ''
    return f'status {self.status}: {self.errors[-2000:]!r}'


def apart(arguments: list[str]) -> Ending:
  """Runs `fl-dpftrl` with arguments in a process of its own, which is measured."""
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(list(_LOADED))
  with tempfile.NamedTemporaryFile() as errors:
    process = context.Process(target=_measured, args=(arguments, errors.name))
    process.start()
    process.join()
    text = errors.read().decode('utf-8', 'backslashreplace')
  text, _, usage = text.rpartition(_USAGE)
  if process.exitcode not in (0, 2):
    return Ending(process.exitcode, text + usage)
  seconds, memory = usage.split()
  return Ending(process.exitcode, text, float(seconds), int(memory))


def _measured(arguments: list[str], path: str) -> None:
  """Writes what the command writes to stderr to a file, and then its usage."""
  resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
  os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), 2)
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  status = 0
  try:
    main.main(arguments)
  except SystemExit as end:
    status = end.code or 0
  except BaseException:
    traceback.print_exc()
    status = 1
  used = resource.getrusage(resource.RUSAGE_SELF)
  sys.stderr.write(f'{_USAGE}{used.ru_utime + used.ru_stime} {1024 * used.ru_maxrss}')
  sys.stderr.flush()
  os._exit(status)
