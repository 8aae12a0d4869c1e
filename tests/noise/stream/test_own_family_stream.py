"""The noise of families of a user's own: C and N alone, or with a linear step."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import factory
from fl_dpftrl.families import base, dense, identity, linear_noise, stamped, tree_online
from fl_dpftrl.noise import reference
from fl_dpftrl.noise import rows as rows_lib
from fl_dpftrl.noise import stream as streams

pytestmark = pytest.mark.tff

SPEC = [tf.TensorSpec([3], tf.float32)]
ROUNDS = 7


@dataclasses.dataclass(frozen=True)
class Own(base.Strategy):
  """C[t, j] = 0.6^(t − j)."""

  max_rounds: int | None = ROUNDS
  family = 'own'

  def strategy_matrix(self, num_rounds):
    return np.linalg.inv(self.noising_matrix(num_rounds))

  def noising_matrix(self, num_rounds):
    return np.eye(num_rounds) - 0.6 * np.eye(num_rounds, k=-1)


@dataclasses.dataclass(frozen=True)
class Moving(Own):
  """Row t is z[t] + ¾ z[t − 1] − ½ times the row before − ¼ times that before it.

  The steps take rows of Z of earlier rounds and drop buffers, both at once.
  """

  max_rounds: int | None = None
  wrong = None

  def strategy_matrix(self, num_rounds):
    return np.linalg.inv(self.noising_matrix(num_rounds))

  def noising_matrix(self, num_rounds):
    shift = lambda by: np.eye(num_rounds, k=-by)
    left = shift(0) + 0.5 * shift(1) + 0.25 * shift(2)
    return np.linalg.solve(left, shift(0) + 0.75 * shift(1))

  def noise(self, num_rounds=None):
    norms = np.linalg.norm(self.noising_matrix(60), axis=1)

    def step(t):
      return linear_noise.Step(
        draws=(0.75, 1.0) if t else (1.0,),
        earlier=min(t, 1),
        below=[0.5, 0.25],
        update=linear_noise.Push(),
        norm=norms[t] + (self.wrong == 'norm'),
      )

    settles = 0 if self.wrong == 'settles' else 59
    return linear_noise.LinearNoise(2, step, period=1, settles=settles)


class Tall(Own):
  """A family with as many rows of Z as a tree, and defaults alone."""

  def num_noise_rows(self, num_rounds):
    return tree_online.TreeOnline().num_noise_rows(num_rounds)

  def strategy_matrix(self, num_rounds):
    return tree_online.TreeOnline().strategy_matrix(num_rounds)

  def noising_matrix(self, num_rounds):
    return tree_online.TreeOnline().noising_matrix(num_rounds)


def rows_of(strategy, num_rounds):
  stream = streams.make_stream(strategy, SPEC, stddev=1.5, noise_seed=3)
  next_fn, state = tf.function(stream.next), stream.init()
  if not strategy.memory_copies(num_rounds):
    assert not tf.nest.flatten(state.buffers.vectors)
  rows, stddevs = [], []
  for _ in range(num_rounds):
    (row,), state = next_fn(state)
    rows.append(row.numpy())
    stddevs.append(float(state.row_stddev))
  return np.array(rows), stddevs


@pytest.mark.slow
@pytest.mark.parametrize(
  'strategy',
  [Own(), Tall(), Moving(), stamped.Stamped(Moving(), 3)],
  ids=['own', 'tall', 'moving', 'stamped'],
)
def test_every_executor_makes_rows_of_n_times_z(strategy):
  noising = strategy.noising_matrix(ROUNDS)
  z, _ = rows_of(identity.Identity(), noising.shape[1])
  rows, stddevs = rows_of(strategy, ROUNDS)
  np.testing.assert_allclose(rows, noising @ z, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(stddevs, 1.5 * np.linalg.norm(noising, axis=1), rtol=1e-6)
  stream = reference.reference_stream(strategy, z)
  state = stream.init()
  for expected in noising @ z:
    row, state = stream.next(state)
    np.testing.assert_allclose(row, expected)
  with pytest.raises(ValueError, match='num_rounds|is needed'):
    stream.next(state)


@pytest.mark.parametrize(
  'strategy',
  [Own(), Tall(), Moving(), stamped.Stamped(Moving(), 3)],
  ids=['own', 'tall', 'moving', 'stamped'],
)
def test_the_engine_makes_the_same_rows_of_its_own_z(strategy):
  def rows(strategy, count):
    made = rows_lib.RowMaker(strategy, size=5, num_rounds=count, stddev=1.0, seed=bytes(16))
    out = np.zeros((count, 5), np.float32)
    for row in out:
      made.make(row)
    return out

  np.testing.assert_allclose(
    rows(strategy, ROUNDS),
    strategy.noising_matrix(ROUNDS) @ rows(identity.Identity(), strategy.num_noise_rows(ROUNDS)),
    rtol=1e-5,
    atol=1e-6,
  )


@pytest.mark.slow
@pytest.mark.parametrize('strategy', [Own(), Moving()], ids=['own', 'moving'])
def test_the_aggregator_takes_it(strategy):
  process = factory.CorrelatedNoiseFactory(
    strategy, noise_multiplier=1.0, clip_norm=1.0, report_goal=2
  ).create(tff.to_type(collections.OrderedDict(w=tff.TensorType(np.float32, [4]))))
  state = process.initialize()
  for _ in range(2):
    clients = [collections.OrderedDict(w=np.zeros(4, np.float32))] * 2
    output = process.next(state, clients)
    state = output.state
    assert np.isfinite(output.result['w']).all() and output.result['w'].any()


@pytest.mark.slow
def test_dense_makes_the_rows_of_its_inverse():
  matrix = np.tri(ROUNDS) + np.eye(ROUNDS)
  z, _ = rows_of(identity.Identity(), ROUNDS)
  rows, _ = rows_of(dense.Dense(matrix), ROUNDS)
  np.testing.assert_allclose(matrix @ rows, z, rtol=1e-5, atol=1e-5)


def test_a_family_without_a_last_round_is_refused():
  with pytest.raises(ValueError, match='max_rounds'):
    streams.make_stream(Own(None), SPEC, stddev=1.0)


@pytest.mark.parametrize('wrong, message', [('norm', 'other norms'), ('settles', 'does not undo')])
def test_steps_that_make_other_rows_are_refused(wrong, message):
  class Wrong(Moving):
    pass

  Wrong.wrong = wrong
  with pytest.raises(ValueError, match=message):
    streams.make_stream(Wrong(), SPEC, stddev=1.0)
  with pytest.raises(ValueError, match=message):
    rows_lib.RowMaker(Wrong(), size=5, num_rounds=3, stddev=1.0, seed=bytes(16))


def test_noise_that_the_sensitivity_is_not_of_is_refused():
  """With N = 0.1 C⁻¹ the noise would be a tenth of what is accounted for."""

  class Quiet(Own):
    def noising_matrix(self, num_rounds):
      return 0.1 * super().noising_matrix(num_rounds)

    def strategy_matrix(self, num_rounds):
      return np.linalg.inv(super().noising_matrix(num_rounds))

  assert Quiet().gram_matrix(3)[2, 2] == pytest.approx(1.0)
  with pytest.raises(ValueError, match='does not undo'):
    streams.make_stream(Quiet(), SPEC, stddev=1.0)
  with pytest.raises(ValueError, match='does not undo'):
    rows_lib.RowMaker(Quiet(), size=5, num_rounds=3, stddev=1.0, seed=bytes(16))
