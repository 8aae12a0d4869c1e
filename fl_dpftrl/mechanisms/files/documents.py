"""Strategies, schemas and workloads as JSON and .npz have them, and back; digests of strategies."""

import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from fl_dpftrl.mechanisms import base, family_registry, schemas, workloads
from fl_dpftrl.support.files import array_files, json_files
from fl_dpftrl.support.text import messages

_SCHEMAS = {'min_sep': schemas.Schema, 'fixed_separation': schemas.Fixed}


class MissingArrays(ValueError):
  """The .npz that a file names is not there."""


def to_json(
  strategy: base.Strategy, arrays: dict[str, np.ndarray], npz: str | None = None, prefix: str = ''
) -> json_files.Object:
  """Returns family and parameters of a strategy, for JSON.

  Arrays are moved into `arrays`, under the parameter's name; those of a strategy inside another
  one under the names of the parameters that lead there, joined by dots. A reference to the file
  npz stands for them.
  """
  parameters = {}
  for name, value in strategy.parameters().items():
    if isinstance(value, np.ndarray):
      arrays[prefix + name], value = value, {'npz': npz}
    elif isinstance(value, base.Strategy):
      value = to_json(value, arrays, npz, f'{prefix}{name}.')
    parameters[name] = value
  return {'family': strategy.family, 'parameters': parameters}


def schema_to_json(schema: schemas.Schema) -> json_files.Object:
  """Returns kind and numbers of a schema, for JSON."""
  plain = schema.plain()
  (name,) = (name for name, cls in _SCHEMAS.items() if type(plain) is cls)
  return {'participation': name, **dataclasses.asdict(plain)}


def required(cls: type[Any]) -> set[str]:
  """Returns the parameters of a family that have no default."""
  return {
    field.name
    for field in dataclasses.fields(cls)
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
  }


def entry(document: json_files.Object, name: str, kind: type[Any]) -> Any:
  """Returns an entry of a document; raises ValueError unless it is of that kind."""
  value = document.get(name)
  if not isinstance(value, kind):
    what = 'text' if kind is str else 'an object'
    raise ValueError(f'{name} must be {what}, got {messages.quoted(value)}')
  return value


def number(document: json_files.Object, name: str) -> float:
  """Returns a number of a document; raises ValueError for anything else."""
  value = document.get(name)
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise ValueError(f'{name} must be a number, got {messages.quoted(value)}')
  return float(value)


def read_workload(document: json_files.Object) -> workloads.Workload:
  """Returns the workload of a document; raises ValueError where it is none."""
  name = entry(document, 'workload', str)
  if name not in ('prefix', 'momentum'):
    raise ValueError(f'workload must be prefix or momentum, got {messages.quoted(name)}')
  names = {field.name for field in dataclasses.fields(workloads.Workload)} & document.keys()
  workload = workloads.Workload(**{name: number(document, name) for name in names})
  if workload.name != name:
    raise ValueError(f'workload is {name!r}, but its momentum is {workload.momentum!r}')
  return workload


def read_schema(document: json_files.Object) -> schemas.Schema:
  """Returns the schema that an object describes; raises ValueError where it is none."""
  name = entry(document, 'participation', str)
  arguments = {key: value for key, value in document.items() if key != 'participation'}
  if name not in _SCHEMAS:
    raise ValueError(
      f'schema participation must be one of {", ".join(_SCHEMAS)}, got {messages.quoted(name)}'
    )
  fields = {field.name for field in dataclasses.fields(schemas.Schema)}
  if arguments.keys() != fields:
    raise ValueError(
      f'schema must have {", ".join(sorted(fields))}, got {messages.quoted(sorted(arguments))}'
    )
  return _SCHEMAS[name](**arguments)


def read_strategy(
  document: json_files.Object, path: pathlib.Path, prefix: str = ''
) -> base.Strategy:
  """Returns the strategy that `to_json` wrote; MissingArrays where its .npz is gone."""
  family = entry(document, 'family', str)
  if family not in family_registry.FAMILIES:
    raise ValueError(
      f'family must be one of {", ".join(family_registry.FAMILIES)}, got {messages.quoted(family)};'
      ' register one of your own first: dpftrl.register, or --import=MODULE of a command'
    )
  cls: type[Any] = family_registry.FAMILIES[family]
  parameters = entry(document, 'parameters', dict)
  fields = {field.name for field in dataclasses.fields(cls)}
  if not required(cls) <= parameters.keys() <= fields:
    raise ValueError(
      f'parameters of {family} must be {", ".join(sorted(fields)) or "none"},'
      f' got {messages.quoted(sorted(parameters))}'
    )
  values = {name: _parameter(value, name, path, prefix) for name, value in parameters.items()}
  try:
    return cls(**values)
  except (TypeError, ValueError) as e:
    raise ValueError(f'parameters: {e}') from e


def _parameter(value: Any, name: str, path: pathlib.Path, prefix: str) -> Any:
  """A parameter as `to_json` writes it, turned back."""
  if not isinstance(value, dict):
    return value
  if 'family' not in value:
    return _array(value, prefix + name, path)
  try:
    json_files.check_keys(value, ('family', 'parameters'))
    return read_strategy(value, path, f'{prefix}{name}.')
  except MissingArrays:
    raise
  except ValueError as e:
    raise ValueError(f'{name}: {e}') from e


def _array(reference: json_files.Object, name: str, path: pathlib.Path) -> np.ndarray:
  json_files.check_keys(reference, ('npz',))
  file_name = entry(reference, 'npz', str)
  if pathlib.PurePath(file_name).name != file_name:
    raise ValueError(f'{name} must name an .npz beside the file, got {messages.quoted(file_name)}')
  failed = f'{name} cannot be read from {messages.quoted(file_name)}: '
  try:
    return array_files.read(path.with_name(file_name), name)
  except FileNotFoundError as e:
    raise MissingArrays(f'{failed}it is missing') from e
  except OSError as e:
    raise ValueError(f'{failed}{e.strerror}') from e
  except ValueError as e:
    raise ValueError(f'{failed}{e}') from e


def strategy_digest(strategy: base.Strategy) -> str:
  """Returns SHA-256 of a strategy's family and parameters, in hexadecimal.

  It covers the family's name and, for each parameter by name, its name, shape and little-endian
  float64 values, so that it is the same for every file format. A parameter that is a strategy
  itself enters by its own digest.
  """
  digest = hashlib.sha256(strategy.family.encode())
  for name, value in sorted(strategy.parameters().items()):
    kind: Any
    if isinstance(value, base.Strategy):
      kind, content = 'strategy', bytes.fromhex(strategy_digest(value))
    else:
      array = np.asarray(value, dtype='<f8')
      kind, content = array.shape, array.tobytes()
    digest.update(json.dumps([name, kind]).encode())
    digest.update(content)
  return digest.hexdigest()


def short_digest(content: bytes) -> int:
  """Returns the first 63 bits of SHA-256, which fit into a tensor of int64."""
  return int.from_bytes(hashlib.sha256(content).digest()[:8], 'little') >> 1
