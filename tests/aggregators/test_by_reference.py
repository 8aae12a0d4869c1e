"""The aggregator that reads its rows, at work inside TFF."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import factory
from fl_dpftrl.families import blt, identity, tree_online
from fl_dpftrl.noise import engine
from fl_dpftrl.noise.engine import draws
from fl_dpftrl.noise.engine import server as servers

pytestmark = pytest.mark.tff

SIZE = 30_003
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    w=tff.TensorType(np.float32, [SIZE // 100, 100]), b=tff.TensorType(np.float32, [3])
  )
)
BLT = blt.BLT((0.9, 0.5), (0.3, 0.2))


def serve(folder, strategy=BLT, **kwargs):
  kwargs = dict(size=SIZE, num_rounds=9, stddev=1.5, noise_seed=5) | kwargs
  return engine.RowServer(strategy, folder, **kwargs)


def make(rows, **kwargs):
  kwargs = dict(noise_multiplier=0.5, clip_norm=3.0, report_goal=4) | kwargs
  return factory.CorrelatedNoiseFactory(rows.strategy, memory=rows, **kwargs)


def update(value):
  b = np.array([value, 0.0, 0.0], np.float32)
  w = np.zeros([SIZE // 100, 100], np.float32)
  return collections.OrderedDict(w=w, b=b)


@pytest.fixture
def rows(tmp_path):
  server = serve(tmp_path / 'rows')
  yield server
  server.close()


@pytest.mark.parametrize(
  'strategy',
  [identity.Identity(), BLT, tree_online.TreeOnline()],
  ids=lambda strategy: strategy.family,
)
def test_releases_the_sum_with_the_served_row(tmp_path, strategy):
  rows = serve(tmp_path, strategy)
  process = make(rows).create(VALUE_TYPE)
  maker = engine.RowMaker(strategy, size=SIZE, num_rounds=9, stddev=1.5, seed=draws.fixed_seed(5))
  row, state = np.empty(SIZE, np.float32), process.initialize()
  norms = np.linalg.norm(strategy.noising_matrix(4), axis=1)
  for t in range(4):
    rows.serve(t)
    output = process.next(state, [update(2.0), update(9.0)])
    stddev = maker.make(row)
    state, result = output.state, output.result
    # Clipped to 3 and summed with 2, over the report goal.
    # Tensors follow one another by name.
    expected = (row[:3] + [5.0, 0.0, 0.0]) / 4
    np.testing.assert_allclose(result['b'], expected, atol=1e-6)
    np.testing.assert_array_equal(result['w'].ravel(), row[3:] / 4)
    assert output.measurements['noise_row'] == t
    assert output.measurements['noise_stddev'] == pytest.approx(1.5 * norms[t])
    assert stddev == pytest.approx(1.5 * norms[t])
  rows.close()


@pytest.mark.slow
def test_noise_is_that_of_the_aggregator_inside_tff_in_distribution(rows):
  """Covariances of rows, which are all that a Gaussian has, for both."""
  inside = factory.CorrelatedNoiseFactory(BLT, noise_multiplier=0.5, clip_norm=3.0, report_goal=4)
  noising = 1.5 / 4 * BLT.noising_matrix(3)
  expected = noising @ noising.T
  spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / SIZE)
  for aggregator, serve_row in ((make(rows), rows.serve), (inside, int)):
    process = aggregator.create(VALUE_TYPE)
    state, noise = process.initialize(), []
    for t in range(3):
      serve_row(t)
      output = process.next(state, [update(0.0)])
      state = output.state
      noise.append(np.concatenate([v.ravel() for v in output.result.values()]))
    found = np.array(noise) @ np.array(noise).T / SIZE
    assert (np.abs(found - expected) < 5 * spread).all()
    for wrong in (2 / 3, 1.5):
      assert (np.abs(found - wrong**2 * expected) > 5 * spread).any()


@pytest.mark.slow
def test_skipping_a_row_leads_to_the_next_one(rows):
  aggregator = make(rows)
  process, skip = aggregator.create(VALUE_TYPE), aggregator.skip_row(VALUE_TYPE)
  start = process.initialize()
  rows.serve(0)
  after = process.next(start, [update(0.5)]).state
  skipped = skip(skip(start))
  assert skip(start).noise.row == after.noise.row == 1
  assert skip(start).noise.identity == after.noise.identity == rows.identity
  rows.serve(2)
  assert process.next(skipped, [update(0.5)]).measurements['noise_row'] == 2


@pytest.mark.slow
def test_a_state_of_another_row_or_other_noise_is_refused(rows, tmp_path):
  process = make(rows).create(VALUE_TYPE)
  start = process.initialize()
  clients = [update(0.5)]
  with pytest.raises(Exception, match='No such file'):
    process.next(start, clients)
  rows.serve(0)
  after = process.next(start, clients).state
  rows.serve(1)
  # The first row is gone: no second sum gets it.
  with pytest.raises(Exception, match='No such file'):
    process.next(start, clients)
  other = after._replace(noise=after.noise._replace(identity=after.noise.identity + 1))
  with pytest.raises(Exception, match='not the row of this round'):
    process.next(other, clients)
  path = rows.folder / servers.row_name(1)
  content = path.read_bytes()
  # A row under another's name, and half a row.
  (rows.folder / servers.row_name(5)).write_bytes(content)
  renamed = after._replace(noise=after.noise._replace(row=np.int64(5)))
  with pytest.raises(Exception, match='not the row of this round'):
    process.next(renamed, clients)
  path.write_bytes(content[:-8])
  with pytest.raises(Exception, match='file of a row is damaged'):
    process.next(after, clients)
  path.write_bytes(content)
  assert process.next(after, clients).measurements['noise_row'] == 1


def test_state_is_a_few_numbers_whatever_the_strategy(rows):
  state = make(rows).create(VALUE_TYPE).initialize()
  leaves = tf.nest.flatten(state)
  assert len(leaves) == 7 and all(np.ndim(leaf) == 0 for leaf in leaves)


@pytest.mark.parametrize(
  'argument, message',
  [
    (dict(noise_multiplier=0.6), 'standard deviation of 1.79'),
    (dict(noise_seed=3), 'give noise_seed to the rows'),
    (dict(clip_norm=-1.0), 'clip_norm must be'),
  ],
)
def test_refuses(rows, argument, message):
  with pytest.raises(ValueError, match=message):
    make(rows, **argument)


def test_refuses_rows_of_another_strategy_or_size(rows):
  with pytest.raises(ValueError, match='rows must be of the strategy'):
    factory.CorrelatedNoiseFactory(
      tree_online.TreeOnline(), memory=rows, noise_multiplier=0.5, clip_norm=3.0, report_goal=4
    )
  small = tff.TensorType(np.float32, [7])
  with pytest.raises(ValueError, match='30003 coordinates, and the model has 7'):
    make(rows).create(small)
