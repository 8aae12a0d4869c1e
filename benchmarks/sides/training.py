"""Passes of a model on the same sentences: a loop, one layer, or a round."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from benchmarks import runner, training
from experiments.stackoverflow import networks, training_model
from experiments.stackoverflow.datasets import federated_text, vocabularies
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.tff.aggregators import factories
from fl_dpftrl.tff.training import processes

_RATE = 0.1
_NETWORKS = {'lstm': networks.Lstm, 'log_bilinear': networks.LogBilinear}


def network_of(case: training.Case) -> networks.Network:
  return _NETWORKS[case.network](num_tokens=case.num_tokens, **case.sizes)


def sentences(case: training.Case) -> list[np.ndarray]:
  """Returns random words per client: [64, length + 1] int32."""
  shape = (case.clients, case.sentences, training.LENGTH + 1)
  words = np.random.default_rng(0).integers(1, case.num_tokens - 3, shape)
  return list(words.astype(np.int32))


def central(
  case: training.Case, batch_size: int, logits: Any, variables: Any
) -> Callable[[], None]:
  """Returns a pass over all sentences with a step of SGD for each batch."""

  @tf.function(input_signature=[tf.TensorSpec([None, training.LENGTH], tf.int32)] * 2)
  def step(x, y):
    with tf.GradientTape() as tape:
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(x))
      loss = tf.reduce_mean(losses)  # No sentence has padding.
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
      if isinstance(gradient, tf.IndexedSlices):
        variable.scatter_sub(tf.IndexedSlices(_RATE * gradient.values, gradient.indices))
      else:
        variable.assign_sub(_RATE * gradient)

  rows = np.concatenate(sentences(case))

  def train():
    for i in range(0, len(rows), batch_size):
      batch = rows[i : i + batch_size]
      step(batch[:, :-1], batch[:, 1:])

  return train


def plain(case: training.Case, batch_size: int) -> Callable[[], None]:
  network = network_of(case)
  variables = [tf.Variable(w) for w in network.initial_weights(0)]
  return central(case, batch_size, lambda x: network.logits(variables, x), variables)


def keras(case: training.Case, batch_size: int) -> Callable[[], None]:
  """Returns a pass of the same model with Keras's own layers."""
  network = network_of(case)
  layers = tf.keras.layers
  model = tf.keras.Sequential(
    [
      tf.keras.Input([training.LENGTH], dtype=tf.int32),
      layers.Embedding(network.num_tokens, network.embedding),
      layers.LSTM(network.units, return_sequences=True),
      layers.Dense(network.embedding),
      layers.Dense(network.num_tokens),
    ]
  )
  return central(case, batch_size, lambda x: model(x, training=True), model.trainable_variables)


def process_and_data(
  case: training.Case,
) -> tuple[tff.learning.templates.LearningProcess, federated_text.Dataset]:
  """Returns rounds as in experiments: bounded, with noise, and their metrics; and their clients."""
  vocabulary = vocabularies.Vocabulary(tuple(f'w{i}' for i in range(case.num_tokens - 4)))
  process = processes.build_fed_avg(
    training_model.build(network_of(case), vocabulary, length=training.LENGTH, seed=0),
    aggregator=factories.CorrelatedNoiseFactory(
      identity.Identity(), noise_multiplier=1e-3, clip_norm=1.0, report_goal=case.clients
    ),
    client_learning_rate=_RATE,
    server_learning_rates=np.ones(1),
  )
  rows = dict(zip(map(str, range(case.clients)), sentences(case)))
  data = federated_text.Dataset(
    name='benchmark',
    vocabulary=vocabulary,
    train_clients=list(rows),
    sentences=rows.get,
    validation=rows['0'],
    test=rows['0'],
    unigram_token=1,
    licence='none',
    unit='a client',
  )
  return process, data


def federated(case: training.Case, batch_size: int) -> Callable[[], None]:
  """Returns a round."""
  process, data = process_and_data(case)
  state = process.initialize()
  data_of = lambda client: federated_text.client_dataset(data, client, batch_size=batch_size)

  def train():
    nonlocal state
    state = process.next(state, list(map(data_of, data.train_clients))).state

  return train


def measure(setting: dict[str, Any], side: str, batch_size: int) -> list[dict[str, float]]:
  """Returns elapsed and processor seconds of each pass except the first."""
  case = training.Case(**setting)
  builds = {training.CENTRAL: plain, training.KERAS: keras}
  with tff.framework.get_context_stack().install(tff_inprocess.InProcessContext()):
    train = builds.get(side, federated)(case, batch_size)
    train()
    times = runner.timed(case.passes, lambda t: train)
  return [{'seconds': seconds, 'cpu_seconds': computed} for seconds, computed in zip(*times)]
