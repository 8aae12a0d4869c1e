"""States of noise that another factory made: refused, or taken over on purpose."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import dp_query, factory, parameters
from fl_dpftrl.families import blt
from fl_dpftrl.logs import noise_record, writer
from fl_dpftrl.noise import randomness

pytestmark = pytest.mark.tff

SIZE, NUM_ROUNDS = 40, 6
VALUE_TYPE = tff.TensorType(np.float32, [SIZE])
BLT = blt.BLT((0.9, 0.5), (0.3, 0.2))
OTHER = blt.BLT((0.9, 0.5), (0.3, 0.1))
NOTHING = [np.zeros(SIZE, np.float32)]


def in_state(folder, strategy=BLT, noise_seed=5, **kwargs):
  kwargs = dict(noise_multiplier=2.0, clip_norm=1.0, report_goal=1) | kwargs
  return factory.CorrelatedNoiseFactory(strategy, noise_seed=noise_seed, **kwargs)


def by_engine(folder, strategy=BLT, noise_seed=5, **kwargs):
  return in_state(folder, strategy, noise_seed, memory='engine', **kwargs)


BOTH = pytest.mark.parametrize('make', [in_state, by_engine])


def rows(aggregator, num_rounds, noise=None):
  """Rows of noise as TensorFlow makes them, and the noise's state after them."""
  stream = aggregator.noise_stream(VALUE_TYPE)
  noise = stream.init() if noise is None else noise
  released = []
  for _ in range(num_rounds):
    row, noise = stream.next(noise)
    released.append(row)
  return np.array(released), noise


def rounds(aggregator, num_rounds, state=None):
  """Released noise, and the state after it, in TFF."""
  process = aggregator.create(VALUE_TYPE)
  state = process.initialize() if state is None else state
  released = []
  for _ in range(num_rounds):
    output = process.next(state, NOTHING)
    state = output.state
    released.append(output.result)
  return np.array(released), state


REFUSED = tf.errors.InvalidArgumentError


@pytest.mark.parametrize('noise_seed', [None, 5])
def test_a_state_of_another_version_of_the_rows_is_refused(monkeypatch, noise_seed):
  made = lambda: in_state(None, noise_seed=noise_seed).noise_stream(VALUE_TYPE)
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
def test_another_factorys_state_is_refused(make, changed, named, tmp_path):
  _, noise = rows(make(tmp_path / 'one'), 2)
  folder = 'one' if named in ('noise_multiplier', 'clip_norm') else 'two'
  with pytest.raises(REFUSED, match=f'noise has another.* {named}'):
    rows(make(tmp_path / folder, **changed), 1, noise)


def test_a_secret_run_does_not_continue_with_a_given_seed(tmp_path):
  _, noise = rows(in_state(tmp_path, noise_seed=5), 1)
  with pytest.raises(REFUSED, match='noise has another seed'):
    rows(in_state(tmp_path, noise_seed=None), 1, noise)


@pytest.mark.slow
@BOTH
def test_tff_says_what_would_do(make, tmp_path):
  _, state = rounds(make(tmp_path), 1)
  other = make(tmp_path, clip_norm=0.01)
  message = re.escape(
    '[the state of the noise has another clip_norm 1 (here 0.01): use the'
    ' factory that made the state, in the version of fl_dpftrl that made it, or'
    ' change_noise where only the noise multiplier or the clip norm was changed on purpose]'
  )
  with pytest.raises(Exception, match=message):
    rounds(other, 1, state)
  with pytest.raises(Exception, match=message):
    other.skip_row(VALUE_TYPE)(state)


def declared(folder, num_rounds, strategy=BLT, **change):
  """A change that a log of num_rounds rounds records."""
  folder.mkdir(exist_ok=True)
  metadata = noise_record.run_metadata(strategy, 2.0, clip_norm=1.0)
  log = writer.LogWriter(folder / 'log.parquet', metadata=metadata)
  for t in range(num_rounds):
    log.append(t, [t], 86400 + t)
  return log.change_noise(num_rounds, **(change or dict(noise_multiplier=0.5, clip_norm=3.0)))


