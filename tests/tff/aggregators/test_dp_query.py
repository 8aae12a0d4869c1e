import collections

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from dp_accounting import pld, rdp

from fl_dpftrl.mechanisms.families import tree_online
from fl_dpftrl.tff.aggregators import dp_query
from tests.tff.aggregators.small_factories import BLT, make, run

pytestmark = pytest.mark.tff

SPECS = collections.OrderedDict(
  w=tf.TensorSpec([20, 3], tf.float32), b=[tf.TensorSpec([2], tf.float32)]
)
VALUE_TYPE = tff.types.tensorflow_to_type(SPECS)


def client(seed, scale):
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    w=(scale * rng.normal(size=(20, 3))).astype(np.float32), b=[np.ones(2, np.float32)]
  )


CLIENTS = [client(0, 0.01), client(1, 10.0), client(2, np.nan), client(3, 1e6)]


@pytest.mark.slow
@pytest.mark.parametrize(
  'strategy',
  [pytest.param(BLT, marks=pytest.mark.thorough), tree_online.TreeOnline()],
  ids=lambda strategy: strategy.family,
)
def test_gives_the_results_of_the_factory(strategy):
  aggregator = make(strategy, clip_norm=2.0, zeroing_norm=1e3, noise_seed=11, memory='auto')
  query = dp_query.CorrelatedNoiseQuery(aggregator, SPECS)
  made = (aggregator, tff.aggregators.DifferentiallyPrivateFactory(query))
  for output, of_query in zip(*(run(f.create(VALUE_TYPE), CLIENTS, 4) for f in made)):
    tf.nest.map_structure(np.testing.assert_array_equal, output.result, of_query.result)
    metrics = of_query.measurements['dp_query_metrics']
    for name in ('noise_row', 'noise_stddev'):
      assert metrics[name] == output.measurements[name]


def test_accountants_refuse_the_event_and_say_where_to_go():
  event = dp_query.CorrelatedNoiseDpEvent()
  round_trip = dp_accounting.DpEvent.from_named_tuple(event.to_named_tuple())
  assert round_trip == event
  for accountant in (pld.PLDAccountant(), rdp.RdpAccountant()):
    assert not accountant.supports(event)
    with pytest.raises(dp_accounting.UnsupportedEventError, match='fl-dpftrl replay --log'):
      accountant.compose(event)
