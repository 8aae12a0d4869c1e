"""Seeded mutations of files, and commands that run on them within limits."""

from collections.abc import Callable
import dataclasses
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import traceback

SECONDS = 60
MEMORY = 2**31

_LOADED = (
    'fl_dpftrl.commands.main', 'fl_dpftrl.commands.describe',
    'fl_dpftrl.commands.replay', 'fl_dpftrl.commands.simulate',
    'experiments.stackoverflow.train', 'tests.fuzz.mutations',
)
_USAGE = '\nused: '

_WORDS = (
    b'null', b'NaN', b'Infinity', b'-1', b'0', b'1e999', b'9' * 400, b'true',
    b'""', b'[]', b'{}', b'[' * 5000, b'{"a":' * 5000, b'\xff\xfe', b'\x00',
    b'\x1b[2J', b'\n', b',', b'"', b'1000000000000', b'4294967296', b'1e-320',
    b'\\ud800',
)


def mutated(content: bytes, seed: int) -> bytes:
  """The content with 1 to 4 changes, the same for the same seed."""
  draws = random.Random(seed)
  for _ in range(draws.randint(1, 4)):
    content = draws.choice(_CHANGES)(content, draws)
  return content


def _flip(content, draws):
  changed = bytearray(content)
  if changed:
    changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
  return bytes(changed)


def _cut(content, draws):
  return content[: draws.randrange(len(content) + 1)]


def _drop(content, draws):
  start = draws.randrange(len(content) + 1)
  return content[:start] + content[start + draws.randint(1, 40) :]


def _repeat(content, draws):
  start = draws.randrange(len(content) + 1)
  part = content[start : start + draws.randint(1, 200)]
  return content[:start] + part * draws.choice((2, 3, 1000)) + content[start:]


def _insert(content, draws):
  place = draws.randrange(len(content) + 1)
  return content[:place] + draws.choice(_WORDS) + content[place:]


def _replace(content, draws):
  start = draws.randrange(len(content) + 1)
  end = start + draws.randint(1, 12)
  return content[:start] + draws.choice(_WORDS) + content[end:]


def _number(content, draws):
  """Another number in the place of one."""
  places = [i for i, byte in enumerate(content) if byte in b'0123456789']
  if not places:
    return content
  start = end = draws.choice(places)
  while end < len(content) and content[end] in b'0123456789.':
    end += 1
  return content[:start] + draws.choice(_WORDS) + content[end:]


_CHANGES = (_flip, _cut, _drop, _repeat, _insert, _replace, _number, _number)


@dataclasses.dataclass(frozen=True)
class Done:
  """How a command ended."""

  status: int
  errors: str
  seconds: float
  memory: int

  @property
  def fault(self) -> str:
    """What is wrong with that; nothing where it is as it should be."""
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
    process = context.Process(
        target=_measured, args=(command, arguments, errors.name)
    )
    process.start()
    process.join()
    text = errors.read().decode('utf-8', 'backslashreplace')
  text, _, usage = text.rpartition(_USAGE)
  if process.exitcode not in (0, 2):
    return Done(process.exitcode, text + usage, 0.0, 0)
  seconds, memory = usage.split()
  return Done(process.exitcode, text, float(seconds), int(memory))


def _measured(
    command: Callable[[list[str]], None], arguments: list[str], path: str
) -> None:
  """Writes what the command writes to stderr to a file, and then its usage."""
  resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
  os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), 2)
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  status = 0
  try:
    command(arguments)
  except SystemExit as end:
    status = end.code or 0
  except BaseException:  # pylint: disable=broad-except
    traceback.print_exc()
    status = 1
  used = resource.getrusage(resource.RUSAGE_SELF)
  sys.stderr.write(
      f'{_USAGE}{used.ru_utime + used.ru_stime} {1024 * used.ru_maxrss}'
  )
  sys.stderr.flush()
  os._exit(status)
