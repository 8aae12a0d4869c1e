"""Relational engines, which bring the rows of a log together by device."""

import importlib
from typing import Callable

from fl_dpftrl.logs import tally

NAMES = ('embedded', 'spark')
"""Modules beside this one, each with `count`; imported when one is asked for."""


def by_name(name: str) -> Callable[..., tally.Tally]:
  """The engine's `count`.

  Raises:
    ValueError: where there is none of that name.
  """
  if name not in NAMES:
    raise ValueError(f'engine must be one of {", ".join(NAMES)}, got {name!r}')
  return importlib.import_module(f'fl_dpftrl.logs.{name}').count
