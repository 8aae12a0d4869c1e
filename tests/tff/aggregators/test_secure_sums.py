"""Updates are summed by plain and secure sums, to the same bits, and by nothing that divides."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import example, given
from hypothesis import strategies as st

from fl_dpftrl.claims import adaptive_clipping, lattice_units
from fl_dpftrl.tff.aggregators import secure_sums
from tests import made
from tests.tff.aggregators import custom_sums, small_factories

pytestmark = pytest.mark.tff

CLIP_NORM = 0.7
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(w=tff.TensorType(np.float32, [30, 10]), b=tff.TensorType(np.float32, [3]))
)
SMALL = tff.TensorType(np.float32, [2])
aggregators = tff.aggregators
ADAPTIVE = adaptive_clipping.AdaptiveClipping(CLIP_NORM, rounds=3)


class Modular(aggregators.SecureModularSumFactory):
  """A class of a user's own, which may do more than sum."""


def make(inner, **kwargs):
  kwargs = dict(noise_multiplier=1.0, clip_norm=CLIP_NORM, memory='auto', noise_seed=1) | kwargs
  return small_factories.make(inner_factory=inner, **kwargs)


def packed(values):
  values = np.asarray(values, np.float32)
  return collections.OrderedDict(w=values[3:].reshape(30, 10), b=values[:3])


def extreme_updates():
  """What a device may send, in the middle of honest updates."""
  drawn = np.random.default_rng(3).normal(size=(3, 303))
  one = np.zeros(303)
  one[5] = np.nan
  huge, everywhere = np.where(one == one, 1e38, 0), np.full(303, -1e9)
  return [packed(v) for v in (*drawn, one, np.full(303, np.inf), huge, everywhere, 1e-3 * drawn[0])]


def refused(inner, match, **kwargs):
  with pytest.raises(ValueError, match=match) as error:
    make(inner, **kwargs).create(VALUE_TYPE)
  assert len(str(error.value)) <= 300 and '\n' not in str(error.value)
  return str(error.value)


@made.cases(
  'inner',
  aggregators.UnweightedMeanFactory(),
  tff.learning.secure_aggregator(weighted=False, clipping=False, zeroing=False),
  aggregators.EncodedSumFactory.quantize_above_threshold(8, threshold=1),
  aggregators.SecureSumFactory(2**24),
  aggregators.clipping_factory(1.0, aggregators.SumFactory()),
  aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1e-9, 4, CLIP_NORM),
  aggregators.HadamardTransformFactory(),
  aggregators.concat_factory(aggregators.SecureModularSumFactory(2**40, True)),
  Modular(2**40, True),
  custom_sums.Custom(),
  'plain',
  ids=lambda value: type(value).__name__,
)
def test_what_is_not_known_to_sum_exactly_is_refused(inner):
  refused(inner, "^inner_factory must be 'secure', .* whose sums of whole numbers are exact, got")


@made.cases(
  'inner, words',
  (aggregators.SecureModularSumFactory(2**26), r'modulus 67108864.* report_goal=4 .* at least'),
  (aggregators.SecureModularSumFactory(2**25, True), r'modulus 67108863'),
  (aggregators.SecureModularSumFactory(2**51), r'less than 2\^51'),
  (aggregators.SecureModularSumFactory(2**70), r'less than 2\^51'),
)
def test_a_modulus_without_room_is_refused(inner, words):
  refused(inner, words)


def test_the_least_modulus_has_room():
  least = int(
    refused(aggregators.SecureModularSumFactory(2), 'at least').split('at least ')[1].split(',')[0]
  )
  refused(aggregators.SecureModularSumFactory(least - 1), 'at least')
  enough = make(aggregators.SecureModularSumFactory(least)).sums(VALUE_TYPE)
  assert enough.most_updates == 4 and make('secure').sums(VALUE_TYPE).most_updates >= 16


@pytest.mark.parametrize('inner', [None, 'secure'])
def test_a_report_goal_without_room_in_int64_is_refused(inner):
  refused(
    inner,
    'report_goal=1000 updates and their noise have no room',
    noise_multiplier=1e-7,
    report_goal=1000,
  )
  # As much as there is room for.
  assert make(inner, noise_multiplier=1e-7, report_goal=3).sums(VALUE_TYPE).most_updates >= 3


