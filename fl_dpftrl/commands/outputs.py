"""Folders of results that commands write, whole or not at all."""

import csv as csv_lib
import io
import os
import pathlib
from typing import Any, Iterable, Sequence

from fl_dpftrl import files


def folder(output: str) -> pathlib.Path:
  """Refuses before the work what could not be written after it.

  Raises:
    ValueError: where --output cannot be written, or nothing can draw figures.
  """
  path = pathlib.Path(output)
  there = path if path.exists() else path.parent
  if not there.is_dir():
    what = 'is not a folder' if path.exists() else 'has no parent folder'
    raise ValueError(f'--output={output} {what}')
  if not os.access(there, os.W_OK | os.X_OK):
    raise ValueError(f'--output={output} cannot be written')
  try:
    import matplotlib  # pylint: disable=g-import-not-at-top,unused-import
  except ImportError:
    raise ValueError(
        '--output: figures need matplotlib, which is not installed'
    ) from None
  return path


def csv(names: Sequence[str], rows: Iterable[dict[str, Any]]) -> bytes:
  """A line of names and one for each row, in full precision."""
  text = io.StringIO(newline='')
  writer = csv_lib.DictWriter(text, names, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue().encode()


def write(path: pathlib.Path, contents: dict[str, bytes]) -> list[str]:
  """Writes files by their names, each in one step; gives the names.

  Raises:
    ValueError: where one cannot be written.
  """
  try:
    path.mkdir(exist_ok=True)
    for name, content in contents.items():
      files.write_durably(path / name, content)
  except OSError as e:
    raise ValueError(f'--output={path}: {e.strerror or e}') from e
  return list(contents)


def left_out(
    skipped: Iterable[tuple[str, str, Any]], varying: str | None
) -> list[str]:
  """One line for each label and reason.

  Args:
    skipped: label, reason, and the value of what varies.
    varying: its name; None where nothing varies.
  """
  where: dict[tuple[str, str], list[str]] = {}
  for label, reason, value in skipped:
    where.setdefault((label, reason), []).append(str(value))
  lines = []
  for (label, reason), values in where.items():
    at = f' at {varying}={",".join(values)}' if varying else ''
    lines.append(f'{label} is left out{at}: {reason}')
  return lines
