"""Keys of a log's metadata, the schema that a guard declared in them, and those of another run."""

import json
import os
from collections.abc import Mapping

from fl_dpftrl.accounting import arithmetic
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation import schemas
from fl_dpftrl.text import messages

LOG_VERSION = 1
VERSION_KEY = 'fl_dpftrl.log_version'
NUM_ROUNDS_KEY = 'num_rounds'
# Chained digest of the last round; see `ledger`.
CHAIN_KEY = 'fl_dpftrl.rounds_sha256'
# Digest of all other metadata.
METADATA_KEY = 'fl_dpftrl.metadata_sha256'
OWN_KEYS = (VERSION_KEY, NUM_ROUNDS_KEY, CHAIN_KEY, METADATA_KEY)
"""Keys that a log sets itself."""

# The reason why the run gives no guarantee, if it gives none.
VOID_KEY = 'fl_dpftrl.void_reason'
STRATEGY_KEY = 'fl_dpftrl.strategy_sha256'
# Values in all rounds.
NOISE_MULTIPLIER_KEY = 'fl_dpftrl.noise_multiplier'
CLIP_NORM_KEY = 'fl_dpftrl.clip_norm'
# JSON of an AdaptiveClipping, where the clip norm above is its first.
ADAPTIVE_CLIPPING_KEY = 'fl_dpftrl.adaptive_clipping'
# The numbers that all releases are made of, 'covered' or 'lattice'; and how many coordinates these
# have, where they are covered.
ARITHMETIC_KEY = 'fl_dpftrl.arithmetic'
NUM_COORDINATES_KEY = 'fl_dpftrl.num_coordinates'
# The schema that a guard declared before the first round, as JSON.
SCHEMA_KEY = 'fl_dpftrl.declared_schema'

_SCHEMA_FIELDS = ('num_rounds', 'min_sep', 'max_participations')
_DIFFERENCES = 2  # that are shown
_SHOWN = 40  # characters of a value
# Where noise is made, by the numbers that releases are made of.
_NOISE = {arithmetic.COVERED: 'by an engine', arithmetic.LATTICE: "in TFF's state"}


def of_schema(schema: schemas.MinSep) -> dict[str, str]:
  """Returns the metadata that state a declared schema."""
  declared = (schema.num_rounds, schema.min_sep, schema.participations)
  return {SCHEMA_KEY: json.dumps(dict(zip(_SCHEMA_FIELDS, declared)))}


def declared_schema(metadata: Mapping[str, str]) -> schemas.MinSep | None:
  """Returns the declared schema, of all declared rounds; None if none was declared."""
  text = metadata.get(SCHEMA_KEY)
  if text is None:
    return None
  try:
    values = json.loads(text)
    if not isinstance(values, dict) or set(values) != set(_SCHEMA_FIELDS):
      raise ValueError(f'it must have {", ".join(_SCHEMA_FIELDS)}')
    return schemas.MinSep(**values)
  except (ValueError, TypeError, RecursionError) as e:
    raise refusals.LogError(
      f'{SCHEMA_KEY} in the metadata of the log is malformed: {text[:80]!r}'
    ) from e


def of_another_run(
  path: str | os.PathLike[str], stored: Mapping[str, str], given: Mapping[str, str]
) -> refusals.LogError:
  """Returns the error for a log that is opened with other metadata than it has.

  Args:
    path: the log.
    stored, given: its metadata, and those that it is opened with; different ones.
  """
  differing = [key for key in sorted({*stored, *given}) if stored.get(key) != given.get(key)]
  kinds = [metadata.get(ARITHMETIC_KEY, '') for metadata in (stored, given)]
  if set(differing) <= {ARITHMETIC_KEY, NUM_COORDINATES_KEY} and set(_NOISE) == set(kinds):
    begun, now = (_NOISE[kind] for kind in kinds)
    return refusals.LogError(
      f'{path}: the run was begun with noise {begun}, and the aggregator now has it {now}: give'
      " memory='engine' or 'state' as before"
    )
  said = [
    f'{key.removeprefix("fl_dpftrl.")} {_shown(stored.get(key))}, not {_shown(given.get(key))}'
    for key in differing[:_DIFFERENCES]
  ]
  if len(differing) > _DIFFERENCES:
    said.append(f'{len(differing) - _DIFFERENCES} more')
  return refusals.LogError(
    f'{path}: its metadata are those of another run: {"; ".join(said)}; open it with the same'
    ' arguments as before'
  )


def _shown(value: str | None) -> str:
  """A metadata value in a message; digests and schemas are cut."""
  return 'none' if value is None else messages.one_line(value, _SHOWN)
