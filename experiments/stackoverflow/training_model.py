"""The training model that TensorFlow Federated takes, and its evaluation."""

import collections
import functools
from collections.abc import Callable, Sequence
from concurrent import futures

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.stackoverflow import networks
from experiments.stackoverflow.datasets import federated_text, vocabularies
from fl_dpftrl.support import machine
from tff_inprocess import memory

_EVALUATION_BATCH = 64
_PUBLIC_BATCH, _PUBLIC_RATE = 64, 3e-3


def token_losses(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
  """Cross entropy of each token, in nats."""
  if tf.config.list_physical_devices('GPU'):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
  return _token_losses(logits, targets)


@tf.custom_gradient
def _token_losses(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
  """Computes exponentials once, for losses and gradient."""
  # TensorFlow's takes twice the time on a processor; on a GPU this one would be slow.
  flat, ids = tf.reshape(logits, [-1, logits.shape[-1]]), tf.reshape(targets, [-1])
  at_target = tf.stack([tf.range(tf.size(ids)), ids], axis=1)
  shifted = flat - tf.reduce_max(flat, axis=1, keepdims=True)
  exponentials = tf.exp(shifted)
  sums = tf.reduce_sum(exponentials, axis=1)
  losses = tf.math.log(sums) - tf.gather_nd(shifted, at_target)

  def gradient(upstream):
    upstream = tf.reshape(upstream, [-1])
    by_logit = exponentials * (upstream / sums)[:, tf.newaxis]
    by_logit = tf.tensor_scatter_nd_sub(by_logit, at_target, upstream)
    return tf.reshape(by_logit, tf.shape(logits)), None

  return tf.reshape(losses, tf.shape(targets)), gradient


def masked_loss(logits: tf.Tensor, targets: tf.Tensor, pad: int) -> tf.Tensor:
  """Mean cross entropy over the targets that are not padding, in nats."""
  # In TFF's graphs `!=` would compare the tensor objects.
  mask = tf.cast(tf.not_equal(targets, pad), tf.float32)
  losses = token_losses(logits, targets)
  return tf.math.divide_no_nan(tf.reduce_sum(losses * mask), tf.reduce_sum(mask))


def build(
  network: networks.Network,
  vocabulary: vocabularies.Vocabulary,
  *,
  length: int,
  seed: int,
  initial_weights: Sequence[np.ndarray] | None = None,
  with_accuracy: bool = False,
) -> tff.learning.models.FunctionalModel:
  """The model for `tff.learning.algorithms.build_unweighted_fed_avg`.

  A functional model starts faster on each client than one with variables. Its one training metric
  is `loss`, the mean over the tokens that clients trained on; with_accuracy has `accuracy` too, of
  the words that `evaluate` counts, before each step.
  """
  if network.num_tokens != vocabulary.size:
    raise ValueError(
      f'network must have num_tokens={vocabulary.size} for this vocabulary,'
      f' got {network.num_tokens}'
    )

  # AutoGraph has nothing to convert here, and takes a while to see it.
  @tf.function(autograph=False)
  def predict(weights, tokens, training):
    del training  # There is no dropout.
    return network.logits(weights[0], tokens)

  @tf.autograph.experimental.do_not_convert
  def loss(logits, targets, sample_weight=None):
    del sample_weight
    return masked_loss(logits, targets, vocabulary.pad)

  @tf.function(autograph=False)
  def initialize_metrics():
    state = collections.OrderedDict(total_loss=0.0, num_tokens=0.0)
    return state | ({'num_words': 0.0, 'num_hits': 0.0} if with_accuracy else {})

  @tf.function(autograph=False)
  def update_metrics(state, labels, batch_output, sample_weight=None):
    del sample_weight
    tokens = tf.reduce_sum(tf.cast(tf.not_equal(labels, vocabulary.pad), tf.float32))
    updated = collections.OrderedDict(
      total_loss=state['total_loss'] + batch_output.loss * tokens,
      num_tokens=state['num_tokens'] + tokens,
    )
    if with_accuracy:
      special = (vocabulary.pad, vocabulary.eos, vocabulary.oov)
      mask = tf.reduce_all([tf.not_equal(labels, token) for token in special], axis=0)
      best = tf.argmax(batch_output.predictions, axis=-1, output_type=tf.int32)
      for name, counted in (('num_words', mask), ('num_hits', mask & tf.equal(best, labels))):
        updated[name] = state[name] + tf.reduce_sum(tf.cast(counted, tf.float32))
    return updated

  @tf.function(autograph=False)
  def finalize_metrics(state):
    metrics = collections.OrderedDict(
      loss=tf.math.divide_no_nan(state['total_loss'], state['num_tokens'])
    )
    if with_accuracy:
      metrics['accuracy'] = tf.math.divide_no_nan(state['num_hits'], state['num_words'])
    return metrics

  tokens = tf.TensorSpec([None, length], tf.int32)
  if initial_weights is None:
    initial_weights = network.initial_weights(seed)
  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(initial_weights), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    metrics_fns=(initialize_metrics, update_metrics, finalize_metrics),
    input_spec=(tokens, tokens),
  )


@functools.lru_cache(maxsize=2)
def _predict(
  network: networks.Network, shapes: tuple[tf.TensorShape, ...], width: int
) -> Callable[[list[tf.Tensor], np.ndarray], tuple[tf.Tensor, tf.Tensor]]:
  """Compiles (weights, rows) → losses and hits; once for all evaluations of a run."""

  @tf.function(
    input_signature=[
      [tf.TensorSpec(shape, tf.float32) for shape in shapes],
      tf.TensorSpec([None, width], tf.int32),
    ],
    autograph=False,
  )
  def predict(weights, batch):
    logits = network.logits(weights, batch[:, :-1])
    targets = batch[:, 1:]
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return token_losses(logits, targets), tf.equal(best, targets)

  return predict


def predicted(
  network: networks.Network, weights: Sequence[np.ndarray], rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns loss, in nats, and hit of each target of rows: [number of rows, length] each."""
  rows = rows.astype(np.int32)
  weights = [tf.convert_to_tensor(weight) for weight in weights]
  predict = _predict(network, tuple(weight.shape for weight in weights), rows.shape[1])
  part = lambda i: [a.numpy() for a in predict(weights, rows[i : i + _EVALUATION_BATCH])]
  num_threads = 1 if memory.uses_one_dnn() else machine.cores()
  with futures.ThreadPoolExecutor(num_threads) as pool:
    losses, hits = zip(*pool.map(part, range(0, len(rows), _EVALUATION_BATCH)))
  return np.concatenate(losses), np.concatenate(hits)


def evaluate(
  network: networks.Network,
  weights: Sequence[np.ndarray],
  rows: np.ndarray,
  vocabulary: vocabularies.Vocabulary,
) -> dict[str, float]:
  """Loss and accuracies on held-out sentences, without federation.

  Returns:
    `loss`, the mean over all tokens but padding, and the accuracies of
    `vocabulary.masks`, each a fraction; NaN where no target counts.
  """
  losses, hits = predicted(network, weights, rows)
  targets = rows[:, 1:]
  result = {'loss': float(losses[targets != vocabulary.pad].mean())}
  for name, mask in vocabulary.masks(targets).items():
    result[name] = float(hits[mask].mean())
  return result


def learnt_from_public_text(
  network: networks.Network, dataset: federated_text.Dataset, *, epochs: int, seed: int
) -> tuple[np.ndarray, ...]:
  """Returns the weights that Adam learns from public text: the same for the same arguments."""
  rows = dataset.public
  batch = min(_PUBLIC_BATCH, len(rows))
  num_steps = epochs * (len(rows) // batch)
  optimizer = tff.learning.optimizers.schedule_learning_rate(
    tff.learning.optimizers.build_adam(_PUBLIC_RATE),
    lambda step: _PUBLIC_RATE * (1.0 - tf.cast(step, tf.float32) / num_steps),
  )

  @tf.function(autograph=False)
  def step(state, values, rows):
    with tf.GradientTape() as tape:
      tape.watch(values)
      logits = network.logits(values, rows[:, :-1])
      loss = masked_loss(logits, rows[:, 1:], dataset.vocabulary.pad)
    return optimizer.next(state, values, tape.gradient(loss, values))

  values = tuple(tf.constant(weight) for weight in network.initial_weights(seed))
  state = tf.nest.map_structure(tf.convert_to_tensor, optimizer.initialize(values))
  generator = np.random.default_rng(seed)
  for _ in range(epochs):
    order = generator.permutation(len(rows))
    for start in range(0, len(rows) - batch + 1, batch):
      state, values = step(state, values, tf.constant(rows[order[start : start + batch]]))
  return tuple(value.numpy() for value in values)
