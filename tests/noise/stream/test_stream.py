"""Rows of noise in TensorFlow are those of the reference, on the same lattice."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms.families import banded, dense, identity, low_rank, stamped
from fl_dpftrl.mechanisms.families import tree_online as tree
from fl_dpftrl.noise import graph
from fl_dpftrl.noise import stream as streams
from tests import every_family, made, oracle
from tests.noise import joint_law, plain

pytestmark = pytest.mark.tff

# Names out of order, a scalar and an empty tensor: packing must get them right.
TEMPLATE = collections.OrderedDict(
  weights=tf.TensorSpec([2, 3], tf.int64),
  bias=[tf.TensorSpec([], tf.int64), tf.TensorSpec([0], tf.int64)],
)
SIZE = 7
SPEC = [tf.TensorSpec([3], tf.int64)]


def table(normals):
  """A draw that reads the normals of each round, one flat row at a time."""

  def draw(seed, row, specs):
    del seed
    sizes = [spec.shape.num_elements() for spec in specs]
    parts = tf.split(tf.gather(tf.constant(normals), row), sizes)
    return [tf.reshape(p, spec.shape) for p, spec in zip(parts, specs)]

  return draw


def flat(row):
  return np.concatenate([np.ravel(part) for part in tf.nest.flatten(row)])


def rows(stream, num_rounds, state=None, next_fn=None):
  state = stream.init() if state is None else state
  result, norms = [], []
  for _ in range(num_rounds):
    row, state = (next_fn or stream.next)(state)
    result.append(flat(row))
    norms.append(float(state.row_stddev))
  return np.stack(result), np.array(norms), state


def assert_is_the_reference(strategy, num_rounds, in_graph=False):
  drawn = np.random.default_rng(0).normal(size=(num_rounds, SIZE))
  stream = streams.make_stream(strategy, TEMPLATE, draw=table(drawn))
  next_fn = tf.function(stream.next, reduce_retracing=True) if in_graph else None
  streamed, norms, state = rows(stream, num_rounds, next_fn=next_fn)
  fresh = lambda t, scale: np.rint(scale * drawn[t]).astype(np.int64)
  reference_rows = plain.stream(strategy, num_rounds, SIZE, fresh)
  # The order of a sum in float64 may decide about half a unit.
  assert np.abs(streamed - oracle.rows(reference_rows, num_rounds)).max() <= 1
  expected = np.linalg.norm(strategy.noising_matrix(num_rounds), axis=1)
  np.testing.assert_allclose(norms, expected, rtol=1e-9)
  assert int(state.row) == num_rounds


@pytest.mark.slow
@pytest.mark.parametrize('num_rounds', [1, 7])
def test_equals_the_reference_given_the_same_normals(example, num_rounds):
  assert_is_the_reference(example(num_rounds), num_rounds)


# No buffers, a fixed number, and as many as the row needs; --thorough has every family.
@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(n, marks=[] if n in ('identity', 'blt', 'tree_online') else pytest.mark.thorough)
    for n in every_family.NAMES
  ],
)
def test_every_family_can_be_stamped(name):
  strategy = stamped.Stamped(every_family.example(name, 3), 3)
  assert_is_the_reference(strategy, 19, in_graph=True)


@pytest.mark.slow
@pytest.mark.parametrize('name', every_family.FAMILIES)
def test_releases_are_as_private_as_one_gaussian(name):
  """If its normals are: what they are rounded to is not proven."""
  strategy = every_family.example(name, 2)

  def executor(strategy, num_rounds, size, fresh, *, bits):
    spreads = [abs(row.spread) * 2.0**bits for row in joint_law.lattice.rows(strategy, num_rounds)]
    drawn = []
    noise_stream = streams.make_stream(
      strategy,
      [tf.TensorSpec([size], tf.int64)],
      draw=lambda seed, t, specs: [tf.constant(drawn[int(t)])],
      bits=bits,
    )

    def next_fn(state):
      t = int(state.row)
      drawn[t:] = [fresh(t, spreads[t]) / spreads[t]]
      (row,), state = noise_stream.next(state)
      return row.numpy(), state

    return plain.Stream(noise_stream.init, next_fn, None)

  for this, other, mu in joint_law.pairs(strategy, 2, -2, 3):
    assert joint_law.worst_ratio(strategy, 2, -2, this, other, mu, executor) <= 1.0


@pytest.mark.slow
# No buffers, a fixed number, and as many as the row needs.
@pytest.mark.parametrize('family', ['identity', 'blt', 'tree_online'])
def test_a_graph_that_resumes_from_numpy_gives_the_bits_of_eager_rows(family):
  stream = streams.make_stream(every_family.example(family, 9), TEMPLATE, noise_seed=7)
  eager, _, eager_state = rows(stream, 9)
  in_graph = tf.function(stream.next, reduce_retracing=True)
  first, _, state = rows(stream, 4, next_fn=in_graph)
  state = tf.nest.map_structure(lambda part: np.asarray(part), state)
  rest, _, graph_state = rows(stream, 5, state, in_graph)
  np.testing.assert_array_equal(np.concatenate([first, rest]), eager)
  tf.nest.map_structure(np.testing.assert_array_equal, eager_state, graph_state)


@pytest.mark.slow
def test_every_start_has_a_secret_seed_of_its_own():
  stream = streams.make_stream(identity.Identity(), TEMPLATE)
  init = tf.function(stream.init)
  seeds = [init().seed, init().seed, stream.init().seed, stream.init().seed]
  assert len(np.unique(seeds)) == 8


@pytest.mark.slow
@made.cases(
  'strategy',
  dense.Dense(np.eye(2)),
  banded.Banded(np.ones((2, 1))),
  low_rank.LowRank(np.ones((2, 1)), np.ones((2, 1)), np.ones((2, 1))),
  ids=['dense', 'banded', 'low_rank'],
)
def test_streams_end_with_their_strategy(strategy):
  stream = streams.make_stream(strategy, SPEC)
  state = stream.init()
  for _ in range(2):
    _, state = stream.next(state)
  for next_fn in (stream.next, tf.function(stream.next)):
    with pytest.raises(tf.errors.InvalidArgumentError, match='for 2 rounds has no noise'):
      next_fn(state)


def test_tree_goes_on_past_a_million_rounds():
  # Round 2**20 + 2**10 - 1 finishes a node of height 10 above 10 pending ones.
  stream = streams.make_stream(tree.TreeOnline(), [tf.TensorSpec([2000], tf.int64)], noise_seed=1)
  t = 2**20 + 2**10 - 1
  pending = np.zeros((t.bit_count(), 2000))
  state = stream.init()._replace(
    row=tf.constant(t, tf.int64), buffers=graph.Buffers(vectors=[pending])
  )
  (row,), state = stream.next(state)
  assert state.buffers.vectors[0].shape == [2, 2000]
  # Only the noise of the round itself is left: (share × weight)² for each node.
  weights = np.array([tree.node_weight(h) for h in range(10, -1, -1)])
  shares = np.cumprod([1.0, *(1.0 - weights[:-1])])
  expected = 2.0**34 * np.sqrt(np.sum((shares * weights) ** 2))
  assert abs(np.std(row) / expected - 1.0) < 4.0 / np.sqrt(2 * 2000)


def test_refuses_other_seeds_and_strategies():
  with pytest.raises(ValueError, match='noise_seed must be .* got str'):
    lattice_units.checked('noise_seed', '1')
  with pytest.raises(ValueError, match='must be a Strategy, got 3'):
    streams.make_stream(3, TEMPLATE)
