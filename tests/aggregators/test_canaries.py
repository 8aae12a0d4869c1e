"""Canaries in the sums of the aggregator, and their scores from its releases."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

from fl_dpftrl import auditing
from fl_dpftrl.aggregators import canaries
from fl_dpftrl.noise import units
from fl_dpftrl.participation import schemas
from tests.aggregators.made import flat, make, run

pytestmark = pytest.mark.tff

VALUE_TYPE = tff.to_type(
  collections.OrderedDict(w=tff.TensorType(np.float32, [8, 50]), b=tff.TensorType(np.float32, [3]))
)
UPDATE = collections.OrderedDict(
  w=np.full([8, 50], 0.01, np.float32), b=np.array([0.0, 0.1, -0.1], np.float32)
)
CANARIES = auditing.Canaries(
  num_canaries=9, schema=schemas.MinSep(num_rounds=6, min_sep=4), size=403, clip_norm=2.0, seed=7
)


def test_a_canary_is_an_update_in_whole_units():
  unit, sums = units.Unit.of(0.5), np.arange(-201, 202) << 9
  for t in range(6):
    added = canaries.Channel(CANARIES).add(unit, np.int64(t), sums) - sums
    assert added.dtype == np.int64
    np.testing.assert_array_equal(added, unit.coordinate(403) * CANARIES.signs(t))
    np.testing.assert_allclose(2.0 * unit.step * added, CANARIES.total(t), rtol=1e-6)
  assert 403 * unit.coordinate(403) ** 2 <= unit.most_square


@pytest.mark.parametrize('memory', ['state', pytest.param('engine', marks=pytest.mark.slow)])
def test_sums_hold_canaries_and_nothing_else_changes(memory):
  plain = make(clip_norm=2.0, report_goal=5, noise_seed=3, memory=memory)
  channel = canaries.Channel(CANARIES)
  audited = canaries.CanaryFactory.of(plain, channel)
  fields = [field.name for field in dataclasses.fields(plain) if field.init]
  assert all(getattr(audited, name) == getattr(plain, name) for name in fields)
  outputs = [run(f.create(VALUE_TYPE), [UPDATE] * 3, 6) for f in (plain, audited)]
  for t, of_round in enumerate(zip(*outputs)):
    without, total = (5.0 * flat(output.result).astype(np.float64) for output in of_round)
    np.testing.assert_allclose(total - without, CANARIES.total(t), atol=1e-6)
    np.testing.assert_allclose(channel.take(t), CANARIES.scores(t, total), atol=1e-9)
    with pytest.raises(KeyError):
      channel.take(t)
