"""Entries of a manifest, checked one by one as they are read."""

import dataclasses
import re
from typing import Any

from fl_dpftrl.files import json_files
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import limits
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import document as strategy_document
from fl_dpftrl.text import messages

NUMBER = (int, float)

_FILE_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,199}')
_RELEASE = re.compile(r'[0-9][0-9A-Za-z.+!-]{0,39}')
_SHA256 = re.compile(r'[0-9a-f]{64}')


def names(cls: type[Any]) -> set[str]:
  """Returns the names of the fields of a dataclass."""
  return {field.name for field in dataclasses.fields(cls)}


def check_keys(entry: json_files.Object, known: set[str]) -> None:
  """Raises ValueError for a key that is missing or unknown."""
  for name in sorted(known ^ entry.keys()):
    raise ValueError(f'{messages.quoted(name)} is {"missing" if name in known else "unknown"}')


def check_name(name: Any) -> str:
  """Returns a plain file name; ValueError for any other value."""
  if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
    raise ValueError(f'a file must have a plain name in the bundle, got {messages.quoted(name)}')
  return name


def check_release(name: str, value: Any) -> str:
  """Returns a release, such as '1.2.0'; ValueError, with its name, for any other value."""
  if not isinstance(value, str) or not _RELEASE.fullmatch(value):
    raise ValueError(f'{messages.quoted(name)} must be a release, got {messages.quoted(value)}')
  return value


def digest(entry: json_files.Object, name: str) -> str:
  """Returns the SHA-256 of a key, in hexadecimal; ValueError for any other value."""
  value = take(entry, name, str)
  if not _SHA256.fullmatch(value):
    raise ValueError(f'{name} must be 64 hexadecimal digits, got {messages.quoted(value)}')
  return value


def take(entry: json_files.Object, name: str, kind: Any) -> Any:
  """Returns the value of a key; ValueError unless it is of a kind."""
  return of_kind(name, entry.get(name), kind)


def of_kind(name: str, value: Any, kind: Any) -> Any:
  """Returns a value; ValueError, with its name, unless it is of a kind."""
  if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
    raise ValueError(f'{messages.quoted(name)} must not be {messages.quoted(value)}')
  return value


def change(pair: Any) -> tuple[int, float]:
  """Returns a round and the noise multiplier from that round on; ValueError for other values."""
  if len(of_kind('changes', pair, list)) != 2:
    raise ValueError('changes must be pairs of a round and a noise multiplier')
  return of_kind('changes', pair[0], int), float(of_kind('changes', pair[1], NUMBER))


def layout(entry: json_files.Object) -> layout_lib.Layout:
  """Reads the layout of a log; ValueError for what is none."""
  check_keys(entry, set(layout_lib.Layout._fields))
  for name, kind in layout_lib.Layout.__annotations__.items():
    take(entry, name, kind)
  if not 0 <= entry['first_round'] < limits.ROUNDS:
    raise ValueError(f'first_round must be from 0 to {limits.ROUNDS - 1}')
  return layout_lib.Layout(**entry)


def schema_entry(declared: schemas.MinSep | None) -> json_files.Object | None:
  """Returns a declared schema as manifests have it."""
  if declared is None:
    return None
  return {'participation': strategy_document.schema_name(declared), **dataclasses.asdict(declared)}


def canonical(declared: schemas.MinSep) -> schemas.MinSep:
  """Returns a declared schema with the most participations that fit into its rounds."""
  return dataclasses.replace(declared, max_participations=declared.participations)


def schema(entry: Any) -> schemas.MinSep | None:
  """Reads a declared schema; ValueError for what is none."""
  if entry is None:
    return None
  declared = strategy_document.read_schema(of_kind('declared', entry, dict))
  if type(declared) is not schemas.MinSep:
    raise ValueError('declared must be a min_sep schema')
  if declared != canonical(declared):
    raise ValueError(f'declared must have at most {declared.participations} max_participations')
  return declared
