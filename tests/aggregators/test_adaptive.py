"""The aggregator with an adaptive clip norm, inside TFF."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.aggregators import adaptive, dp_query, factory
from fl_dpftrl.families import blt
from fl_dpftrl.logs import noise_record
from fl_dpftrl.training import guarantee, loop, metrics, report

pytestmark = pytest.mark.tff

SIZE = 7
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    w=tff.TensorType(np.float32, [2, 2]), b=tff.TensorType(np.float32, [SIZE - 4])
  )
)
BLT = blt.BLT((0.9, 0.5), (0.3, 0.2))
RULE = dpftrl.AdaptiveClipping(1.5, target_quantile=0.4, learning_rate=0.5, rounds=3)
SAME = dict(noise_multiplier=0.5, clip_norm=RULE, report_goal=3, zeroing_norm=50.0)
NORMS = (0.25, 0.9, 1.4, 9.0, 70.0, np.nan)


def update(norm):
  """An update of this norm, in several coordinates."""
  w = np.array([[0.6, 0.0], [0.0, 0.0]], np.float32)
  b = np.array([0.0, 0.8, 0.0], np.float32)
  return collections.OrderedDict(w=norm * w, b=norm * b)


CLIENTS = [update(np.float32(norm)) for norm in NORMS]


@functools.cache
def process_of(aggregator):
  """Building and tracing a process takes longer than its rounds."""
  return aggregator.create(VALUE_TYPE)


@functools.cache
def aggregator_of(**kwargs):
  return factory.CorrelatedNoiseFactory(BLT, **(SAME | {'noise_seed': 5} | kwargs))


def in_state(folder, **kwargs):
  return aggregator_of(**kwargs)


def by_engine(folder, **kwargs):
  return in_state(folder, memory='engine', **kwargs)


EVERY_MEMORY = pytest.mark.parametrize(
  'make', [in_state, pytest.param(by_engine, marks=pytest.mark.slow)]
)


def run(aggregator, num_rounds, state=None, clients=CLIENTS):
  """Returns the outputs of rounds, from the first state or a given one."""
  process = process_of(aggregator)
  state = process.initialize() if state is None else state
  outputs = []
  for _ in range(num_rounds):
    outputs.append(process.next(state, clients))
    state = outputs[-1].state
  return outputs


def noise_rows(aggregator, num_rounds):
  """Rows of the aggregator's own stream: of the updates, and of the counts."""
  stream = aggregator.noise_stream(VALUE_TYPE)
  noise, found = stream.init(), []
  for t in range(num_rounds):
    row, noise = stream.next(noise)
    found.append(tf.nest.map_structure(np.asarray, row))
  return found


def assert_same(one, other):
  tf.nest.map_structure(np.testing.assert_array_equal, one, other)


@EVERY_MEMORY
def test_rounds_follow_the_rule_by_hand(make, tmp_path):
  made = make(tmp_path / 'one')
  first = run(made, 2)
  # A stored state goes on: the rows of files are not given out twice.
  outputs = [*first, *run(made, 3, state=first[-1].state)]
  noise = noise_rows(make(tmp_path / 'two'), 5)
  of_updates = RULE.update_noise_multiplier(0.5, 3)
  ratio = RULE.count_stddev(0.5, 3) / of_updates
  norms = np.linalg.norm(BLT.noising_matrix(5), axis=1)
  clip_norm = 1.5
  for t, (output, (update_noise, count_noise)) in enumerate(zip(outputs, noise)):
    found = output.measurements
    # The fifth is zeroed and the last rejected; both add nothing but a count.
    kept = [min(norm, clip_norm) for norm in NORMS[:4]]
    counts = np.array([sum(n > clip_norm for n in NORMS[:4]), 1, 1]) + ratio * count_noise
    for part, of_part in update(1.0).items():
      expected = (sum(kept) * of_part + clip_norm * update_noise[part]) / 3
      np.testing.assert_allclose(output.result[part], expected, rtol=1e-5, atol=1e-6)
    names = ('clipped_count', 'zeroed_count', 'rejected_count')
    np.testing.assert_allclose([found[name] for name in names], counts, rtol=1e-5, atol=1e-6)
    assert found['clipped_fraction'] == pytest.approx(counts[0] / 3, rel=1e-5)
    assert found['clip_norm'] == pytest.approx(clip_norm, rel=1e-6)
    assert found['noise_stddev'] == pytest.approx(clip_norm * of_updates * norms[t], rel=1e-5)
    assert found['noise_row'] == t
    if t < 3:
      clip_norm *= np.exp(0.5 * (counts[0] / 3 - 0.6))
    assert output.state.clip_norm == pytest.approx(clip_norm, rel=1e-6)


def test_a_stored_state_goes_on_bit_for_bit(tmp_path):
  made = in_state(tmp_path)
  whole = run(made, 4)
  for one, other in zip(whole[2:], run(made, 2, state=whole[1].state)):
    assert_same(one, other)


def test_a_burnt_row_keeps_the_clip_norm(tmp_path):
  aggregator = made = in_state(tmp_path)
  (first,) = run(made, 1)
  skipped = aggregator.skip_row(VALUE_TYPE)(first.state)
  assert skipped.clip_norm == first.state.clip_norm and skipped.noise.row == 2
  # The next round has the row after the burnt one, and is the last that moves the norm.
  (after,) = run(made, 1, state=skipped)
  assert after.measurements['noise_row'] == 2
  assert after.state.clip_norm != skipped.clip_norm
  (frozen,) = run(made, 1, state=after.state)
  assert frozen.state.clip_norm == after.state.clip_norm


