import collections

import numpy as np
import pytest
import tensorflow as tf

from fl_dpftrl.families import banded, blt, identity, tree_full
from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.noise import graph, reference
from fl_dpftrl.noise import stream as streams

pytestmark = pytest.mark.tff

# Names out of order, a scalar and an empty tensor: packing must get them right.
TEMPLATE = collections.OrderedDict(
  weights=tf.TensorSpec([2, 3], tf.float32),
  bias=[tf.TensorSpec([], tf.float32), tf.TensorSpec([0], tf.float32)],
)
SIZE = 7


def table(z):
  """A draw that reads Z, one flat row at a time."""

  def draw(seed, row, specs):
    del seed
    sizes = [spec.shape.num_elements() for spec in specs]
    parts = tf.split(tf.gather(tf.constant(z, tf.float32), row), sizes)
    return [tf.reshape(p, spec.shape) for p, spec in zip(parts, specs)]

  return draw


def flat(row):
  return np.concatenate([np.ravel(part) for part in tf.nest.flatten(row)])


def rows(stream, num_rounds, state=None, next_fn=None):
  state = stream.init() if state is None else state
  result, stddevs = [], []
  for _ in range(num_rounds):
    row, state = (next_fn or stream.next)(state)
    result.append(flat(row))
    stddevs.append(float(state.row_stddev))
  return np.stack(result), np.array(stddevs), state


@pytest.mark.slow
@pytest.mark.parametrize('num_rounds', [1, 2, 7, 19])
def test_equals_the_reference_given_the_same_z(example, num_rounds):
  strategy = example(num_rounds)
  width = strategy.num_noise_rows(num_rounds)
  z = np.random.default_rng(0).normal(size=(width, SIZE))
  stream = streams.make_stream(strategy, TEMPLATE, stddev=0.5, draw=table(z))
  streamed, stddevs, state = rows(stream, num_rounds)
  expected_stream = reference.reference_stream(strategy, 0.5 * z)
  expected, expected_state = [], expected_stream.init()
  for _ in range(num_rounds):
    row, expected_state = expected_stream.next(expected_state)
    expected.append(row)
  np.testing.assert_allclose(streamed, expected, rtol=1e-5, atol=2e-6)
  norms = np.linalg.norm(strategy.noising_matrix(num_rounds), axis=1)
  np.testing.assert_allclose(stddevs, 0.5 * norms, rtol=1e-6)
  assert int(state.row) == num_rounds


def test_row_has_the_structure_of_the_template():
  stream = streams.make_stream(identity.Identity(), TEMPLATE, stddev=1.0)
  row, _ = stream.next(stream.init())
  assert list(row) == ['weights', 'bias']
  tf.nest.map_structure(
    lambda part, spec: spec.shape.assert_is_compatible_with(part.shape), row, TEMPLATE
  )


@pytest.mark.slow
def test_graph_and_eager_give_the_same_bits(example):
  stream = streams.make_stream(example(9), TEMPLATE, stddev=1.0, noise_seed=7)
  eager, _, eager_state = rows(stream, 9)
  graph, _, graph_state = rows(stream, 9, next_fn=tf.function(stream.next, reduce_retracing=True))
  np.testing.assert_array_equal(eager, graph)
  tf.nest.map_structure(np.testing.assert_array_equal, eager_state, graph_state)


@pytest.mark.slow
def test_every_start_has_a_secret_seed_of_its_own():
  stream = streams.make_stream(identity.Identity(), TEMPLATE, stddev=1.0)
  init = tf.function(stream.init)
  seeds = [init().seed, init().seed, stream.init().seed, stream.init().seed]
  assert len(np.unique(seeds)) == 8


@pytest.mark.slow
def test_resumes_from_numpy_state_with_the_same_bits(example):
  stream = streams.make_stream(example(9), TEMPLATE, stddev=1.0, noise_seed=7)
  whole, _, _ = rows(stream, 9)
  _, _, state = rows(stream, 4)
  state = tf.nest.map_structure(lambda part: np.asarray(part), state)
  rest, _, _ = rows(stream, 5, state=state)
  np.testing.assert_array_equal(rest, whole[4:])


@pytest.mark.slow
def test_keeps_the_vectors_that_the_strategy_says(example):
  for num_rounds in (1, 6, 17):
    strategy = example(num_rounds)
    spec = tf.TensorSpec([100], tf.float32)
    stream = streams.make_stream(strategy, [spec], stddev=1.0)
    state, most = stream.init(), 0
    for _ in range(num_rounds):
      _, state = stream.next(state)
      kept = sum(part.shape[0] for part in state.buffers.vectors)
      assert kept <= strategy.memory_copies(num_rounds)
      most = max(most, kept)
    if not isinstance(strategy, (tree.TreeOnline, tree_full.TreeFull)) and num_rounds > 1:
      assert most == strategy.memory_copies(num_rounds)


