"""An inner factory of a user's own, for tests of what is accepted and what is refused."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


class Custom(tff.aggregators.UnweightedAggregationFactory):
  """A sum; its state has the number of rounds, which it measures too."""

  def __init__(self, change=lambda x: x, *, learns=False):
    self._change, self._learns = change, learns

  def create(self, value_type):
    each = tf.nest.map_structure
    change = tff.tensorflow.computation(lambda x: each(self._change, x), value_type)
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    add_one = tff.tensorflow.computation(lambda x: x + 1, np.int32)

    @tff.tensorflow.computation
    def begin():
      return tf.constant(0), each(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(begin, tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      total, rounds = tff.federated_sum(values), tff.federated_map(add_one, state[0])
      kept = total if self._learns else state[1]
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip((rounds, kept)), tff.federated_map(change, total), rounds
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)
