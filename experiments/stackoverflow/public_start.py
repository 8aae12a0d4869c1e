"""Weights learnt from public text before the first round, in one place and without noise."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.stackoverflow import datasets, networks, training_model

_BATCH, _RATE = 64, 3e-3


def weights(
  network: networks.Network, dataset: datasets.Dataset, *, epochs: int, seed: int
) -> tuple[np.ndarray, ...]:
  """Returns the weights that Adam learns from public text: the same for the same arguments."""
  rows = dataset.public
  batch = min(_BATCH, len(rows))
  num_steps = epochs * (len(rows) // batch)
  optimizer = tff.learning.optimizers.schedule_learning_rate(
    tff.learning.optimizers.build_adam(_RATE),
    lambda step: _RATE * (1.0 - tf.cast(step, tf.float32) / num_steps),
  )

  @tf.function(autograph=False)
  def step(state, values, rows):
    with tf.GradientTape() as tape:
      tape.watch(values)
      logits = network.logits(values, rows[:, :-1])
      loss = training_model.masked_loss(logits, rows[:, 1:], dataset.vocabulary.pad)
    return optimizer.next(state, values, tape.gradient(loss, values))

  values = tuple(tf.constant(weight) for weight in network.initial_weights(seed))
  state = tf.nest.map_structure(tf.convert_to_tensor, optimizer.initialize(values))
  generator = np.random.default_rng(seed)
  for _ in range(epochs):
    order = generator.permutation(len(rows))
    for start in range(0, len(rows) - batch + 1, batch):
      state, values = step(state, values, tf.constant(rows[order[start : start + batch]]))
  return tuple(value.numpy() for value in values)
