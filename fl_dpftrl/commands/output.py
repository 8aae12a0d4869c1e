"""Output of commands: paths that are checked before the work, and progress on stderr."""

import os
import pathlib
import sys
import tempfile
import time

from fl_dpftrl.support.files import paths
from fl_dpftrl.support.text import messages

SECONDS = 5.0


def check_file(flag: str, path: str | None, suffix: str = '') -> None:
  """Checks the path of a file before the work starts."""
  if path is None:
    return
  paths.local(path)
  if suffix and pathlib.Path(path).suffix != suffix:
    raise ValueError(f'--{flag}={path} must end in {suffix}')
  if pathlib.Path(path).is_dir():
    raise ValueError(f'--{flag}={path} is a folder; name a file')
  if not pathlib.Path(path).parent.is_dir():
    raise ValueError(f'--{flag}={path}: its folder does not exist')
  check_writable(flag, path)


def check_writable(flag: str, path: str, within: pathlib.Path | None = None) -> None:
  """Raises ValueError if no file can be written into a folder: by default that of the path."""
  try:
    with tempfile.TemporaryFile(dir=within or pathlib.Path(path).resolve().parent) as file:
      file.write(b'1')
      file.flush()
  except OSError as e:
    raise ValueError(f'--{flag}={path} cannot be written: {e.strerror or e}') from e


def check_folder(path: str | None) -> None:
  """Checks the folder --output before the work starts."""
  if path is None:
    return
  paths.local(path)
  there = pathlib.Path(path) if os.path.exists(path) else pathlib.Path(path).parent
  if not there.is_dir():
    what = 'is not a folder' if os.path.exists(path) else 'has no parent folder'
    raise ValueError(f'--output={path} {what}')
  check_writable('output', path, there)


def say(text: str) -> None:
  """Prints one line to stderr."""
  print(messages.one_line(text), file=sys.stderr, flush=True)


class Progress:
  """Progress reporter that prints at most one line per `SECONDS`."""

  def __init__(self, command: str):
    self._command = command
    self._start = self._last = time.monotonic()
    self._rows: list[str] = []

  def row(self, text: str) -> None:
    """Prints a row of the result as it comes, once the command has run for `SECONDS`."""
    self._rows.append(text)
    self._print_rows()

  def _print_rows(self) -> None:
    if time.monotonic() - self._start >= SECONDS:
      for text in self._rows:
        say(f'{self._command}: {text}')
      self._rows.clear()

  def say(self, text: str) -> None:
    """Prints the text, unless another line was printed just before."""
    now = time.monotonic()
    self._print_rows()
    if now - self._last >= SECONDS:
      self._last = now
      say(f'{self._command}: {now - self._start:.0f} s, {text}')
