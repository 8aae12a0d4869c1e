"""Facts in a log's metadata: a declared schema, and the refusal of what is malformed."""

import json

import pytest

from fl_dpftrl.logs import keys, metric_names, noise_record, refusals
from fl_dpftrl.participation import schemas

SCHEMA = schemas.MinSep(num_rounds=12, min_sep=3, max_participations=3)


def test_a_declared_schema_is_read_for_the_rounds_of_the_log():
  metadata = keys.of_schema(SCHEMA)
  assert keys.planned_schema(metadata) == SCHEMA
  assert keys.declared_schema(metadata, 12) == SCHEMA
  assert keys.declared_schema(metadata, 2) == schemas.MinSep(2, 3, 2)
  assert keys.declared_schema({}, 2) is None
  with pytest.raises(
    refusals.LogError, match='the log has 13 rounds.*declares 12; give --declared'
  ):
    keys.declared_schema(metadata, 13)


# Key → what reads it, and texts that it refuses beside those that are no JSON.
MALFORMED = {
  keys.SCHEMA_KEY: (keys.planned_schema, ['3', '{}', '{"num_rounds": 3, "min_sep": 1}']),
  keys.NOISE_CHANGES_KEY: (noise_record.read, ['3', '[[1, 2]]', '[["1", 2, 3]]', '[[0, 1, 1]]']),
  keys.NOISE_RESTARTS_KEY: (
    noise_record.read,
    [
      *('3', '[[1]]', '[["1", null]]', '[[0, null]]', '[[2, null], [2, null]]', '[[1, 3]]'),
      '[[1, {"family": "none", "parameters": {}}]]',
      '[[1, {"family": "dense", "parameters": {"matrix": {"npz": "secret.npz"}}}]]',
    ],
  ),
  keys.ADAPTIVE_CLIPPING_KEY: (
    noise_record.read_clipping,
    ['{}', '{"initial": 0}', '{"initial": 1, "more": 2}'],
  ),
  metric_names.KEY: (
    metric_names.read,
    ['"a"', '{}', '[1]', '[""]', json.dumps(['a'] * 1001), json.dumps(['a' * 201])],
  ),
}


@pytest.mark.parametrize(
  'key, text',
  [(key, text) for key, (_, texts) in MALFORMED.items() for text in ('[', '[' * 9999, *texts)],
  ids=lambda text: text[:40],
)
def test_what_is_malformed_is_named(key, text):
  read, _ = MALFORMED[key]
  with pytest.raises(refusals.LogError, match=f'{key} in the metadata'):
    read({key: text})
