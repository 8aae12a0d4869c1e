"""JSON of a manifest as types, and back: the types of its fields are its format."""

import collections.abc
import dataclasses
import typing
from typing import Any

from fl_dpftrl.files import json_files
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import document
from fl_dpftrl.text import messages


def typed(name: str, value: Any, kind: Any) -> Any:
  """Returns a JSON value as a type.

  Args:
    kind: a plain type; MinSep; `X | None`, `tuple[X, ...]`, `tuple[X, Y]` or `Mapping[str, X]`; or
      a dataclass or NamedTuple of such types.
  """
  inner, origin = typing.get_args(kind), typing.get_origin(kind)
  if type(None) in inner:
    return None if value is None else typed(name, value, inner[0])
  if kind is schemas.MinSep:
    return _schema(name, _checked(name, value, dict))
  if origin is tuple:
    items = _checked(name, value, list)
    kinds = [inner[0]] * len(items) if inner[-1] is ... else list(inner)
    if len(items) != len(kinds):
      raise ValueError(f'{name} must have lists of {len(kinds)} values')
    return tuple(typed(name, item, one) for item, one in zip(items, kinds))
  if origin is collections.abc.Mapping:
    items = _checked(name, value, dict)
    return {key: typed(key, item, inner[1]) for key, item in items.items()}
  if dataclasses.is_dataclass(kind) or hasattr(kind, '_fields'):
    fields, entry = typing.get_type_hints(kind), _checked(name, value, dict)
    for key in sorted(fields.keys() ^ entry.keys()):
      raise ValueError(f'{messages.quoted(key)} is {"missing" if key in fields else "unknown"}')
    return kind(**{key: typed(key, entry[key], one) for key, one in fields.items()})
  if kind is float:
    return float(_checked(name, value, (int, float)))
  return _checked(name, value, kind)


def _checked(name: str, value: Any, kind: Any) -> Any:
  if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
    raise ValueError(f'{messages.quoted(name)} must not be {messages.quoted(value)}')
  return value


def _schema(name: str, entry: json_files.Object) -> schemas.MinSep:
  schema = document.read_schema(entry)
  if type(schema) is not schemas.MinSep:
    raise ValueError(f'{name} must be a min_sep schema')
  if schema != canonical(schema):
    raise ValueError(f'{name} must have at most {schema.participations} max_participations')
  return schema


def canonical(schema: schemas.MinSep) -> schemas.MinSep:
  """Returns a schema with the most participations that fit into its rounds."""
  return dataclasses.replace(schema, max_participations=schema.participations)


def to_json(value: Any) -> Any:
  """Returns a value of a type that `typed` takes as JSON has it."""
  if isinstance(value, schemas.MinSep):
    return {'participation': document.schema_name(value), **dataclasses.asdict(value)}
  if dataclasses.is_dataclass(value):
    return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
  if hasattr(value, '_asdict'):
    return value._asdict()
  if isinstance(value, collections.abc.Mapping):
    return {key: to_json(item) for key, item in value.items()}
  return [to_json(item) for item in value] if isinstance(value, tuple) else value
