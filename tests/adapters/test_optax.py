"""The gradient transformation for optax: the aggregator's means, outside jax.jit alone."""

import numpy as np
import pytest

from tests import made

adapter = pytest.importorskip('fl_dpftrl.adapters.optax', exc_type=ImportError)


def test_a_private_mean_is_the_aggregators_and_is_refused_within_jit(tmp_path):
  import jax

  weights = np.zeros(3, np.float32)
  options = dict(template=weights, noise_multiplier=0.0, report_goal=4)
  with made.aggregator(tmp_path / 'run', **options) as aggregator:
    transformation = adapter.private_mean(aggregator)
    state = transformation.init(weights)
    ids = dict(device_ids=['ann', 'bob', 'eve'], at_least=2)
    update = lambda updates: transformation.update(updates, state, **ids)
    with pytest.raises(ValueError, match=r'outside jax\.jit'):
      jax.jit(update)(np.ones((2, 3), np.float32))
    assert aggregator.next_round == 0
    mean, _ = update(jax.numpy.full((2, 3), 0.1))
    assert isinstance(mean, jax.Array) and aggregator.next_round == 1
    np.testing.assert_allclose(mean, np.full(3, 0.05), atol=1e-4)


def test_metrics_are_released_with_noise_of_the_aggregator(tmp_path):
  options = dict(template=np.zeros(3, np.float32), noise_multiplier=0.0, metrics={'loss': 10.0})
  with made.aggregator(tmp_path / 'run', **options) as aggregator:
    transformation = adapter.private_mean(aggregator)
    options = dict(device_ids=['ann', 'bob'], metrics={'loss': np.array([3.0, np.nan])})
    transformation.update(np.ones((2, 3), np.float32), (), **options)
    assert aggregator.metrics()['loss'].value == pytest.approx(1.5, abs=1e-4)
