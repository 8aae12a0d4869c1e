"""Names of the metrics that no guarantee covers, in the metadata of a log."""

import json
from collections.abc import Mapping, Sequence

from fl_dpftrl.logs import refusals

KEY = 'fl_dpftrl.not_private_metrics'
_MOST, _LONGEST = 1000, 200


def metadata(names: Sequence[str]) -> dict[str, str]:
  """Returns the metadata of a log of a run with such metrics; none without them."""
  return {KEY: json.dumps([name[:_LONGEST] for name in names[:_MOST]])} if names else {}


def read(metadata: Mapping[str, str]) -> tuple[str, ...]:
  """Returns the names that a log's metadata state."""
  text = metadata.get(KEY, '[]')
  try:
    names = json.loads(text)
  except (ValueError, RecursionError):
    names = None
  if not isinstance(names, list) or len(names) > _MOST or not all(map(_is_name, names)):
    raise refusals.LogError(
      f'{KEY} in the metadata of the log must be a list of up to {_MOST} names, got {text[:80]!r}'
    )
  return tuple(names)


def _is_name(name: object) -> bool:
  return isinstance(name, str) and 0 < len(name) <= _LONGEST
