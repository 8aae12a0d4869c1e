"""Federated learning with correlated noise, and the ε that its log proves.

The names here load on first use; TensorFlow only with a name that needs it. `__init__.pyi` lists
them, for editors and for this module. The package lazy_loader would do so too, but every install
would then depend on it, and every audit read it, for the lines below.
"""

import importlib.util
import pathlib
import re
from typing import Any

from fl_dpftrl.version import __version__

_LIST = pathlib.Path(__file__).with_name('__init__.pyi').read_text('utf-8')
# The module in which a public name stands, or the room of a public module.
_HOMES = {
  name: home for home, name in re.findall(r'^from (fl_dpftrl\S*) import (\w+) as', _LIST, re.M)
}

_HAS_TFF = importlib.util.find_spec('tensorflow_federated') is not None
# Without it, its names are left out where all names are looked at, as by `help`.
__all__ = [
  '__version__',
  *(name for name, home in _HOMES.items() if _HAS_TFF or not home.startswith('fl_dpftrl.tff')),
]


def __getattr__(name: str) -> Any:
  home = _HOMES.get(name)
  if home is None:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  try:
    module = importlib.import_module(home)
  except ModuleNotFoundError as error:
    if not str(error.name).startswith('tensorflow'):
      raise
    hint = 'needs TensorFlow Federated: run `make env` in a clone of fl_dpftrl'
    raise ImportError(f'fl_dpftrl.{name} {hint} ({error})') from error
  if not hasattr(module, name):  # A public module.
    importlib.import_module(f'{home}.{name}')
  return getattr(module, name)


def __dir__() -> list[str]:
  return sorted(__all__)
