"""States of noise that another factory made are refused."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.claims import adaptive_clipping
from fl_dpftrl.mechanisms.families import blt
from fl_dpftrl.noise import randomness
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.tff.aggregators import dp_query
from tests import made
from tests.tff.aggregators import small_factories
from tests.tff.aggregators.small_factories import BLT

pytestmark = pytest.mark.tff

SIZE, NUM_ROUNDS = 40, 6
VALUE_TYPE = tff.TensorType(np.float32, [SIZE])
OTHER = blt.BLT((0.9, 0.5), (0.3, 0.1))
NOTHING = [np.zeros(SIZE, np.float32)]


def in_state(strategy=BLT, noise_seed=5, **kwargs):
  kwargs = dict(noise_multiplier=2.0, clip_norm=1.0, report_goal=1) | kwargs
  return small_factories.make(strategy, noise_seed=noise_seed, **kwargs)


def by_engine(strategy=BLT, noise_seed=5, **kwargs):
  return in_state(strategy, noise_seed, memory='engine', **kwargs)


BOTH = pytest.mark.parametrize('make', [in_state, by_engine])


def after(aggregator, num_rounds, noise=None):
  """The noise's state after some rows."""
  stream = aggregator.noise_stream(VALUE_TYPE)
  noise = stream.init() if noise is None else noise
  for _ in range(num_rounds):
    _, noise = stream.next(noise)
  return noise


def rounds(aggregator, num_rounds, state=None):
  """Released noise, and the state after it, in TFF."""
  outputs = small_factories.run(aggregator.create(VALUE_TYPE), NOTHING, num_rounds, state)
  return np.array([output.result for output in outputs]), outputs[-1].state


REFUSED = tf.errors.InvalidArgumentError


@pytest.mark.parametrize('noise_seed', [None, 5])
def test_a_state_of_another_version_of_the_rows_is_refused(monkeypatch, noise_seed):
  made = lambda: in_state(noise_seed=noise_seed).noise_stream(VALUE_TYPE)
  state = made().init()
  made().next(state)
  monkeypatch.setattr(randomness, 'VERSION', randomness.VERSION - 1)
  with pytest.raises(
    REFUSED, match='has another .*seed.*: .* the version of fl_dpftrl that made it'
  ):
    made().next(state)


@BOTH
@made.cases(
  'changed, named',
  (dict(strategy=OTHER), 'strategy'),
  (dict(noise_multiplier=4.0), 'noise_multiplier'),
  (dict(clip_norm=0.01), 'clip_norm'),
  # The same standard deviation of the noise, for larger updates.
  (dict(noise_multiplier=1.0, clip_norm=2.0), 'noise_multiplier'),
  (dict(noise_seed=6), 'seed'),
)
def test_another_factorys_state_is_refused(make, changed, named):
  noise = after(make(), 2)
  with pytest.raises(REFUSED, match=f'noise has another .*{named}'):
    after(make(**changed), 1, noise)


def test_a_secret_run_does_not_continue_with_a_given_seed():
  noise = after(in_state(noise_seed=5), 1)
  with pytest.raises(REFUSED, match='noise has another .*seed'):
    after(in_state(noise_seed=None), 1, noise)


def test_a_factory_knows_what_its_releases_are_made_of():
  adaptive = adaptive_clipping.AdaptiveClipping(1.0)
  assert by_engine().arithmetic(VALUE_TYPE) == arithmetics.Arithmetic.covered(SIZE)
  with_counts = by_engine(clip_norm=adaptive).arithmetic(VALUE_TYPE)
  assert with_counts == arithmetics.Arithmetic.covered(SIZE + 3)
  assert in_state().arithmetic(VALUE_TYPE).kind == arithmetics.LATTICE
  without_noise = by_engine(noise_multiplier=0.0).arithmetic(VALUE_TYPE)
  assert without_noise == arithmetics.Arithmetic()


@pytest.mark.slow
def test_tff_says_what_would_do():
  _, state = rounds(by_engine(), 1)
  other = by_engine(clip_norm=0.01)
  message = re.escape(
    'the state of the noise has another strategy, seed, noise_multiplier or clip_norm: use the'
    ' factory that made it, in the version of fl_dpftrl that made it; other noise is another run'
  )
  with pytest.raises(Exception, match=message):
    rounds(other, 1, state)
  with pytest.raises(Exception, match=message):
    other.skip_row(VALUE_TYPE)(state)


def test_a_query_refuses_the_state_of_another():
  query = lambda **kwargs: dp_query.CorrelatedNoiseQuery(in_state(**kwargs), tf.TensorSpec([SIZE]))
  state = query().initial_global_state()
  total = tf.zeros([SIZE], tf.int64)
  _, state, _ = query().get_noised_result(total, state)
  with pytest.raises(tf.errors.InvalidArgumentError, match='has another .*clip_norm'):
    query(clip_norm=0.01).get_noised_result(total, state)
