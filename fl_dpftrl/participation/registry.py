"""The registry of participations, by their kinds, their JSON form, and what a user registers."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from fl_dpftrl.mechanisms import family_registry, schemas
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.support.text import messages

_Class = TypeVar('_Class', bound=type)
KINDS: dict[str, type[Participation]] = {}
"""Participations by their kinds."""


def register(cls: _Class) -> _Class:
  """Adds a family, or a participation, which then works wherever a built-in one does.

  This is a class decorator. A family is a frozen dataclass with `family`, `strategy_matrix` and
  `noising_matrix`; its fields are the parameters in a strategy file. It need not inherit from
  `dpftrl.Strategy`: the defaults that it lacks are added to it. The registry belongs to the
  process: commands in another process know the family once they have imported its module.

  Args:
    cls: the family, or a participation as `MinSep` says. A registered one of the same module and
      name is replaced, as when a notebook defines it again.

  Raises:
    ValueError: if it is no frozen dataclass, lacks a name, C or N, has the name of another, or
      needs no parameters and its N does not undo its C; for a participation that is not derived
      from `MinSep`, or has a sensitivity of its own and allows all.
  """
  kind = getattr(cls, 'kind', None)
  if kind is None:
    return family_registry.register(cls)
  if not issubclass(cls, Participation):
    raise ValueError(f'participation {kind!r} must be derived from MinSep')
  if hasattr(cls, 'sensitivity') and getattr(cls, 'allows', None) is schemas.Schema.allows:
    raise ValueError(
      f'participation {kind!r} has a sensitivity of its own, and allows all of its min-sep schema:'
      ' give it allows, by which devices are turned away'
    )
  other = KINDS.setdefault(kind, cls)
  if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
    raise ValueError(f'participation {kind!r} is registered already, by {other.__module__}')
  KINDS[kind] = cls
  return cls


def check(participation: Any) -> None:
  """Raises ValueError unless a value is a registered participation."""
  if type(participation) not in KINDS.values():
    raise ValueError(
      f'participation must be one of {", ".join(c.__name__ for c in KINDS.values())}, got'
      f' {messages.quoted(participation)}'
    )


def resolved(participation: Any) -> Participation:
  """Returns a registered participation; plain numbers, as a strategy file has them, become one.

  Raises:
    ValueError: for anything else.
  """
  if type(participation) in (schemas.Schema, schemas.Fixed):
    kind = 'min_sep' if type(participation) is schemas.Schema else 'fixed_separation'
    return KINDS[kind](**vars(participation))
  check(participation)
  checked: Participation = participation
  return checked


def to_json(participation: Participation) -> dict[str, Any]:
  """Returns the kind and the attributes of a participation."""
  record: Any = participation  # A dataclass, as every rule is.
  values = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
  return {'kind': record.kind, **{n: _to_json(value) for n, value in values.items()}}


def _to_json(value: Any) -> Any:
  if isinstance(value, float) and value.is_integer():
    return int(value)
  if isinstance(value, tuple):
    return list(value)
  return to_json(value) if type(value) in KINDS.values() else value


def from_json(document: Mapping[str, Any]) -> Participation:
  """Returns the participation of `to_json`; ValueError, KeyError or TypeError for others."""
  values: dict[str, Any] = {
    n: from_json(v) if isinstance(v, dict) else v for n, v in document.items()
  }
  return KINDS[values.pop('kind')](**values)
