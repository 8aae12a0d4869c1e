"""States of noise that another factory made: refused, or taken over on purpose."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl import adaptive_clipping
from fl_dpftrl.accounting import arithmetic
from fl_dpftrl.aggregators import dp_query, fixed, parameters
from fl_dpftrl.families import blt
from fl_dpftrl.logs import noise_record, writer
from fl_dpftrl.noise import randomness
from tests.aggregators import made
from tests.aggregators.made import BLT

pytestmark = pytest.mark.tff

SIZE, NUM_ROUNDS = 40, 6
VALUE_TYPE = tff.TensorType(np.float32, [SIZE])
OTHER = blt.BLT((0.9, 0.5), (0.3, 0.1))
NOTHING = [np.zeros(SIZE, np.float32)]


def in_state(strategy=BLT, noise_seed=5, **kwargs):
  kwargs = dict(noise_multiplier=2.0, clip_norm=1.0, report_goal=1) | kwargs
  return made.make(strategy, noise_seed=noise_seed, **kwargs)


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
  outputs = made.run(aggregator.create(VALUE_TYPE), NOTHING, num_rounds, state)
  return np.array([output.result for output in outputs]), outputs[-1].state


REFUSED = tf.errors.InvalidArgumentError


@pytest.mark.parametrize('noise_seed', [None, 5])
def test_a_state_of_another_version_of_the_rows_is_refused(monkeypatch, noise_seed):
  made = lambda: in_state(noise_seed=noise_seed).noise_stream(VALUE_TYPE)
  state = made().init()
  made().next(state)
  monkeypatch.setattr(randomness, 'VERSION', randomness.VERSION - 1)
  with pytest.raises(REFUSED, match='has another seed: .* the version of fl_dpftrl that made it'):
    made().next(state)


@BOTH
@pytest.mark.parametrize(
  'changed, named',
  [
    (dict(strategy=OTHER), 'strategy'),
    (dict(noise_multiplier=4.0), 'noise_multiplier'),
    (dict(clip_norm=0.01), 'clip_norm'),
    # The same standard deviation of the noise, for larger updates.
    (dict(noise_multiplier=1.0, clip_norm=2.0), 'noise_multiplier'),
    (dict(noise_seed=6), 'seed'),
  ],
)
def test_another_factorys_state_is_refused(make, changed, named):
  noise = after(make(), 2)
  with pytest.raises(REFUSED, match=f'noise has another.* {named}'):
    after(make(**changed), 1, noise)


def test_a_secret_run_does_not_continue_with_a_given_seed():
  noise = after(in_state(noise_seed=5), 1)
  with pytest.raises(REFUSED, match='noise has another seed'):
    after(in_state(noise_seed=None), 1, noise)


@pytest.mark.slow
@BOTH
def test_tff_says_what_would_do(make):
  _, state = rounds(make(), 1)
  other = make(clip_norm=0.01)
  message = re.escape(
    '[the state of the noise has another clip_norm (here 0.01): use the'
    ' factory that made the state, in the version of fl_dpftrl that made it, or'
    ' change_noise where only the noise multiplier or the clip norm was changed on purpose]'
  )
  with pytest.raises(Exception, match=message):
    rounds(other, 1, state)
  with pytest.raises(Exception, match=message):
    other.skip_row(VALUE_TYPE)(state)


def declared(folder, num_rounds, strategy=BLT, numbers=arithmetic.Arithmetic(), **change):
  """A change that a log of num_rounds rounds records."""
  folder.mkdir(exist_ok=True)
  metadata = noise_record.run_metadata(strategy, 2.0, clip_norm=1.0, arithmetic=numbers)
  log = writer.LogWriter(folder / 'log.parquet', metadata=metadata)
  for t in range(num_rounds):
    log.append(t, [t], 86400 + t)
  return log.change_noise(num_rounds, **(change or dict(noise_multiplier=0.5, clip_norm=3.0)))


@pytest.mark.slow
@BOTH
def test_noise_that_is_changed_on_purpose_goes_on(make, tmp_path):
  expected, _ = rounds(make(), 5)
  first, state = rounds(make(), 2)
  changed = make(noise_multiplier=0.5, clip_norm=3.0)
  taken = changed.change_noise(VALUE_TYPE, declared(tmp_path, 2))(state)
  assert taken.noise.row == 2
  rest, state = rounds(changed, 3, taken)
  scales = np.array([1.0, 1.0, 0.75, 0.75, 0.75])[:, None]
  # The same whole numbers in another unit.
  np.testing.assert_allclose(np.concatenate([first, rest]), scales * expected, rtol=2.0**-23)
  assert state.noise.parameters.clip_norm == 3.0


@BOTH
def test_changing_the_noise_keeps_strategy_and_seed(make, tmp_path):
  noise = after(make(), 1)
  for changed, named in ((dict(strategy=OTHER), 'strategy'), (dict(noise_seed=6), 'seed')):
    aggregator = make(noise_multiplier=0.5, **changed)
    with pytest.raises(REFUSED, match=f'noise has another.* {named}'):
      parameters.change(noise, aggregator.parameters(VALUE_TYPE), declared(tmp_path / named, 1))


@pytest.mark.parametrize(
  'num_rounds, state_of, factory_of, message',
  [
    (1, {}, {}, 'change before row 1, and the state is at another row'),
    (2, dict(clip_norm=9.0), {}, r'noise has another clip_norm \(here 1.0\)'),
    (2, {}, dict(clip_norm=9.0), 'records another clip_norm from round 2 on'),
    (2, {}, dict(strategy=OTHER, clip_norm=3.0), 'records another strategy from round 2 on'),
  ],
)
def test_a_state_takes_the_declared_change_alone(
  num_rounds, state_of, factory_of, message, tmp_path
):
  noise = after(in_state(**state_of), 2)
  change = declared(tmp_path, num_rounds)
  aggregator = in_state(**dict(noise_multiplier=0.5, clip_norm=3.0) | factory_of)
  state = fixed.AggregatorState(inner=(), noise=noise)
  with pytest.raises(Exception, match=message):
    aggregator.change_noise(VALUE_TYPE, change)(state)


@pytest.mark.parametrize(
  'stated, make, is_refused',
  [
    (arithmetic.Arithmetic.covered(SIZE), in_state, True),
    (arithmetic.Arithmetic.covered(SIZE - 1), by_engine, True),
    (arithmetic.Arithmetic.covered(SIZE), by_engine, False),
    (arithmetic.Arithmetic(kind='lattice'), by_engine, False),
    (arithmetic.Arithmetic(kind='lattice'), in_state, False),
  ],
)
def test_releases_of_a_change_are_what_the_log_states(stated, make, is_refused, tmp_path):
  change = declared(tmp_path, 2, numbers=stated)
  changed = make(noise_multiplier=0.5, clip_norm=3.0)
  if not is_refused:
    changed.change_noise(VALUE_TYPE, change)
    return
  with pytest.raises(ValueError, match='the log states that releases are covered, which those'):
    changed.change_noise(VALUE_TYPE, change)


def test_a_factory_knows_what_its_releases_are_made_of():
  adaptive = adaptive_clipping.AdaptiveClipping(1.0)
  assert by_engine().arithmetic(VALUE_TYPE) == arithmetic.Arithmetic.covered(SIZE)
  with_counts = by_engine(clip_norm=adaptive).arithmetic(VALUE_TYPE)
  assert with_counts == arithmetic.Arithmetic.covered(SIZE + 3)
  assert in_state().arithmetic(VALUE_TYPE).kind == arithmetic.LATTICE
  without_noise = by_engine(noise_multiplier=0.0).arithmetic(VALUE_TYPE)
  assert without_noise == arithmetic.Arithmetic()


@pytest.mark.slow
def test_a_declared_restart_begins_anew_with_its_strategy(tmp_path):
  metadata = noise_record.run_metadata(OTHER, 2.0, clip_norm=1.0)
  log = writer.LogWriter(tmp_path / 'log.parquet', metadata=metadata)
  log.append(0, ['a'], 86400)
  change = log.change_noise(1, strategy=BLT, noise_multiplier=3.0, restart=True)
  made = in_state(noise_multiplier=3.0)
  state = made.restart_noise(VALUE_TYPE, change)()
  assert int(state.noise.row) == change.row == 0
  output = made.create(VALUE_TYPE).next(state, NOTHING)
  assert output.measurements['noise_row'] == 0
  for other, message in (
    (dict(strategy=OTHER, noise_multiplier=3.0), 'another strategy'),
    (dict(noise_multiplier=2.0), 'another noise_multiplier'),
  ):
    with pytest.raises(ValueError, match=message):
      in_state(**other).restart_noise(VALUE_TYPE, change)
  with pytest.raises(ValueError, match='use restart_noise'):
    made.change_noise(VALUE_TYPE, change)


def test_a_query_refuses_the_state_of_another():
  query = lambda **kwargs: dp_query.CorrelatedNoiseQuery(in_state(**kwargs), tf.TensorSpec([SIZE]))
  state = query().initial_global_state()
  total = tf.zeros([SIZE], tf.int64)
  _, state, _ = query().get_noised_result(total, state)
  with pytest.raises(tf.errors.InvalidArgumentError, match='has another clip_norm'):
    query(clip_norm=0.01).get_noised_result(total, state)
