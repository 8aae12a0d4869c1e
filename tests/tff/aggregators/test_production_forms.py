"""Rounds compile to the forms that production systems deploy."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests import every_family, made

pytestmark = pytest.mark.tff

UPDATE = tff.TensorType(np.float32, [3])
FORMS = {
  'map_reduce': (tff.backends.mapreduce.get_map_reduce_form_for_computation,
    tff.backends.mapreduce.get_computation_for_map_reduce_form),
  'distribute_aggregate': (tff.backends.mapreduce.get_distribute_aggregate_form_for_computation,
    tff.backends.mapreduce.get_computation_for_distribute_aggregate_form),
}  # fmt: skip


def rounds_of(strategy):
  """A process whose clients send what they hold."""
  aggregator = made.factory(strategy, noise_seed=3, memory='state').create(UPDATE)
  add = tff.tensorflow.computation(lambda value: value + 1.0, UPDATE)

  @tff.federated_computation(
    aggregator.initialize.type_signature.result, tff.FederatedType(UPDATE, tff.CLIENTS)
  )
  def next_round(state, values):
    output = aggregator.next(state, tff.federated_map(add, values))
    return output.state, tff.federated_zip((output.result, output.measurements))

  return aggregator.initialize, next_round


@pytest.mark.slow
@pytest.mark.parametrize(
  'family, form', [('blt', 'map_reduce'), ('tree_online', 'distribute_aggregate')]
)
def test_compiles_and_gives_the_same_rounds(family, form):
  initialize, next_round = rounds_of(every_family.example(family, 10))
  compiled_form, rebuilt = FORMS[form]
  deployed = rebuilt(compiled_form(next_round))
  own = other = initialize()
  for number in range(3):
    values = [np.full(3, number - 2.0, np.float32), np.full(3, 0.25, np.float32)]
    own, result = next_round(own, values)
    other, same = deployed(other, values)
    np.testing.assert_allclose(same[0], result[0], rtol=1e-6, atol=1e-6)
    assert same[1] == result[1]
