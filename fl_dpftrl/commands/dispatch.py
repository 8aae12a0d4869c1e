"""Parses a command line, runs its command, and prints the result."""

import argparse
import contextlib
import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fl_dpftrl import version
from fl_dpftrl.support.text import messages

COMMANDS = {
  'optimize': 'finds the best strategy of a mechanism and writes a strategy file',
  'describe': 'shows sensitivity, errors and losses of a strategy under any schema and workload',
  'compare': 'compares mechanisms and strategy files: table, CSV and figure',
  'account': 'computes ε and ρ for a strategy, schema and noise, or the noise for an ε or ρ',
  'calibrate': 'account, by another name',
  'replay': 'computes the guarantee of a finished run from its participation log',
  'sql': 'writes the SQL by which a warehouse counts participation, for replay --from_counts',
  'simulate': 'simulates the participation of a population and writes the log',
  'plan': 'simulates a population and recommends a strategy, noise and ε',
  'audit': 'tests the noise and clipping of a mechanism, or a run by its canaries',
  'verify': 'computes everything in an evidence folder again, and says what does not fit',
  'prove': 'proves the figures of a certificate, by a program that shares no code with this one',
  'forget': 'erases ids of devices or people from a population, whose statements stay as they are',
}
# Other names of commands.
_SAME = {'calibrate': 'account'}

PROGRAM = 'fl-dpftrl'


class _Parser(argparse.ArgumentParser):
  """Argument parser whose errors are one line; only --help shows the usage."""

  def error(self, message: str) -> NoReturn:
    _fail(self.prog, f'{message} (see {self.prog} --help)')

  def parse_args(self, args, namespace=None):
    """Parses flags and reports unknown flags before missing ones."""
    allowed = {'--', '--help', *re.findall(r'--\w+', self.format_usage())}
    unknown = [part for part in args if part.startswith('--') and part.split('=')[0] not in allowed]
    if unknown and '--help' not in args:
      near = difflib.get_close_matches(unknown[0].split('=')[0], sorted(allowed), 1)
      hint = f'; did you mean {near[0]}?' if near else ''
      self.error(f'unrecognized arguments: {" ".join(unknown)}{hint}')
    return super().parse_args(args, namespace)


def _fail(prog: str, message: str) -> NoReturn:
  print(messages.one_line(f'{prog}: {message}'), file=sys.stderr)
  raise SystemExit(2)


def find(name: str):
  """Returns the module of a command."""
  # This must run before NumPy is loaded. With matrices of this size, several
  # linear-algebra threads wait for each other: banded ones take 2.6 times as
  # long with two.
  os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
  return importlib.import_module(f'fl_dpftrl.commands.{_SAME.get(name, name)}')


def _imported(prog: str, argv: Sequence[str]) -> list[str]:
  """Imports the modules of --import, and returns the other arguments.

  Modules come first, wherever their flags stand: others may name what they register.
  """
  parser = _Parser(prog=prog, add_help=False, allow_abbrev=False)
  parser.add_argument('--import', action='append', dest='modules', default=[])
  args, others = parser.parse_known_args(argv)
  if args.modules and os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())  # As python -m does.
  for name in args.modules:
    try:
      importlib.import_module(name)
    except (Exception, SystemExit) as e:  # Its status would be taken for that of the command.
      _fail(prog, f'--import={name} failed: {type(e).__name__}: {e}')
  return others


def _overview() -> str:
  """Returns the list of commands."""
  width = max(map(len, COMMANDS)) + 2
  lines = [f'  {name:<{width}}{words}' for name, words in COMMANDS.items()]
  end = f'Run {PROGRAM} COMMAND --help for the flags of a command, and an example.'
  return '\n'.join(['commands:', *lines, '', end])


Guard = Callable[[str], contextlib.AbstractContextManager[Any]]


def run(argv: Sequence[str], guard: Guard = contextlib.nullcontext) -> None:
  """Runs one command; on bad input prints one line and exits with status 2.

  A command may also have a `finish`, which writes files once the result is printed, and a
  `verdict`: given its flags and result, an exit status and a line that says why the result is not
  what was wanted, or None.

  Args:
    guard: makes the context of the command's work from the line that an interrupt prints.
  """
  argv = list(argv)
  if argv and argv[0] in ('--help', '-h'):
    _print(f'usage: {PROGRAM} COMMAND --flag=value ...\n\n{_overview()}')
    return
  if argv and argv[0] == '--version':
    _print(f'{PROGRAM} {version.__version__}')
    return
  if not argv or argv[0] not in COMMANDS:
    got = f'got {messages.quoted(argv[0])}' if argv else 'got none'
    _fail(PROGRAM, f'COMMAND must be one of {", ".join(COMMANDS)}, {got}')
  name = argv[0]
  prog = f'{PROGRAM} {name}'
  command = find(name)
  parser = _Parser(
    prog=prog,
    description=COMMANDS[_SAME.get(name, name)],
    epilog=f'example: {command.EXAMPLE}',
    allow_abbrev=False,
  )
  command.add_arguments(parser)
  parser.add_argument(
    '--import',
    metavar='MODULE',
    help='module to import first, also of the current folder, that registers mechanisms or'
    ' participations of your own; may be repeated',
  )
  parser.add_argument(
    '--json', action='store_true', help='print one JSON object and nothing else to stdout'
  )
  args = parser.parse_args(_imported(prog, argv[1:]))
  interrupted = f'{prog}: interrupted'
  try:
    with guard(interrupted):
      result = command.run(args)
      if args.json:
        text = _json(result if isinstance(result, dict) else result.to_json())
      else:
        text = command.show(result)
      _print(text)
      getattr(command, 'finish', lambda args, result: None)(args, result)
  except OSError as e:
    where = f'{e.filename}: ' if e.filename else ''
    _fail(prog, f'{where}{e.strerror or e}')
  except ValueError as e:
    _fail(prog, str(e))
  except MemoryError as e:
    _fail(prog, f'not enough memory: {e}')
  except RuntimeError as e:
    if 'new thread' not in str(e):
      raise
    _fail(prog, f'{e}: raise ulimit -u')
  except KeyboardInterrupt:
    print(interrupted, file=sys.stderr)
    raise SystemExit(130) from None
  verdict = getattr(command, 'verdict', lambda args, result: None)(args, result)
  if verdict is not None:
    status, line = verdict
    print(messages.one_line(f'{prog}: {line}'), file=sys.stderr)
    raise SystemExit(status)


def _json(result: Any) -> str:
  """Returns one JSON object without characters that a terminal would act on."""
  text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
  try:
    text.encode(getattr(sys.stdout, 'encoding', None) or 'utf-8')
  except UnicodeEncodeError:
    text = json.dumps(result, indent=2, allow_nan=False)
  return ''.join(c if c.isprintable() or c == '\n' else json.dumps(c)[1:-1] for c in text)


def _print(text: str) -> None:
  try:
    print(messages.lines(text), flush=True)
  except OSError as e:
    # Python must find nothing to flush at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(e, BrokenPipeError):  # The reader closed the pipe.
      raise OSError(e.errno, e.strerror, 'standard output') from e
