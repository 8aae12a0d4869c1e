"""One seed, one strategy and the same updates: the releases of TFF's factory, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
import tff_inprocess
from tests import every_family, made

pytestmark = pytest.mark.tff

SHAPES = ((3, 4), (5,))


def updates(t, scale):
  rng = np.random.default_rng(t)
  return [
    [(scale * rng.normal(size=shape)).astype(np.float32) for shape in SHAPES] for _ in range(4)
  ]


# Updates that are kept, and that are clipped.
@pytest.mark.parametrize('family, scale', [('tree_online', 0.01), ('blt', 1.0)])
def test_releases_are_those_of_the_factory(family, scale, tmp_path):
  strategy = every_family.example(family, 4)
  arguments = dict(noise_multiplier=1.3, clip_norm=0.8, report_goal=3, noise_seed=11)
  factory = dpftrl.CorrelatedNoiseFactory(strategy, memory='engine', **arguments)
  with tff_inprocess.within():
    process = factory.create(
      tff.types.tensorflow_to_type([tf.TensorSpec(shape, tf.float32) for shape in SHAPES])
    )
    state = process.initialize()
    template = [np.zeros(shape, np.float32) for shape in SHAPES]
    with made.aggregator(tmp_path, strategy, template=template, **arguments) as aggregator:
      for t in range(4):
        given = updates(t, scale)
        output = process.next(state, given)
        state = output.state
        with aggregator.round([4 * t + i for i in range(4)]) as round_:
          for each in given:
            round_.add(each)
        for own, other in zip(round_.mean, output.result, strict=True):
          if scale < 0.1:
            np.testing.assert_array_equal(own, other)
          else:  # Norms are rounded otherwise, by 2⁻¹⁵ of the clip norm a client.
            np.testing.assert_allclose(own, other, rtol=0, atol=4 * 0.8 / 3 * 2.0**-14)
        assert (round_.clipped_count, round_.rejected_count) == (
          output.measurements['clipped_count'],
          output.measurements['rejected_count'],
        )
