"""The participation schema that a guard declared, as recorded in the log's metadata."""

import json
from collections.abc import Mapping

from fl_dpftrl.logs import refusals, shards
from fl_dpftrl.participation import schemas

_FIELDS = ('num_rounds', 'min_sep', 'max_participations')


def metadata(schema: schemas.MinSep) -> dict[str, str]:
  """Returns the metadata that state a declared schema."""
  declared = {
    'num_rounds': schema.num_rounds,
    'min_sep': schema.min_sep,
    'max_participations': schema.participations,
  }
  return {shards.SCHEMA_KEY: json.dumps(declared)}


def planned(found: Mapping[str, str]) -> schemas.MinSep | None:
  """Returns the declared schema, for all planned rounds; None if none was declared.

  Raises:
    LogError: naming the key, if it is malformed.
  """
  text = found.get(shards.SCHEMA_KEY)
  if text is None:
    return None
  try:
    values = json.loads(text)
    if not isinstance(values, dict) or set(values) != set(_FIELDS):
      raise ValueError(f'it must have {", ".join(_FIELDS)}')
    return schemas.MinSep(**values)
  except (ValueError, TypeError, RecursionError) as e:
    raise refusals.LogError(
      f'{shards.SCHEMA_KEY} in the metadata of the log is malformed: {text[:80]!r}'
    ) from e


def read(found: Mapping[str, str], num_rounds: int) -> schemas.MinSep | None:
  """Returns the declared schema, for the rounds of the log; None if none was declared.

  Args:
    found: metadata of the log.
    num_rounds: rounds of the log; those of the declared schema are the most that were planned.

  Raises:
    LogError: as `planned`, and for a schema of fewer rounds than the log has.
  """
  schema = planned(found)
  if schema is None:
    return None
  if num_rounds > schema.num_rounds:
    raise refusals.LogError(
      f'the log has {num_rounds} rounds, and {shards.SCHEMA_KEY} in its metadata declares'
      f' {schema.num_rounds}; give --declared_min_sep and --declared_max_participations'
    )
  return schemas.MinSep(
    num_rounds=num_rounds,
    min_sep=schema.min_sep,
    max_participations=min(schema.participations, num_rounds),
  )
