"""Facts in a log's metadata: a declared schema, and the refusal of what is malformed."""

import json

import pytest

from fl_dpftrl.logs import keys, metric_names, noise_record, refusals
from fl_dpftrl.participation import schemas

SCHEMA = schemas.MinSep(num_rounds=12, min_sep=3, max_participations=3)


def test_a_declared_schema_is_read_as_it_was_written():
  assert keys.declared_schema(keys.of_schema(SCHEMA)) == SCHEMA
  assert keys.declared_schema({}) is None


# Key → what reads it, and texts that it refuses beside those that are no JSON.
MALFORMED = {
  keys.SCHEMA_KEY: (keys.declared_schema, ['3', '{}', '{"num_rounds": 3, "min_sep": 1}']),
  keys.NOISE_MULTIPLIER_KEY: (noise_record.read, ['nan', '-1', 'inf', 'two']),
  keys.CLIP_NORM_KEY: (noise_record.read, ['nan', '-1', 'wide']),
  keys.ADAPTIVE_CLIPPING_KEY: (
    noise_record.read_clipping,
    ['{}', '{"initial": 0}', '{"initial": 1, "more": 2}'],
  ),
  metric_names.KEY: (
    metric_names.read,
    ['"a"', '{}', '[1]', '[""]', json.dumps(['a'] * 1001), json.dumps(['a' * 201])],
  ),
  metric_names.TRUSTED_KEY: (
    lambda metadata: metric_names.read(metadata, metric_names.TRUSTED_KEY),
    ['"a"', '[1]'],
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
