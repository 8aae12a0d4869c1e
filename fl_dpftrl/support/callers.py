"""Warnings that point to the line that called the package."""

import contextlib
import inspect
import os
import pathlib
import warnings

# Files whose lines say nothing to a user: the package, and with statements on the way into it.
_BETWEEN = (f'{pathlib.Path(__file__).parents[1]}{os.sep}', contextlib.__file__)


def warn(message: str) -> None:
  """Warns at the line of the caller of the package, however many of its functions are between."""
  frame, level = inspect.currentframe(), 1
  while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
    frame, level = frame.f_back, level + 1
  warnings.warn(message, stacklevel=level)
