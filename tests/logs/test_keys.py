"""What a log's metadata state of a declared schema."""

import pytest

from fl_dpftrl.logs import keys, refusals
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


@pytest.mark.parametrize('text', ['[', '3', '{}', '{"num_rounds": 3, "min_sep": 1}', '[' * 9999])
def test_a_malformed_declared_schema_is_refused(text):
  with pytest.raises(refusals.LogError, match='declared_schema in the metadata'):
    keys.declared_schema({keys.SCHEMA_KEY: text}, 3)
