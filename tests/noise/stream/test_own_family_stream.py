"""The noise of families of a user's own: C and N alone, or with a linear step."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from fl_dpftrl.mechanisms import base, linear_noise
from fl_dpftrl.mechanisms.families import stamped, tree_online
from fl_dpftrl.noise import integer_rows
from fl_dpftrl.noise import stream as streams
from tests import oracle
from tests.noise import plain, test_integer_rows

pytestmark = pytest.mark.tff

SPEC = [tf.TensorSpec([3], tf.int64)]
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
  """Row t is z[t] + ¾ z[t − 1] − ½ times the row before − ¼ times that before it."""

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
  """Rows of a graph, and of the reference for the same normals."""
  drawn = np.random.default_rng(3).normal(size=(num_rounds, 3))
  table = tf.constant(drawn)
  stream = streams.make_stream(strategy, SPEC, draw=lambda seed, t, specs: [tf.gather(table, t)])
  next_fn, state = tf.function(stream.next), stream.init()
  if not strategy.memory_copies(num_rounds):
    assert not tf.nest.flatten(state.buffers.vectors)
  fresh = lambda t, scale: np.rint(scale * drawn[t]).astype(np.int64)
  reference_rows = plain.stream(strategy, num_rounds, 3, fresh)
  rows, norms = [], []
  for _ in range(num_rounds):
    (row,), state = next_fn(state)
    rows.append(row.numpy())
    norms.append(float(state.row_stddev))
  return np.array(rows), oracle.rows(reference_rows, num_rounds), norms


@pytest.mark.slow
@pytest.mark.parametrize(
  'strategy',
  [Own(), Tall(), Moving(), stamped.Stamped(Moving(), 3)],
  ids=['own', 'tall', 'moving', 'stamped'],
)
def test_every_executor_makes_the_rows_of_the_noise(strategy):
  rows, expected, norms = rows_of(strategy, ROUNDS)
  assert np.abs(rows - expected).max() <= 1
  noising = strategy.noising_matrix(ROUNDS)
  np.testing.assert_allclose(norms, np.linalg.norm(noising, axis=1), rtol=1e-9)
  fresh = lambda t, scale: np.rint(scale * np.eye(ROUNDS)[t]).astype(np.int64)
  reference_rows = plain.stream(strategy, ROUNDS, ROUNDS, fresh)
  made = oracle.rows(reference_rows, ROUNDS) * 2.0**-34
  np.testing.assert_allclose(made @ made.T, noising @ noising.T, atol=1e-8)
  maker = integer_rows.RowMaker(strategy, size=5, num_rounds=ROUNDS, seed=test_integer_rows.SEED)
  for row in test_integer_rows.expected_rows(strategy, ROUNDS, 5):
    made = np.empty(5, np.int64)
    maker.make(made)
    assert np.abs(made - row).max() <= 1


def test_a_family_without_a_last_round_is_refused():
  with pytest.raises(ValueError, match='max_rounds'):
    streams.make_stream(Own(None), SPEC)


@pytest.mark.parametrize('wrong, message', [('norm', 'other norms'), ('settles', 'does not undo')])
def test_steps_that_make_other_rows_are_refused(wrong, message):
  class Wrong(Moving):
    pass

  Wrong.wrong = wrong
  with pytest.raises(ValueError, match=message):
    streams.make_stream(Wrong(), SPEC)
  with pytest.raises(ValueError, match=message):
    integer_rows.RowMaker(Wrong(), size=5, num_rounds=3, seed=bytes(32))


def test_noise_that_the_sensitivity_is_not_of_is_refused():
  """With N = 0.1 C⁻¹ the noise would be a tenth of what is accounted for."""

  class Quiet(Own):
    def noising_matrix(self, num_rounds):
      return 0.1 * super().noising_matrix(num_rounds)

    def strategy_matrix(self, num_rounds):
      return np.linalg.inv(super().noising_matrix(num_rounds))

  assert Quiet().gram_matrix(3)[2, 2] == pytest.approx(1.0)
  with pytest.raises(ValueError, match='does not undo'):
    streams.make_stream(Quiet(), SPEC)
  with pytest.raises(ValueError, match='does not undo'):
    integer_rows.RowMaker(Quiet(), size=5, num_rounds=3, seed=bytes(32))
