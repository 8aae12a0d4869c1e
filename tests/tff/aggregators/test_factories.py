"""The aggregator at work inside TFF."""

import numpy as np
import pytest
import tensorflow as tf

from fl_dpftrl.mechanisms.families import stamped, tree_online
from tests.tff.aggregators.small_factories import BLT, SIZE, VALUE_TYPE, make, run, update

pytestmark = [pytest.mark.tff, pytest.mark.slow]

WITH_BUFFERS = pytest.mark.parametrize(
  'strategy',
  [BLT, stamped.Stamped(tree_online.TreeOnline(), 2)],
  ids=lambda strategy: strategy.family,
)


def assert_same(one, other):
  tf.nest.map_structure(np.testing.assert_array_equal, one, other)


@WITH_BUFFERS
def test_releases_the_sum_with_the_noise_of_its_strategy(strategy):
  aggregator = make(strategy, noise_seed=1)
  outputs = run(aggregator.create(VALUE_TYPE), [update(2.0), update(9.0)], 5)
  stream = aggregator.noise_stream(VALUE_TYPE)
  norms = np.linalg.norm(strategy.noising_matrix(5), axis=1)
  state = stream.init()
  for t, output in enumerate(outputs):
    row, state = stream.next(state)
    scale = aggregator.unit.size * 3.0 / 4
    # Clipped to 3 and summed with 2, over the report goal.
    expected_b = scale * row['b'].numpy() + [5.0 / 4, 0.0, 0.0]
    np.testing.assert_allclose(output.result['b'], expected_b, atol=2e-6)
    np.testing.assert_allclose(output.result['w'], scale * row['w'].numpy(), rtol=2e-7, atol=1e-9)
    noise_stddev = output.measurements.pop('noise_stddev')
    assert noise_stddev == pytest.approx(1.5 * norms[t], rel=1e-6)
    assert 4 * np.std(output.result['w']) == pytest.approx(noise_stddev, rel=5 / np.sqrt(2 * SIZE))
    assert output.measurements == dict(
      clipped_count=1, zeroed_count=0, rejected_count=0, noise_row=t, inner=()
    )


@WITH_BUFFERS
def test_skipping_a_row_uses_the_very_noise_of_the_round(strategy):
  aggregator = make(strategy)
  process, skip = aggregator.create(VALUE_TYPE), aggregator.skip_row(VALUE_TYPE)
  outputs = run(process, [update(0.5)], 4)
  start = process.initialize()
  state = start._replace(noise=start.noise._replace(seed=outputs[0].state.noise.seed))
  for output in outputs[:3]:
    state = skip(state)
    assert_same(state, output.state)
  # The round after three burnt ones is the one after three others.
  assert_same(process.next(state, [update(0.5)]).result, outputs[3].result)


def test_bad_updates_reach_neither_result_nor_noise():
  aggregator = make(clip_norm=1.0, zeroing_norm=100.0, noise_seed=3)
  bad = [update(v) for v in (np.nan, np.inf, -np.inf, 1e30)]
  process = aggregator.create(VALUE_TYPE)
  outputs = run(process, [update(0.5), update(50.0), *bad], 3)
  without = run(process, [update(0.5), update(50.0)], 3)
  for output, clean in zip(outputs, without):
    names = ('clipped_count', 'zeroed_count', 'rejected_count')
    assert [output.measurements[name] for name in names] == [1, 1, 3]
    assert_same((output.state, output.result), (clean.state, clean.result))
    for part in tf.nest.flatten((output.state, output.result)):
      assert np.isfinite(part).all()
