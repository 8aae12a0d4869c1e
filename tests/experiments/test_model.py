import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from experiments.stackoverflow import datasets, networks, training_model

pytestmark = pytest.mark.tff


@pytest.fixture(scope='module', autouse=True)
def _in_process():
  with tff.framework.get_context_stack().install(tff_inprocess.InProcessContext(seed=0)):
    yield


@pytest.fixture(name='data', scope='module')
def _data():
  return datasets.load('synthetic', seed=1)


@pytest.fixture(name='network', scope='module')
def _network(data):
  return networks.LogBilinear(num_tokens=data.vocabulary.size, embedding=16)


def _process(data, network, client_rate=1.0):
  return tff.learning.algorithms.build_unweighted_fed_avg(
    training_model.build(network, data.vocabulary, length=10, seed=0),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(client_rate),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
  )


@pytest.mark.parametrize('scale', [1.0, 1000.0])
def test_losses_and_their_gradient_are_those_of_tensorflow(scale, monkeypatch):
  draws = np.random.default_rng(5)
  logits = tf.constant(draws.normal(0, scale, (3, 4, 7)), tf.float32)
  targets = tf.constant(draws.integers(0, 7, (3, 4)), tf.int32)
  weights = tf.constant(draws.integers(0, 2, (3, 4)), tf.float32)
  found = []
  for losses in (
    training_model.token_losses,
    lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x),
  ):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      each = losses(logits, targets)
      weighted = tf.reduce_sum(weights * each)
    found.append((each, tape.gradient(weighted, logits)))
  for own, theirs in zip(*found, strict=True):
    np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-6)
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: [kind])
  np.testing.assert_array_equal(training_model.token_losses(logits, targets), found[1][0])


@pytest.mark.slow
def test_one_round_in_tff_equals_gradient_descent_by_hand(data, network):
  """Also that padding is masked in TFF's graphs, where `!=` would not do."""
  rows = data.sentences(data.train_clients[0])[:3].copy()
  rows[0, 4:] = rows[1, 7:] = data.vocabulary.pad
  process = _process(data, network, client_rate=0.5)
  batches = tf.data.Dataset.from_tensors((rows[:, :-1], rows[:, 1:]))
  output = process.next(process.initialize(), [batches])
  weights = [tf.Variable(w) for w in network.initial_weights(0)]
  with tf.GradientTape() as tape:
    logs = tf.nn.log_softmax(network.logits(weights, rows[:, :-1])).numpy()
    chosen = [(i, t) for i in range(3) for t in range(10) if rows[i, t + 1]]
    probabilities = tf.nn.log_softmax(network.logits(weights, rows[:, :-1]))
    loss = -tf.add_n([probabilities[i, t, rows[i, t + 1]] for i, t in chosen]) / len(chosen)
  assert len(chosen) == 3 + 6 + 10
  expected = -np.mean([logs[i, t, rows[i, t + 1]] for i, t in chosen])
  assert output.metrics['client_work']['train']['loss'] == pytest.approx(expected, rel=1e-5)
  gradients = tape.gradient(loss, weights)
  trained = process.get_model_weights(output.state).trainable
  for after, before, gradient in zip(trained, weights, gradients, strict=True):
    np.testing.assert_allclose(after, before - 0.5 * tf.convert_to_tensor(gradient), atol=1e-6)


def test_evaluation_counts_what_it_should(data, network):
  bias = np.zeros(data.vocabulary.size, np.float32)
  bias[data.unigram_token] = 2.0
  weights = [0 * w for w in network.initial_weights(0)[:2]] + [bias]
  rows = data.test[:70].copy()  # More than a batch.
  rows[::3, 5:] = data.vocabulary.pad
  rows[1::3, 2] = data.vocabulary.oov
  rows[2::3, 10] = data.vocabulary.eos
  result = training_model.evaluate(network, weights, rows, data.vocabulary)
  targets = rows[:, 1:]
  tokens = targets[targets != data.vocabulary.pad]
  words = tokens[tokens <= 30]
  logs = bias - np.log(np.exp(bias).sum())
  assert result['loss'] == pytest.approx(-logs[tokens].mean(), rel=1e-5)
  hits = (words == data.unigram_token).sum()
  assert result['accuracy'] == pytest.approx(hits / len(words))
  assert result['accuracy_no_oov_or_eos'] == result['accuracy']
  assert result['accuracy_with_oov'] == pytest.approx(hits / len(tokens))
  assert result['accuracy_no_oov'] == pytest.approx(hits / (tokens != data.vocabulary.oov).sum())


def test_network_and_vocabulary_must_agree(data):
  with pytest.raises(ValueError, match='num_tokens=34 .* got 5'):
    training_model.build(networks.LogBilinear(num_tokens=5), data.vocabulary, length=10, seed=0)
