"""Output of commands: files and folders written whole or not at all, and progress on stderr."""

import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fl_dpftrl import tables
from fl_dpftrl.files import durable, paths
from fl_dpftrl.text import messages

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


def write_folder(
  path: str, name: str, rows: Sequence[Mapping[str, Any]], images: Mapping[str, bytes]
) -> list[str]:
  """Writes rows in full precision as a CSV file, and images by name; returns the names."""
  folder = pathlib.Path(path)
  folder.mkdir(exist_ok=True)
  contents = {name: tables.as_csv(list(rows[0]), rows), **images}
  for file, content in contents.items():
    durable.write_durably(folder / file, content)
  return list(contents)


def shown_folder(result: Mapping[str, Any]) -> list[str]:
  """Returns the lines that name the files that `write_folder` wrote, if any."""
  if not result['files']:
    return []
  return ['', f'in {messages.one_line(result["output"])}: {", ".join(result["files"])}']


def say(text: str) -> None:
  """Prints one line to stderr."""
  print(messages.one_line(text), file=sys.stderr, flush=True)


def say_skipped(
  command: str,
  skipped: Iterable[tuple[str, str, Any]],
  varying: str | None,
  *,
  otherwise: str | None = None,
) -> None:
  """Prints one line on stderr per label and reason that was left out."""
  where: dict[tuple[str, str], list[str]] = {}
  for label, reason, value in skipped:
    where.setdefault((label, reason), []).append(str(value))
  lines = []
  for (label, reason), values in where.items():
    at = f' at {varying}={",".join(values)}' if varying else ''
    lines.append(f'{label}{at}: {reason}')
  if otherwise is not None:
    raise ValueError(f'{otherwise}: none of them supports this setting: {"; ".join(lines)}')
  for line in lines:
    say(f'{command}: {line}')


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
