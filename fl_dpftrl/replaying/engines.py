"""Relational engines, which group the rows of a log by device."""

import importlib
from collections.abc import Callable

from fl_dpftrl.replaying import tally

NAMES = ('embedded', 'spark')
"""Modules beside this one, each with `count`; imported when one is asked for."""


def by_name(name: str) -> Callable[..., tally.Tally]:
  """Returns the engine's `count` function.

  Raises:
    ValueError: if there is no engine of that name.
  """
  if name not in NAMES:
    raise ValueError(f'engine must be one of {", ".join(NAMES)}, got {name!r}')
  return importlib.import_module(f'fl_dpftrl.replaying.{name}').count