@pytest.mark.slow
@BOTH
def test_noise_that_is_changed_on_purpose_goes_on(make, tmp_path):
  expected, _ = rounds(make(tmp_path / 'whole'), 5)
  first, state = rounds(make(tmp_path / 'one'), 2)
  changed = make(tmp_path / 'one', noise_multiplier=0.5, clip_norm=3.0)
  taken = changed.change_noise(VALUE_TYPE, declared(tmp_path, 2))(state)
  assert taken.noise.row == 2
  rest, state = rounds(changed, 3, taken)
  scales = np.array([1.0, 1.0, 0.75, 0.75, 0.75])[:, None]
  np.testing.assert_allclose(np.concatenate([first, rest]), scales * expected, rtol=1e-5, atol=1e-6)
  assert state.noise.parameters.clip_norm == 3.0


@BOTH
def test_changing_the_noise_keeps_strategy_and_seed(make, tmp_path):
  _, noise = rows(make(tmp_path / 'one'), 1)
  for changed, named in ((dict(strategy=OTHER), 'strategy'), (dict(noise_seed=6), 'seed')):
    aggregator = make(tmp_path / named, noise_multiplier=0.5, **changed)
    with pytest.raises(REFUSED, match=f'noise has another.* {named}'):
      parameters.change(noise, aggregator.parameters(VALUE_TYPE), declared(tmp_path / named, 1))


@pytest.mark.parametrize(
  'num_rounds, state_of, factory_of, message',
  [
    (1, {}, {}, 'change before row 1, and the state is at another row'),
    (2, dict(clip_norm=9.0), {}, r'noise has another.* clip_norm 9 \(here 1.0\)'),
    (2, {}, dict(clip_norm=9.0), 'records another clip_norm from round 2 on'),
    (2, {}, dict(strategy=OTHER, clip_norm=3.0), 'records another strategy from round 2 on'),
  ],
)
def test_a_state_takes_the_declared_change_alone(
  num_rounds, state_of, factory_of, message, tmp_path
):
  _, noise = rows(in_state(tmp_path, **state_of), 2)
  change = declared(tmp_path, num_rounds)
  aggregator = in_state(tmp_path, **dict(noise_multiplier=0.5, clip_norm=3.0) | factory_of)
  state = factory.AggregatorState(inner=(), noise=noise)
  with pytest.raises(Exception, match=message):
    aggregator.change_noise(VALUE_TYPE, change)(state)


@pytest.mark.slow
def test_a_declared_restart_begins_anew_with_its_strategy(tmp_path):
  metadata = noise_record.run_metadata(OTHER, 2.0, clip_norm=1.0)
  log = writer.LogWriter(tmp_path / 'log.parquet', metadata=metadata)
  log.append(0, ['a'], 86400)
  change = log.change_noise(1, strategy=BLT, noise_multiplier=3.0, restart=True)
  made = in_state(tmp_path, noise_multiplier=3.0)
  state = made.restart_noise(VALUE_TYPE, change)()
  assert int(state.noise.row) == change.row == 0
  output = made.create(VALUE_TYPE).next(state, NOTHING)
  assert output.measurements['noise_row'] == 0
  for other, message in (
    (dict(strategy=OTHER, noise_multiplier=3.0), 'another strategy'),
    (dict(noise_multiplier=2.0), 'another noise_multiplier'),
  ):
    with pytest.raises(ValueError, match=message):
      in_state(tmp_path, **other).restart_noise(VALUE_TYPE, change)
  with pytest.raises(ValueError, match='use restart_noise'):
    made.change_noise(VALUE_TYPE, change)


def test_a_query_refuses_the_state_of_another(tmp_path):
  query = lambda **kwargs: dp_query.CorrelatedNoiseQuery(
    in_state(tmp_path, **kwargs), tf.TensorSpec([SIZE])
  )
  state = query().initial_global_state()
  total = tf.zeros([SIZE])
  _, state, _ = query().get_noised_result(total, state)
  with pytest.raises(tf.errors.InvalidArgumentError, match='has another clip_norm'):
    query(clip_norm=0.01).get_noised_result(total, state)
