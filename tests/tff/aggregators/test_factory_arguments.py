import numpy as np
import pytest
import tensorflow_federated as tff

from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.tff.aggregators import factories
from tests import made

pytestmark = pytest.mark.tff

GOOD = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=2)


@pytest.mark.parametrize('name, value', [
  ('strategy', 7), ('strategy', identity.Identity), ('noise_multiplier', -1.0),
  ('noise_multiplier', float('nan')), ('noise_multiplier', float('inf')), ('noise_multiplier', '1'),
  ('clip_norm', 0.0), ('clip_norm', -1.0), ('clip_norm', float('inf')), ('clip_norm', True),
  ('clip_norm', 1e-31), ('clip_norm', 1e31), ('report_goal', 0), ('report_goal', 2.5),
  ('report_goal', float('nan')), ('report_goal', None), ('zeroing_norm', 0.0),
  ('zeroing_norm', float('nan')), ('inner_factory', tff.aggregators.MeanFactory()),
  ('memory', 'disk'), ('noise_machines', 0), ('noise_seed', 0.5),
])  # fmt: skip
def test_refused_arguments_are_named(name, value):
  arguments = {'strategy': identity.Identity(), **GOOD, name: value}
  with pytest.raises(ValueError, match=f'^{name} must') as error:
    factories.CorrelatedNoiseFactory(arguments.pop('strategy'), **arguments)
  is_said = name not in ('inner_factory', 'noise_seed')  # Of these, the type alone.
  assert (repr(value)[:20] if is_said else type(value).__name__) in str(error.value)


@made.cases(
  'value_type, message',
  (tff.TensorType(np.int32, [2]), 'type int32'),
  (tff.TensorType(np.float64, [2]), 'type float64'),
  (tff.TensorType(np.float32, [None]), r'shape \(None,\)'),
  (tff.SequenceType(np.float32), 'value_type must be made of tensors'),
  (tff.FederatedType(np.float32, tff.CLIENTS), 'made of tensors'),
  (tff.StructType([]), 'no tensors'),
  (tff.TensorType(np.float32, [0]), 'only empty ones'),
)
def test_refused_types_are_named(value_type, message):
  aggregator = factories.CorrelatedNoiseFactory(identity.Identity(), **GOOD)
  with pytest.raises(ValueError, match=message):
    aggregator.create(value_type)


def test_refuses_machines_for_noise_in_the_state():
  with pytest.raises(ValueError, match="noise_machines is for memory='engine'"):
    factories.CorrelatedNoiseFactory(identity.Identity(), **GOOD, noise_machines=2)


def test_an_algorithm_that_weights_clients_is_told_what_to_give():
  aggregator = factories.CorrelatedNoiseFactory(identity.Identity(), **GOOD)
  with pytest.raises(ValueError, match=r'as_weighted_aggregator\(aggregator\)'):
    aggregator.create(tff.TensorType(np.float32, [2]), tff.TensorType(np.float32))
