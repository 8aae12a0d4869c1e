"""Learning processes: DP-FedAvg with a FedSGDM server, and any process as a run uses it."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from fl_dpftrl.tff.aggregators import factories, update_types
from fl_dpftrl.tff.training import metered

# Of protobuf messages, with room for the rest of the graph.
MAX_CONSTANT_BYTES = 2_100_000_000

Model: TypeAlias = (
  tff.learning.models.FunctionalModel | Callable[[], tff.learning.models.VariableModel]
)


def build_fed_avg(
  model: Model,
  *,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  client_learning_rate: float = 1.0,
  server_learning_rates: np.ndarray,
  server_momentum: float = 0.95,
  client_optimizer: tff.learning.optimizers.Optimizer | None = None,
  server_optimizer: tff.learning.optimizers.Optimizer | None = None,
) -> tff.learning.templates.LearningProcess:
  """Federated averaging with uniform weights and a momentum server.

  Clients run SGD over the data that they are given; the server applies SGD with
  momentum to the negated privatised mean of their updates.

  Args:
    model: what `tff.learning.algorithms.build_unweighted_fed_avg` takes.
    aggregator: clips, sums and adds noise, such as `CorrelatedNoiseFactory`. With its `metrics`,
      clients send the model's metrics of these names with their updates, and no metric of theirs is
      without noise.
    client_learning_rate: of the clients' SGD.
    server_learning_rates: shape [num_rounds], the server's rate in each round;
      later rounds repeat the last.
    server_momentum: of the server's SGD; 0 for none.
    client_optimizer: optimiser of the clients instead of SGD.
    server_optimizer: optimiser of the server instead of SGD with momentum; its
      learning rate is that of the schedule.

  Raises:
    ValueError: for a rate or momentum out of range, too large weights, and a model of Keras 3.

  Source: McMahan et al. 2024 (BLT-DP-FTRL), algorithm 1.
  """
  rates = np.asarray(server_learning_rates, dtype=np.float32)
  if rates.ndim != 1 or not rates.size or not (rates > 0).all():
    raise ValueError(
      f'server_learning_rates must be positive, one a round, got {server_learning_rates!r}'
    )
  if not client_learning_rate > 0:
    raise ValueError(f'client_learning_rate must be positive, got {client_learning_rate!r}')
  if not 0.0 <= server_momentum < 1.0:
    raise ValueError(f'server_momentum must be at least 0 and below 1, got {server_momentum!r}')

  _check_initial_weights(model)

  def rate_of_round(round_index):
    return tf.gather(tf.constant(rates), tf.minimum(round_index, rates.size - 1))

  optimizers = tff.learning.optimizers
  if client_optimizer is None:
    client_optimizer = optimizers.build_sgdm(client_learning_rate)
  if server_optimizer is None:
    server_optimizer = optimizers.build_sgdm(momentum=server_momentum or None)
  server_optimizer = optimizers.schedule_learning_rate(server_optimizer, rate_of_round)
  try:
    if getattr(aggregator, 'private_metrics', None) is not None:
      return metered.build(model, aggregator, client_optimizer, server_optimizer)
    return tff.learning.algorithms.build_unweighted_fed_avg(
      model,
      client_optimizer_fn=client_optimizer,
      server_optimizer_fn=server_optimizer,
      model_aggregator=aggregator,
      # On CPUs a client takes a third of the time that DATASET_REDUCE takes.
      loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )
  except TypeError as e:
    if 'keras.src' not in str(e).replace('tf_keras.src', ''):
      raise
    raise ValueError('model is of Keras 3, which TFF refuses: build it with tf.keras') from e


class RoundProcess:
  """A learning process whose clients draw by the noise row, the same in a repeated round.

  Attributes:
    aggregator: the one that it was built with.
  """

  def __init__(
    self,
    process: tff.learning.templates.LearningProcess,
    aggregator: factories.CorrelatedNoiseFactory,
    context: tff_inprocess.InProcessContext,
  ):
    self._process, self.aggregator, self._context = process, aggregator, context
    self._trainable = update_types.updates_of(process)
    # Most runs burn no row, and this takes a tenth of a short one's time.
    self._skip_row = functools.cache(lambda: aggregator.skip_row(self._trainable))

  def initialize(self) -> Any:
    """Returns the first state."""
    state = self._process.initialize()
    noise = getattr(getattr(state, 'aggregator', None), 'noise', None)
    parameters = np.asarray(getattr(noise, 'parameters', None)).tolist()
    if parameters != self.aggregator.parameters(self._trainable):
      raise ValueError(
        'process must be built with the aggregator as its model_aggregator: its noise has'
        ' another strategy, seed, noise_multiplier or clip_norm'
      )
    return state

  def next(self, state: Any, data: Any) -> tff.learning.templates.LearningProcessOutput:
    """Computes the round of the state's noise row."""
    row = int(state.aggregator.noise.row)
    with self._context.numbered(row):
      return self._process.next(state, data)

  def skip_row(self, state: Any) -> Any:
    """Returns the aggregator state after one more noise row."""
    return self._skip_row()(state)

  def weights(self, state: Any) -> Any:
    """Returns the model's weights in a state, as `get_model_weights` gives them."""
    return self._process.get_model_weights(state)


def warning_of_fixed_weights(process: tff.learning.templates.LearningProcess) -> str | None:
  """Returns a warning if the model has weights that no round changes; None otherwise.

  Clients send only the difference of their trainable weights, and TFF's finalizer returns the
  others as they came (`tff.learning.templates.build_apply_optimizer_finalizer`).
  """
  fixed = process.get_model_weights.type_signature.result.non_trainable
  number = len(tff.structure.flatten(fixed))
  if not number:
    return None
  weights = '1 non-trainable weight' if number == 1 else f'{number} non-trainable weights'
  return (
    f"the model has {weights}, which TFF's learning algorithms leave at the initial values:"
    ' the moving mean and variance of BatchNormalization stay 0 and 1, also when the model is'
    ' evaluated; use GroupNormalization or LayerNormalization'
  )


def _check_initial_weights(model: Model) -> None:
  """Rejects initial weights of a functional model that are too large for a graph."""
  if not isinstance(model, tff.learning.models.FunctionalModel):
    return  # Operations of a graph make them.
  size = sum(np.asarray(weight).nbytes for weight in tf.nest.flatten(model.initial_weights))
  if size > MAX_CONSTANT_BYTES:
    raise ValueError(
      f'the initial weights have {size / 1e9:,.2f} GB, and TFF keeps those of a FunctionalModel'
      f' as constants of a graph, of at most {MAX_CONSTANT_BYTES / 1e9:,.2f} GB: give a function'
      ' that returns a VariableModel, whose initialisers run in each `initialize()`'
    )