@pytest.mark.slow
def test_banded_stream_ends_with_its_strategy():
  stream = streams.make_stream(banded.Banded(np.ones((2, 1))), TEMPLATE, stddev=1.0)
  _, _, state = rows(stream, 2)
  for next_fn in (stream.next, tf.function(stream.next)):
    with pytest.raises(tf.errors.InvalidArgumentError, match='for 2 rounds has no noise'):
      next_fn(state)


def test_tree_goes_on_past_a_million_rounds():
  # Round 2**20 + 2**10 - 1 finishes a node of height 10 above 10 pending ones.
  spec = tf.TensorSpec([2000], tf.float32)
  stream = streams.make_stream(tree.TreeOnline(), [spec], stddev=1.0, noise_seed=1)
  t = 2**20 + 2**10 - 1
  pending = np.zeros((t.bit_count(), 2000), np.float32)
  used = tf.constant(tree.first_node(t), tf.int64)
  buffers = graph.Buffers(vectors=[pending], drawn=used)
  state = stream.init()._replace(row=tf.constant(t, tf.int64), buffers=buffers)
  (row,), state = stream.next(state)
  assert state.buffers.vectors[0].shape == [2, 2000]
  # Only the noise of the round itself is left: (share × weight)² for each node.
  weights = np.array([tree.own_weight(h) for h in range(10, -1, -1)])
  shares = np.cumprod([1.0, *(1.0 - weights[:-1])])
  expected = np.sqrt(np.sum((shares * weights) ** 2))
  assert abs(np.std(row) / expected - 1.0) < 4.0 / np.sqrt(2 * 2000)


@pytest.mark.slow
def test_slow_decay_survives_float32():
  decay, num_rounds = 1.0 - 1.6e-5, 2000
  wrong = float(np.float32(decay)) ** num_rounds
  assert abs(wrong / decay**num_rounds - 1.0) > 4e-5
  # With nothing added, buffers only decay.
  spec = tf.TensorSpec([1000], tf.float32)
  next_fn = graph.recurrence(blt.BLT((decay,), (0.0,)), [spec]).next
  start = np.random.default_rng(0).uniform(1, 2, (1, 1000)).astype(np.float32)
  nothing = [tf.zeros([1000])]
  double = lambda shape: tf.zeros(shape, tf.float64)

  @tf.function
  def run():
    buffers = graph.Buffers([tf.constant(start)], (), double([1]), double([]))
    for t in tf.range(num_rounds, dtype=tf.int64):
      _, _, buffers = next_fn(lambda _: nothing, t, buffers)
    return buffers.vectors[0]

  left = np.mean(run().numpy() / start.astype(np.float64))
  assert abs(left / decay**num_rounds - 1.0) < 5e-6


@pytest.mark.slow
def test_no_noise_stays_exactly_zero(example):
  stream = streams.make_stream(example(9), TEMPLATE, stddev=0.0)
  streamed, stddevs, _ = rows(stream, 9)
  assert not streamed.any() and not stddevs.any()


@pytest.mark.parametrize('stddev', [-1.0, float('nan'), float('inf'), 1e39])
def test_refuses_impossible_standard_deviations(stddev):
  with pytest.raises(ValueError, match='stddev must be at least 0'):
    streams.make_stream(identity.Identity(), TEMPLATE, stddev=stddev)


@pytest.mark.parametrize(
  'template, message',
  [
    ([tf.TensorSpec([2], tf.int32)], 'of type int32'),
    ([tf.TensorSpec([2], tf.float64)], 'of type float64'),
    ([tf.TensorSpec([None], tf.float32)], r'shape \(None,\)'),
    ([], r'no tensors: \[\]'),
  ],
)
def test_refuses_templates(template, message):
  with pytest.raises(ValueError, match=message):
    streams.make_stream(identity.Identity(), template, stddev=1.0)


def test_refuses_other_seeds():
  with pytest.raises(ValueError, match='noise_seed must be .* got str'):
    streams.make_stream(identity.Identity(), TEMPLATE, stddev=1.0, noise_seed='1')


def test_strategy_without_stream_is_named():
  with pytest.raises(ValueError, match='no noise stream: 3'):
    streams.make_stream(3, TEMPLATE, stddev=1.0)
