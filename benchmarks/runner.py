"""One pattern for all benchmarks: sides in turns, a process for each run, a table and a JSON.

A benchmark is a module with `main(options)`, whose docstring is the text of its page. A side is a
command, often a call of one function, in an environment of its own. Until a process runs its
program, the system counts the memory of its parent as its own: benchmarks import little.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import signal
import statistics
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

HERE = pathlib.Path(__file__).parent
CACHE = HERE / '.cache'
PROGRAM = str(pathlib.Path(sys.executable).with_name('fl-dpftrl'))
_MAXRSS_PER_MEBIBYTE = 2**20 if sys.platform == 'darwin' else 2**10
_VERSIONS = """
import importlib.metadata as m, json, platform, sys
found = {'python': platform.python_version()}
print(json.dumps(found | {name: m.version(name) for name in sys.argv[1:]}))
"""


@dataclasses.dataclass(frozen=True)
class Options:
  """Parts of the names of cases; runs of each side; rounds; the peer's Python; a folder."""

  words: tuple[str, ...] = ()
  repeats: int = 3
  rounds: int | None = None
  peer: str = ''
  output: pathlib.Path = HERE / 'results'

  def select(self, cases: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the cases whose name contains a word; without words, all that are not large."""
    if not self.words:
      return {name: case for name, case in cases.items() if not getattr(case, 'large', False)}
    return {name: case for name, case in cases.items() if any(w in name for w in self.words)}


@dataclasses.dataclass(frozen=True)
class Side:
  """A command, threads of its libraries, seconds at most, and the result of what it prints.

  `read` raises ValueError or KeyError if there is none. `shows_progress` leaves stderr to the
  terminal.
  """

  command: Sequence[str]
  threads: int = 1
  timeout: float = 600.0
  read: Callable[[str], Any] = lambda output: json.loads(output.splitlines()[-1])
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  shows_progress: bool = False


@dataclasses.dataclass
class Runs:
  """Runs of a side: seconds of each from start to end, those of processors, and its result.

  Also the peak resident memory of all, and in one line each why a run gave no result. On a busy
  machine processor seconds are far below those of the clock.
  """

  seconds: list[float] = dataclasses.field(default_factory=list)
  cpu_seconds: list[float] = dataclasses.field(default_factory=list)
  peak_mebibytes: float | None = None
  results: list[Any] = dataclasses.field(default_factory=list)
  failures: list[str] = dataclasses.field(default_factory=list)

  @property
  def result(self) -> Any:
    """The latest result; None where there is none."""
    return self.results[-1] if self.results else None

  @property
  def median(self) -> float | None:
    """Median of the seconds."""
    return statistics.median(self.seconds) if self.seconds else None

  def __format__(self, spec: str) -> str:
    """Formats the peak memory for `MiB`, else median (least–most) seconds, or a failure."""
    if spec == 'MiB':
      return '' if self.peak_mebibytes is None else f'{self.peak_mebibytes:.0f}'
    return f'failed: {self.failures[-1]}' if self.failures else spread(self.seconds)


def call(module: str, function: str, *arguments: Any, python: str = sys.executable) -> list[str]:
  """Returns the command that calls a function of `benchmarks.sides` in a process of its own."""
  words = [f'benchmarks.sides.{module}', function, json.dumps(arguments)]
  return [python, '-m', 'benchmarks.call', *words]


def run(side: Side, runs: Runs) -> None:
  """Runs a side once more."""
  variables = {name: str(side.threads) for name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS')}
  eigen = str(side.threads > 1).lower()
  flags = f'--xla_cpu_multi_thread_eigen={eigen} intra_op_parallelism_threads={side.threads}'
  variables |= {'MKL_NUM_THREADS': str(side.threads), 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
  with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
    start = time.monotonic()
    child = subprocess.Popen(
      side.command,
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=None if side.shows_progress else errors,
      env={**os.environ, **variables, **side.environment},
    )
    expired = threading.Event()
    timer = threading.Timer(side.timeout, lambda: (expired.set(), child.kill()))
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
    output.seek(0), errors.seek(0)
    failure = why_failed(child.returncode, errors.read().decode(errors='replace'))
    failure = f'no result after {side.timeout:.0f} s' if expired.is_set() else failure
    try:
      result = None if failure else side.read(output.read().decode(errors='replace'))
    except (ValueError, KeyError, IndexError) as error:
      failure = f'{type(error).__name__}: {error}'
  if failure:
    runs.failures.append(failure)
    return
  runs.seconds.append(seconds)
  runs.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
  runs.peak_mebibytes = max(runs.peak_mebibytes or 0.0, usage.ru_maxrss / _MAXRSS_PER_MEBIBYTE)
  runs.results.append(result)


def timed(rounds: int, prepare: Callable[[int], Callable[[], Any]]) -> tuple[list, list]:
  """Returns seconds and processor seconds of each round here, without its preparation."""
  seconds, computed = [], []
  for t in range(rounds):
    step = prepare(t)
    start, cpu_start = time.perf_counter(), time.process_time()
    step()
    computed.append(time.process_time() - cpu_start)
    seconds.append(time.perf_counter() - start)
  return seconds, computed


def why_failed(returncode: int, errors: str) -> str:
  """Returns in one line why a process failed; nothing if it did not."""
  if returncode <= 0:
    return f'ended by {signal.Signals(-returncode).name}' if returncode else ''
  # The message of a traceback is its last line that is not indented.
  lines = [line for line in errors.splitlines() if line and line[0] != ' ']
  messages = [line for line in lines if 'Error' in line.split(':')[0]]
  last = (messages or lines or [f'exit status {returncode}'])[-1].strip()
  return last if len(last) <= 100 else f'{last[:99]}…'


def turns(label: str, sides: Mapping[str, Side], repeats: int) -> dict[str, Runs]:
  """Runs all sides in turn; one that failed is not run again."""
  runs = {name: Runs() for name in sides}
  for repeat in range(repeats):
    for name, side in sides.items():
      if not runs[name].failures:
        run(side, runs[name])
        outcome = (runs[name].failures or [f'{runs[name].seconds[-1]:.2f} s'])[-1]
        print(f'{label} {repeat + 1} {name}: {outcome}', file=sys.stderr)
  return runs


def once(side: Side) -> Any:
  """Returns the result of one run of a side; ValueError with the reason if there is none."""
  runs = Runs()
  run(side, runs)
  if runs.failures:
    raise ValueError(f'{" ".join(side.command[1:])}: {runs.failures[-1]}')
  return runs.result


def any_failed(rows: Iterable[Mapping[str, Any]]) -> bool:
  """True if a side of a row failed."""
  return any(isinstance(v, Runs) and bool(v.failures) for row in rows for v in row.values())


def digits(value: float) -> str:
  """Formats a number with at most three digits and two decimals."""
  return f'{value:.{2 if value < 10 else 1 if value < 100 else 0}f}'


def spread(values: Sequence[float], form: Callable[[float], str] = digits) -> str:
  """Formats median (least–most); nothing without values."""
  if len(values) < 2:
    return ''.join(map(form, values))
  return f'{form(statistics.median(values))} ({form(min(values))}–{form(max(values))})'


def ratio(above: float | None, below: float | None) -> float | None:
  """Returns the quotient of two numbers; None where one is missing."""
  return None if above is None or not below else above / below


class _Cells(string.Formatter):
  """Formats None as nothing, and lists of seconds in milliseconds."""

  def format_field(self, value: Any, spec: str) -> str:
    if isinstance(value, list):
      return spread(value, lambda seconds: f'{1e3 * seconds:,.0f}')
    return '' if value is None else super().format_field(value, spec)


def table(columns: str, rows: Iterable[Mapping[str, Any]]) -> str:
  """Returns a Markdown table of columns such as `run={name}|s={seconds:.2f}`: heading and cell."""
  headings, forms = zip(*(column.split('=', 1) for column in columns.split('|')))
  lines = [headings, *([_Cells().vformat(f, (), row) for f in forms] for row in rows)]
  widths = [max(map(len, column)) for column in zip(*lines)]
  lines.insert(1, ['-' * width for width in widths])
  padded = ([cell.ljust(width) for cell, width in zip(line, widths)] for line in lines)
  return '\n'.join(f'| {" | ".join(line)} |' for line in padded)


def versions(*names: str, python: str = sys.executable) -> dict[str, str]:
  """Returns the versions of an interpreter that runs, and of its packages."""
  return once(Side([python, '-c', _VERSIONS, *names]))


def cores() -> int:
  """Returns how many cores a side may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def stem(options: Options, name: str) -> str:
  """Returns the name of the files of a benchmark's page, without an ending."""
  return '-'.join([name, *(word.removeprefix(name).strip('-') for word in options.words)])


def write(
  options: Options, doc: str, name: str, blocks: Sequence[str], rows: Any, *about: Mapping[str, str]
) -> None:
  """Writes NAME.md, of the title and text of a docstring and blocks, and NAME.json of rows.

  The page, which is printed too, has the versions of each environment, the peer's last.
  """
  facts = {'date': datetime.date.today().isoformat(), 'processor': platform.machine()}
  facts |= {'cores': os.cpu_count(), 'cores_used': cores(), 'versions': about, 'rows': rows}
  said = '; '.join(', '.join(f'{k} {v}' for k, v in each.items()) for each in about)
  machine = f'{facts["date"]}, {facts["processor"]}, {cores()} of {os.cpu_count()} cores. {said}.'
  title, _, text = doc.strip().partition('\n')
  again = f'Again: `python -m benchmarks {" ".join(options.words) or name}`'
  page = '\n\n'.join([f'# {title.rstrip(".")}', text.strip(), machine, *blocks, again]) + '\n'
  file = stem(options, name)
  options.output.mkdir(parents=True, exist_ok=True)
  (options.output / f'{file}.md').write_text(page, 'utf-8')
  as_json = json.dumps(facts, indent=2, default=dataclasses.asdict)
  (options.output / f'{file}.json').write_text(as_json + '\n', 'utf-8')
  print(page)
