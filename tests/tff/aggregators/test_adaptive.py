"""The aggregator with an adaptive clip norm, inside TFF."""

import fractions
import functools
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.tff.aggregators import adaptive, dp_query, update_bounds
from tests.tff.aggregators import small_factories
from tests.tff.aggregators.small_factories import BLT

pytestmark = pytest.mark.tff

VALUE_TYPE = tff.to_type(dict(b=(np.float32, [3]), w=(np.float32, [2, 2])))
RULE = dpftrl.AdaptiveClipping(1.5, target_quantile=0.4, learning_rate=0.5, rounds=3)
SAME = dict(noise_multiplier=0.5, clip_norm=RULE, report_goal=3, zeroing_norm=50.0)
NORMS = (0.25, 0.9, 1.4, 9.0, 70.0, np.nan)


def update(norm):
  """An update of this norm, in several coordinates."""
  w = np.array([[0.6, 0.0], [0.0, 0.0]], np.float32)
  b = np.array([0.0, 0.8, 0.0], np.float32)
  return dict(b=norm * b, w=norm * w)


CLIENTS = [update(np.float32(norm)) for norm in NORMS]


@functools.cache
def process_of(aggregator):
  """Building and tracing a process takes longer than its rounds."""
  return aggregator.create(VALUE_TYPE)


@functools.cache
def in_state(**kwargs):
  return small_factories.make(**(SAME | {'noise_seed': 5} | kwargs))


def by_engine(**kwargs):
  return in_state(memory='engine', **kwargs)


EVERY_MEMORY = pytest.mark.parametrize(
  'make', [in_state, pytest.param(by_engine, marks=pytest.mark.slow)]
)


def run(aggregator, num_rounds, state=None, clients=CLIENTS):
  """Returns the outputs of rounds, from the first state or a given one."""
  return small_factories.run(process_of(aggregator), clients, num_rounds, state)


def noise_rows(aggregator, num_rounds):
  """Rows of the aggregator's own stream: of the updates, and of the counts."""
  stream = aggregator.noise_stream(VALUE_TYPE)
  noise, found = stream.init(), []
  for t in range(num_rounds):
    row, noise = stream.next(noise)
    found.append(tf.nest.map_structure(np.asarray, row))
  return found


@EVERY_MEMORY
def test_rounds_follow_the_rule_by_hand(make):
  """Updates, counts and clip norms, from whole numbers of which each has its own unit."""
  first = run(make(), 2)
  # A stored state goes on: the rows of files are not given out twice.
  outputs = [*first, *run(make(), 3, state=first[-1].state)]
  noise, unit = noise_rows(make(), 5), make().unit
  of_updates, of_counts = RULE.update_noise_multiplier(0.5, 3), RULE.count_stddev(0.5, 3)
  assert unit.size * 2.0**34 == pytest.approx(of_updates)
  assert unit.norms[0] << unit.shift == pytest.approx(2.0**34 / of_counts, rel=1e-6)
  norms = np.linalg.norm(BLT.noising_matrix(5), axis=1)
  clip_norm = np.float32(1.5)
  for t, (output, (update_row, count_row)) in enumerate(zip(outputs, noise)):
    found = output.measurements
    assert found['clip_norm'] == clip_norm
    bound = dict(unit=unit, clip_norm=clip_norm, zeroing_norm=50.0)
    bounded = [update_bounds.bound_update(each, **bound) for each in CLIENTS]
    # The fifth is zeroed and the last rejected; both add nothing but a count.
    counts = np.array([sum(n > clip_norm for n in NORMS[:4]), 1, 1])
    assert counts.tolist() == np.sum([b[1:] for b in bounded], axis=0).tolist()
    kept = sum(min(norm, clip_norm) for norm in NORMS[:4])
    scale = unit.size * float(clip_norm) / 3
    for part, of_part in update(1.0).items():
      total = sum(b.update[part].numpy() for b in bounded)
      expected = scale * ((total << unit.shift) + update_row[part])
      np.testing.assert_array_equal(output.result[part], expected.astype(np.float32))
      noise_part = scale * update_row[part]
      np.testing.assert_allclose(expected, kept * of_part / 3 + noise_part, rtol=1e-5, atol=2e-6)
    names = ('clipped_count', 'zeroed_count', 'rejected_count')
    one = unit.norms[0] << unit.shift
    noised = ((one * counts + count_row) * (1.0 / one)).astype(np.float32)
    assert [found[name] for name in names] == noised.tolist()
    assert found['clipped_fraction'] == pytest.approx(noised[0] / 3, rel=1e-6)
    assert found['noise_stddev'] == pytest.approx(clip_norm * of_updates * norms[t], rel=1e-6)
    assert found['noise_row'] == t
    if t < 3:
      clip_norm = np.float32(clip_norm * np.exp(0.5 * (float(noised[0]) / 3 - 0.6)))
    assert output.state.clip_norm == pytest.approx(clip_norm, rel=1e-6)
    clip_norm = output.state.clip_norm


