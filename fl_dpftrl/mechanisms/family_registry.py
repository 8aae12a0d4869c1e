"""The registry of all families, to which users can add their own."""

import collections
import dataclasses
import importlib
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from fl_dpftrl.mechanisms import base, undoing

_CHECKED_ROUNDS = 64  # of a family without parameters
_Family = TypeVar('_Family', bound=type)

# Built-in families by name; each is imported when it is first used.
_BUILT_IN = {
  'identity': 'identity.Identity',
  'tree_online': 'tree_online.TreeOnline',
  'tree_full': 'tree_full.TreeFull',
  'banded': 'banded.Banded',
  'blt': 'blt.BLT',
  'dense': 'dense.Dense',
  'low_rank': 'low_rank.LowRank',
  'stamped': 'stamped.Stamped',
  'banded_toeplitz': 'banded_toeplitz.BandedToeplitz',
  'banded_inverse': 'banded_inverse.BandedInverse',
  'lambda_cgd': 'lambda_cgd.LambdaCGD',
}


class _Families(collections.UserDict):
  """Families by name."""

  def __getitem__(self, name: str) -> type[base.Strategy]:
    family = super().__getitem__(name)
    if not isinstance(family, str):
      return family
    module, _, cls = family.partition('.')
    return getattr(importlib.import_module(f'fl_dpftrl.mechanisms.families.{module}'), cls)


# All families by name, also those registered from outside the package.
_families = _Families(_BUILT_IN)
FAMILIES: Mapping[str, type[base.Strategy]] = _families


def register(cls: _Family) -> _Family:
  """Adds a family; this is a class decorator, of which `dpftrl.register` has the conditions."""
  name = getattr(cls, 'family', None)
  if not isinstance(name, str) or not re.fullmatch('[A-Za-z][A-Za-z0-9_]*', name):
    raise ValueError(
      f'family of {cls.__name__} must be a name of letters, digits and _, got {name!r}'
    )
  registered, family = FAMILIES.get(name), cast(Any, cls)
  if registered is not None and _home(registered) != _home(family):
    raise ValueError(f'family {name!r} is registered already, by {_home(registered)}')
  if not dataclasses.is_dataclass(cls) or not family.__dataclass_params__.frozen:
    raise ValueError(
      f'family {name!r}: {cls.__name__} must be a frozen dataclass, whose fields are its parameters'
    )
  for required in sorted(base.Strategy.__abstractmethods__):
    method = getattr(cls, required, None)
    if method is None or getattr(method, '__isabstractmethod__', False):
      raise ValueError(f'family {name!r}: {cls.__name__} needs {required}')
  for attribute, default in vars(base.Strategy).items():
    if not attribute.startswith('_') and not hasattr(cls, attribute):
      setattr(cls, attribute, default)
  try:
    strategy = family()
  except (TypeError, ValueError):  # It has parameters that must be given.
    pass
  else:
    undoing.check_mechanism(strategy, _CHECKED_ROUNDS)
  base.Strategy.register(cls)
  _families[name] = family
  return cls


def _home(cls: type[base.Strategy]) -> str:
  return f'{cls.__module__}.{cls.__qualname__}'
