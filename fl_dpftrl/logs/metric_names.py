"""Findings of `check_process` in the metadata of a log: lists of names.

Metrics that no guarantee covers, and operations that whoever trained trusted.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from fl_dpftrl.logs import refusals

KEY = 'fl_dpftrl.not_private_metrics'
TRUSTED_KEY = 'fl_dpftrl.trusted_operations'
_MOST, _LONGEST = 1000, 200


def metadata(names: Sequence[str], key: str = KEY) -> dict[str, str]:
  """Returns the metadata of a log of a run with such names; none without them."""
  return {key: json.dumps([name[:_LONGEST] for name in names[:_MOST]])} if names else {}


def read(metadata: Mapping[str, str], key: str = KEY) -> tuple[str, ...]:
  """Returns the names that a log's metadata state."""
  text = metadata.get(key, '[]')
  try:
    names = json.loads(text)
  except (ValueError, RecursionError):
    names = None
  if not are_names(names):
    raise refusals.LogError(
      f'{key} in the metadata of the log must be a list of up to {_MOST} names, got {text[:80]!r}'
    )
  return tuple(names)


def are_names(names: Any) -> TypeGuard[list[str]]:
  """Returns whether a value is a list of names, of bounded length."""
  return isinstance(names, list) and len(names) <= _MOST and all(map(_is_name, names))


def _is_name(name: object) -> bool:
  return isinstance(name, str) and 0 < len(name) <= _LONGEST
