"""The registry of participations, each of which says who may take part in which rounds."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.support.text import messages


class Participation(Protocol):
  """A participation: a frozen dataclass that says who may take part in which rounds.

  Attributes:
    kind: its name in a claim.
    is_drawn: whether batches or bins are drawn, so that a round may have any number of devices.
    is_secret: whether what was drawn must stay secret, and so the log.
    num_rounds: n, the rounds that there may be.
    schema: the strictest min-sep schema that every device keeps to.
    gated: the schema by which single devices are turned away; None where none is.
  """

  kind: ClassVar[str]
  is_drawn: ClassVar[bool]
  is_secret: ClassVar[bool]

  @property
  def num_rounds(self) -> int: ...

  @property
  def schema(self) -> schemas.Schema: ...

  @property
  def gated(self) -> schemas.Schema | None: ...

  def within(self, num_rounds: int) -> 'Participation':
    """Returns the participation in a run that has had so many rounds."""


_Kind = TypeVar('_Kind', bound=Any)
KINDS: dict[str, type[Any]] = {}
"""Participations by their kinds."""


def register(cls: _Kind) -> _Kind:
  """Adds a participation, of a name that no other class has; this is a class decorator."""
  if not (issubclass(cls, schemas.Schema) or hasattr(cls, 'check')):
    raise ValueError(f'participation {cls.kind!r} must be derived from MinSep')
  if hasattr(cls, 'sensitivity') and getattr(cls, 'allows', None) is schemas.Schema.allows:
    raise ValueError(
      f'participation {cls.kind!r} has a sensitivity of its own, and allows all of its min-sep'
      ' schema: give it allows, by which devices are turned away'
    )
  other = KINDS.setdefault(cls.kind, cls)
  if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
    raise ValueError(f'participation {cls.kind!r} is registered already, by {other.__module__}')
  KINDS[cls.kind] = cls
  return cls


def check(participation: Any) -> None:
  """Raises ValueError unless a value is a registered participation."""
  if type(participation) not in KINDS.values():
    raise ValueError(
      f'participation must be one of {", ".join(c.__name__ for c in KINDS.values())}, got'
      f' {messages.quoted(participation)}'
    )


def min_sep(*numbers: Any, **others: Any) -> Any:
  """Returns a `MinSep` of these numbers, for modules that it rests on."""
  return KINDS['min_sep'](*numbers, **others)


def fixed(*numbers: Any, **others: Any) -> Any:
  """Returns a `FixedSeparation` of these numbers, for modules that it rests on."""
  return KINDS['fixed_separation'](*numbers, **others)


def resolved(participation: Any) -> Any:
  """Returns a registered participation; plain numbers, as a strategy file has them, become one.

  Raises:
    ValueError: for anything else.
  """
  if type(participation) in (schemas.Schema, schemas.Fixed):
    kind = 'min_sep' if type(participation) is schemas.Schema else 'fixed_separation'
    names = [field.name for field in dataclasses.fields(participation)]
    return KINDS[kind](**{name: getattr(participation, name) for name in names})
  check(participation)
  return participation


def to_json(participation: Any) -> dict[str, Any]:
  """Returns the kind and the attributes of a participation."""
  values = {f.name: getattr(participation, f.name) for f in dataclasses.fields(participation)}
  return {'kind': participation.kind, **{n: _to_json(value) for n, value in values.items()}}


def _to_json(value: Any) -> Any:
  if isinstance(value, float) and value.is_integer():
    return int(value)
  if isinstance(value, tuple):
    return list(value)
  return to_json(value) if type(value) in KINDS.values() else value


def from_json(document: Mapping[str, Any]) -> Any:
  """Returns the participation of `to_json`; ValueError, KeyError or TypeError for others."""
  values = {n: from_json(v) if isinstance(v, dict) else v for n, v in document.items()}
  return KINDS[values.pop('kind')](**values)
