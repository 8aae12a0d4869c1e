"""Federated averaging whose clients send metrics with their updates, to be released with noise."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.learning.templates import model_delta_client_work

from fl_dpftrl.tff.aggregators import factories

_LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
_UNIFORM = tff.learning.ClientWeighting.UNIFORM


def build(
  model: Any,
  aggregator: factories.CorrelatedNoiseFactory,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.templates.LearningProcess:
  """Builds what `build_unweighted_fed_avg` does, but for metrics, which the aggregator releases.

  A client's metric is the one that the model computes over the data that it trained on.

  Args:
    model: functional model, or function that returns a variable model.
    aggregator: its metrics are names of the model's metrics.
    client_optimizer: optimiser of the clients.
    server_optimizer: optimiser of the server.

  Raises:
    ValueError: for metrics that the model does not have, or that are no numbers.
  """
  if isinstance(model, tff.learning.models.FunctionalModel):
    initial_weights = tff.tensorflow.computation(
      lambda: tff.learning.models.ModelWeights(*model.initial_weights)
    )
  else:
    initial_weights = tff.tensorflow.computation(
      lambda: tff.learning.models.ModelWeights.from_model(model())
    )
  weights_type = initial_weights.type_signature.result
  work = _client_work(model, weights_type, client_optimizer, aggregator.groups[-1].names)
  update_type = weights_type.trainable
  summed = tff.aggregators.as_weighted_aggregator(aggregator).create(
    aggregator.sent(update_type), tff.TensorType(np.float32)
  )
  return tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    work,
    summed,
    tff.learning.templates.build_apply_optimizer_finalizer(server_optimizer, weights_type),
  )


def _client_work(
  model: Any,
  weights_type: tff.Type,
  optimizer: tff.learning.optimizers.Optimizer,
  names: Sequence[str],
) -> tff.learning.templates.ClientWorkProcess:
  """Returns the client work of `build_model_delta_client_work`, with metrics in each update."""
  if isinstance(model, tff.learning.models.FunctionalModel):
    specs, finalize = model.input_spec, model.finalize_metrics
  else:
    with tf.Graph().as_default():  # Its variables are only of this graph.
      made = model()
      specs, finalizers = made.input_spec, made.metric_finalizers()
    finalize = lambda unfinalized: {name: f(unfinalized[name]) for name, f in finalizers.items()}
  data_type = tff.SequenceType(tff.types.tensorflow_to_type(specs))

  @tff.tensorflow.computation(weights_type, data_type)
  def train(weights, data):
    if isinstance(model, tff.learning.models.FunctionalModel):
      update = model_delta_client_work.build_functional_model_delta_update(
        model, weighting=_UNIFORM, loop_implementation=_LOOP
      )
      weights = tuple(weights)
    else:
      update = model_delta_client_work.build_model_delta_update_with_tff_optimizer(
        model, weighting=_UNIFORM, loop_implementation=_LOOP
      )
    result, unfinalized = update(optimizer, weights, data)
    metrics = finalize(unfinalized)
    if missing := [name for name in names if name not in metrics]:
      raise ValueError(
        f'metrics: the model has no {", ".join(missing)}; it has {", ".join(metrics)}'
      )
    values = tf.stack([tf.cast(metrics[name], tf.float32) for name in names])
    return tff.learning.templates.ClientResult((result.update, values), result.update_weight)

  @tff.federated_computation
  def init_fn():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    init_fn.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, data):
    result = tff.federated_map(train, (weights, data))
    measurements = tff.federated_value((), tff.SERVER)
    return tff.templates.MeasuredProcessOutput(state, result, measurements)

  return tff.learning.templates.ClientWorkProcess(init_fn, next_fn)