def followed(clipping, norms, num_rounds):
  """Returns the clip norm after rounds without noise, with these norms in each."""
  rule = adaptive.Rule(clipping, 0.0, 0.0, len(norms), None, 'test')
  clip_norm = tf.constant(clipping.initial)
  for t in range(num_rounds):
    counts = tf.constant([np.sum(norms > clip_norm.numpy()), 0, 0], tf.float32)
    clip_norm = rule.next_clip_norm(clip_norm, counts, tf.constant(t, tf.int64))
  return clip_norm.numpy()


def test_it_finds_the_quantile_without_noise():
  norms = np.random.default_rng(0).lognormal(-3.0, 0.5, 200)
  clipping = dpftrl.AdaptiveClipping(1.0, target_quantile=0.7, rounds=None)
  assert np.mean(norms <= followed(clipping, norms, 60)) == pytest.approx(0.7, abs=0.02)
  stopped = dpftrl.AdaptiveClipping(1.0, target_quantile=0.7, rounds=0)
  assert followed(stopped, norms, 3) == 1.0


def test_it_stays_within_its_range():
  clipping = dpftrl.AdaptiveClipping(1.0, learning_rate=1e3)
  assert followed(clipping, np.array([1e9]), 2) == np.float32(1e6)
  assert followed(clipping, np.array([0.0]), 2) == np.float32(1e-6)


@pytest.mark.slow
def test_secure_sums_have_the_same_bounds_in_all_rounds(tmp_path):
  secure = in_state(tmp_path, inner_factory=tff.aggregators.SecureSumFactory(1.0))
  for one, other in zip(run(secure, 4), run(in_state(tmp_path), 4)):
    for part in one.result:
      np.testing.assert_allclose(one.result[part], other.result[part], atol=1e-5)
    assert one.state.clip_norm == pytest.approx(other.state.clip_norm, rel=1e-5)
    assert one.measurements['inner']['secure_upper_clipped_count'] == 0
  narrow = in_state(tmp_path, inner_factory=tff.aggregators.SecureSumFactory(0.5))
  with pytest.raises(ValueError, match='inner_factory must sum updates'):
    narrow.create(VALUE_TYPE)


@pytest.mark.slow
def test_the_noise_is_changed_on_purpose(tmp_path):
  before = run(in_state(tmp_path), 2)
  changed = made = in_state(tmp_path, noise_multiplier=0.25)
  with pytest.raises(Exception, match='another noise_multiplier 0.5'):
    run(made, 1, state=before[-1].state)
  first = RULE.initial
  declared = noise_record.DeclaredNoise(2, 2, False, None, 0.25, first, 0.5, first)
  state = changed.change_noise(VALUE_TYPE, declared)(before[-1].state)
  assert state.clip_norm == before[-1].state.clip_norm
  (after,) = run(made, 1, state=state)
  (whole,) = run(in_state(tmp_path), 1, state=before[-1].state)
  noise = [after.measurements['noise_stddev'], whole.measurements['noise_stddev']]
  of_updates = [RULE.update_noise_multiplier(z, 3) for z in (0.25, 0.5)]
  assert noise[0] / noise[1] == pytest.approx(of_updates[0] / of_updates[1], rel=1e-5)


@pytest.mark.slow
def test_neither_kind_of_clip_norm_goes_on_from_the_other(tmp_path):
  of_each = [run(in_state(tmp_path, clip_norm=c), 1)[-1].state for c in (RULE, 1.5)]
  for clip_norm, state in zip((1.5, RULE), of_each):
    with pytest.raises(TypeError):
      run(in_state(tmp_path, clip_norm=clip_norm), 1, state=state)


def test_refuses_what_is_not_accounted_for(tmp_path):
  quantile = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.2)
  with pytest.raises(ValueError, match='number or a dpftrl.AdaptiveClipping, .*estimation') as e:
    in_state(tmp_path, clip_norm=quantile)
  assert len(str(e.value)) <= 300
  little = dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=0.5)
  with pytest.raises(ValueError, match='clipped_count_stddev=0.5 must be above'):
    in_state(tmp_path, clip_norm=little)
  with pytest.raises(ValueError, match='a query must have a number as clip_norm'):
    dp_query.CorrelatedNoiseQuery(in_state(tmp_path), tf.TensorSpec([SIZE]))


def test_training_records_and_reports_it(tmp_path):
  aggregator = aggregator_of(noise_seed=None)
  run = loop.TrainingRun(
    folder=tmp_path,
    num_rounds=3,
    process=None,
    rounds=None,
    client_data=None,
    aggregator=aggregator,
    delta=1e-6,
  )
  metadata = guarantee.log_metadata(run)
  with dpftrl.LogWriter(tmp_path / 'participation.parquet', metadata=metadata) as log:
    for t, cohort in enumerate(['ab', 'cd', 'ab']):
      log.append(t, list(cohort), 86400 + t)
  stated = report.write(
    run,
    tff.learning.models.ModelWeights([np.zeros(2)], []),
    declared=dpftrl.MinSep(num_rounds=3, min_sep=2),
    population=4,
    burnt=(),
    history=metrics.MetricsTable(tmp_path / metrics.NAME).history(),
    description=report.Description(),
    audit=None,
    bundle=False,
  ).statement
  (facts,) = stated.runs
  assert facts.adaptive_clipping == RULE and facts.clip_norm == 1.5
  assert stated.noise_multiplier == 0.5 and stated.void_reason is None
  assert 'followed the quantile 0.4' in (tmp_path / 'privacy.html').read_text()