def test_counts_and_an_update_of_one_device_are_within_one_bound():
  """In exact numbers, whatever it sends: κ² of its count and the update's square."""
  unit = in_state().unit
  rule = adaptive.Rule(RULE, unit, (RULE.group(0.5, 3),), 3, 50.0, True)
  most = math.floor(
    fractions.Fraction(4) ** (lattice.BITS - unit.shift) / fractions.Fraction(0.5) ** 2
  )
  assert most - 1 <= unit.norms[0] ** 2 + unit.most_square <= most
  for value, clip_norm in itertools.product((*CLIENTS, update(np.float32(1e38))), (1e-3, 1.5)):
    bounded, counts = rule.bound(value, tf.constant(clip_norm, tf.float32))
    assert set(counts.numpy().tolist()) <= {0, unit.norms[0]} and counts.dtype == tf.int64
    sent = [int(k) for part in (*tf.nest.flatten(bounded), counts) for k in np.ravel(part)]
    assert sum(k * k for k in sent) <= most and sum(k != 0 for k in counts.numpy()) <= 1


@EVERY_MEMORY
def test_without_noise_counts_and_sums_are_exact(make):
  (output,) = run(make(noise_multiplier=0.0), 1)
  found = output.measurements
  assert [found[f'{name}_count'] for name in ('clipped', 'zeroed', 'rejected')] == [1, 1, 1]
  assert found['noise_stddev'] == 0.0
  for part, of_part in update(sum(min(norm, 1.5) for norm in NORMS[:4]) / 3).items():
    np.testing.assert_allclose(output.result[part], of_part, rtol=3e-6)


def test_a_burnt_row_keeps_the_clip_norm():
  aggregator = in_state()
  (first,) = run(aggregator, 1)
  skipped = aggregator.skip_row(VALUE_TYPE)(first.state)
  assert skipped.clip_norm == first.state.clip_norm and skipped.noise.row == 2
  # The next round has the row after the burnt one, and is the last that moves the norm.
  (after,) = run(aggregator, 1, state=skipped)
  assert after.measurements['noise_row'] == 2
  assert after.state.clip_norm != skipped.clip_norm
  (frozen,) = run(aggregator, 1, state=after.state)
  assert frozen.state.clip_norm == after.state.clip_norm


def followed(clipping, norms, num_rounds):
  """Returns the clip norm after rounds without noise, with these norms in each."""
  rule = adaptive.Rule(
    clipping,
    lattice_units.Unit.without_noise(24, 1),
    (clipping.group(0.0, 1),),
    len(norms),
    None,
    False,
  )
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


def test_refuses_what_is_not_accounted_for():
  quantile = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.2)
  with pytest.raises(ValueError, match='number or a dpftrl.AdaptiveClipping, .*estimation') as e:
    in_state(clip_norm=quantile)
  assert len(str(e.value)) <= 300
  little = dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=0.5)
  with pytest.raises(ValueError, match='clipped_count_stddev=0.5 must be above'):
    in_state(clip_norm=little)
  much = dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=1e9)
  with pytest.raises(ValueError, match='clipped_count_stddev=1e[+]09 is too large'):
    in_state(clip_norm=much)
  with pytest.raises(ValueError, match='a query must have a number as clip_norm'):
    dp_query.CorrelatedNoiseQuery(in_state(), tf.TensorSpec([7]))