SECURE = {
  'secure': lambda: 'secure',
  'modular': lambda: aggregators.SecureModularSumFactory(2**40 + 1),
  'symmetric': lambda: aggregators.SecureModularSumFactory(2**40, True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
  'clip_norm, memory, names',
  [(CLIP_NORM, 'state', ('secure', 'modular')), (ADAPTIVE, 'engine', ('secure', 'symmetric'))],
  ids=['fixed', 'adaptive'],
)
def test_secure_sums_give_the_bits_of_plain_sums(clip_norm, memory, names):
  """Whatever devices send; with the clip norms and the noised counts of two rounds."""
  clients, outputs = extreme_updates(), {}
  for name, inner in (('plain', None), *((name, SECURE[name]()) for name in names)):
    aggregator = make(inner, clip_norm=clip_norm, memory=memory, report_goal=6)
    outputs[name] = small_factories.run(aggregator.create(VALUE_TYPE), clients, 2)
  for name in names:
    for output, plain in zip(outputs[name], outputs['plain']):
      result, expected = small_factories.flat(output.result), small_factories.flat(plain.result)
      assert np.isfinite(expected).all()
      np.testing.assert_array_equal(result.view(np.int32), expected.view(np.int32))
      output.measurements.pop('inner')
      assert output.measurements.items() <= plain.measurements.items()
      clip_norms = [getattr(each.state, 'clip_norm', None) for each in (output, plain)]
      assert clip_norms[0] == clip_norms[1]


@pytest.mark.slow
def test_no_devices_can_wrap_a_sum_and_too_many_fail_the_round():
  """As many as there is room for, all of whose coordinates are as large as they may be."""
  results = {}
  for inner in (None, 'secure'):
    process = make(inner, noise_multiplier=0.5, report_goal=3).create(SMALL)
    most = make('secure', noise_multiplier=0.5, report_goal=3).sums(SMALL).most_updates
    at_the_bound = [np.array([1e38, 1e38], np.float32)] * most
    results[inner] = process.next(process.initialize(), at_the_bound).result
    assert (results[inner] > 0.99 * most * CLIP_NORM / 3 / np.sqrt(2) - 2.0).all()
  np.testing.assert_array_equal(results[None], results['secure'])
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=f'more than the {most} updates'
  ) as error:
    process.next(process.initialize(), [*at_the_bound, at_the_bound[0]])
  assert '\n' not in str(error.value) and len(str(error.value)) <= 300


# Near the ends of what int64 and moduli hold, where sums wrap.
FEW = st.integers(-2, 2)
NEAR = st.tuples(st.sampled_from([-1, 0, 1]), FEW | st.integers(-(2**12), 2**12))


@given(
  st.none() | st.sampled_from([2**40, 2**40 + 1, 2 * 2**39 - 1, 3**25]),
  st.sampled_from([0, 1, 11]),
  st.booleans(),
  st.lists(NEAR, min_size=1, max_size=5),
  st.lists(FEW | st.integers(-(2**45), 2**45), min_size=5, max_size=5),
)
@example(2**40 + 1, 0, True, [(1, -1), (1, 0), (1, 1), (-1, 0), (-1, -1)], [0] * 5)
def test_a_sum_with_noise_wraps_and_is_lifted_after_that(modulus, shift, symmetric, near, noise):
  """The result is a function of the true sum with noise, however far the sum went."""
  ring = 2**64 if modulus is None else modulus << shift
  total = [sign * ((ring >> shift) // 2) + off for sign, off in near]
  row = noise[: len(total)]
  if modulus is None:  # As int64 has it.
    given_total = [(x + 2**63) % 2**64 - 2**63 for x in total]
  else:
    half = modulus // 2 if symmetric else 0
    given_total = [(x + half) % modulus - half for x in total]
  unit = lattice_units.Unit(1.0, shift, 1)
  summed = secure_sums.Sums(None, unit, None if modulus is None else ring, 1)
  found = summed.noised(tf.constant(given_total, tf.int64), tf.constant(row, tf.int64))
  half = ring // 2
  assert found.numpy().tolist() == [
    ((x << shift) + r + half) % ring - half for x, r in zip(total, row)
  ]


@pytest.mark.parametrize('modulus', [None, 2**40, 3**25])
def test_a_release_in_one_pass_has_the_bits_of_its_operations(modulus):
  """Also of numbers that float64 rounds, and of those that TensorFlow takes for 0 in float32."""
  drawn = np.random.default_rng(0).integers(-(2**62), 2**62, (2, 10_000)) >> np.arange(10_000) % 62
  total, row = map(tf.constant, drawn)
  summed = secure_sums.Sums(None, lattice_units.Unit(1.0, 3, 1), modulus, 1)
  for scale in (1.7e-11 / 3, 1e30 * 2.0**-34, 1e-40):
    expected = (scale * summed.noised(total, row).numpy()).astype(np.float32)
    expected[np.abs(expected) < np.finfo(np.float32).tiny] = 0.0
    np.testing.assert_array_equal(summed.released([total], [row], scale)[0], expected)
