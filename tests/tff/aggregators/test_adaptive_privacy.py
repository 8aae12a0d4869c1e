"""Privacy loss of adaptive clipping against adversaries who adapt too."""

import math

import numpy as np
import pytest
import tensorflow as tf

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import adaptive_clipping, lattice_units
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.mechanisms.families import banded_toeplitz
from fl_dpftrl.tff.aggregators import adaptive, secure_sums
from tests import made

pytestmark = pytest.mark.tff

NUM_ROUNDS, NUM_RUNS = 3, 40_000
STRATEGY = banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.25], None)
SCHEMA = dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=1)
SENSITIVITY = STRATEGY.sensitivity(SCHEMA).value
NOISE_MULTIPLIER, COUNT_STDDEV, REPORT_GOAL = 3.0, 4.5, 2
MU = SENSITIVITY / NOISE_MULTIPLIER
CLIPPING = adaptive_clipping.AdaptiveClipping(
  1.0, learning_rate=0.7, rounds=2, clipped_count_stddev=COUNT_STDDEV
)
GROUP = CLIPPING.group(NOISE_MULTIPLIER, REPORT_GOAL)
SOUND = CLIPPING.update_noise_multiplier(NOISE_MULTIPLIER, REPORT_GOAL)


def always(t, clip_norm, released):
  """Beyond any clip norm, in one direction."""
  return np.full(NUM_RUNS, 1e9)


def by_the_last_sign(t, clip_norm, released):
  return 1e9 * (np.sign(released[-1]) if t else np.ones(NUM_RUNS))


def by_the_first_size(t, clip_norm, released):
  """Clipped, or just not: the update is nearly the same, and the count is not."""
  if not t:
    return np.full(NUM_RUNS, 1e9)
  return clip_norm * np.where(np.abs(released[0]) > 1.0, 1.000001, 0.999999)


def by_the_clip_norm(t, clip_norm, released):
  return np.where(clip_norm > 1.0, 1e9, -0.5)


def unit_of(update_stddev):
  """The units of updates whose noise has a standard deviation, and of the counts."""
  shift = lattice_units.Unit.of(NOISE_MULTIPLIER, [GROUP]).shift
  longest, count = (2.0 ** (lattice.BITS - shift) / s for s in (update_stddev, COUNT_STDDEV))
  return lattice_units.Unit(
    update_stddev * 2.0**-lattice.BITS, shift, int(longest**2), (int(count),)
  )


def bounded(updates, clip_norm, unit):
  """What the device adds in whole units: its update, and its counts."""
  counts = np.zeros((3, NUM_RUNS), np.int64)
  counts[0] = unit.norms[0] * (np.abs(updates) > clip_norm)
  return np.trunc(np.clip(updates / clip_norm, -1.0, 1.0) * unit.bound).astype(np.int64), counts


def losses(adversary, *, update_stddev):
  """Returns the privacy loss of each run, and of runs without the device."""
  unit = unit_of(update_stddev)
  rule = adaptive.Rule(CLIPPING, unit, (GROUP,), REPORT_GOAL, None, True)
  sums = secure_sums.Sums(None, unit, None, REPORT_GOAL)
  generator = np.random.default_rng(5)
  z = generator.normal(size=(NUM_ROUNDS, 4, NUM_RUNS))
  noise = np.einsum('ts,scr->tcr', STRATEGY.noising_matrix(NUM_ROUNDS), z)
  noise = np.rint(2.0**lattice.BITS * noise).astype(np.int64)
  clip_norm = np.ones(NUM_RUNS)
  released, seen, added, others = [], [], [], []
  for t in range(NUM_ROUNDS):
    update, counts = bounded(adversary(t, clip_norm, released), clip_norm, unit)
    other = bounded(np.cos(5.0 * released[-1]) if t else np.zeros(NUM_RUNS), clip_norm, unit)
    total = (update + other[0], counts + other[1])
    # A column for each run; its coordinates are released as those of one run.
    flat = (noise[t, 0], noise[t, 1:].reshape(-1))
    repeated = rule._replace(groups=(GROUP._replace(bounds=(1.0,) * (3 * NUM_RUNS)),))
    result, noised = repeated.release(sums, (total[0], total[1].reshape(-1)), flat, clip_norm)
    noised = np.reshape(noised, (3, NUM_RUNS))
    # What an observer makes of it: sums in units of each coordinate's noise.
    of_result = REPORT_GOAL * np.asarray(result, np.float64) / (update_stddev * clip_norm)
    of_count = 2.0 ** (unit.shift - lattice.BITS) * unit.norms[0]
    seen.append(np.vstack([of_result, of_count * np.asarray(noised, np.float64)]))
    added.append(2.0 ** (unit.shift - lattice.BITS) * np.vstack([update, counts]))
    others.append(2.0 ** (unit.shift - lattice.BITS) * np.vstack(other))
    released.append(np.asarray(result))
    clip_norm = rule.next_clip_norm(clip_norm, tf.constant(noised), tf.constant(t, tf.int64))
    clip_norm = np.asarray(clip_norm, np.float64)
  matrix = STRATEGY.strategy_matrix(NUM_ROUNDS)
  apply = lambda rows: np.einsum('ts,scr->tcr', matrix, np.array(rows))
  # The others are known to whoever asks about the device.
  without = apply(seen) - apply(others)
  with_it = without - apply(added)
  np.testing.assert_allclose(with_it, z, atol=1e-5)
  square = lambda residual: (residual**2).sum(axis=(0, 1))
  return 0.5 * (square(without) - square(with_it))


ADVERSARIES = [always, by_the_last_sign, by_the_first_size, by_the_clip_norm]


@pytest.mark.parametrize('adversary', ADVERSARIES)
def test_no_adversary_learns_more_than_is_accounted(adversary):
  loss = losses(adversary, update_stddev=SOUND)
  # Likelihoods that belong together: E exp(−loss) = 1.
  assert np.exp(-loss).mean() == pytest.approx(1.0, abs=0.03)
  assert loss.mean() <= 0.5 * MU**2 + 3.0 * loss.std() / math.sqrt(NUM_RUNS)
  assert math.log(np.exp(loss).mean()) <= MU**2 + 0.05


def test_the_bound_is_met():
  unit = lattice_units.Unit.of(NOISE_MULTIPLIER, [GROUP])
  assert unit_of(SOUND).most_square == pytest.approx(unit.most_square, rel=1e-5)
  assert unit_of(SOUND).size == pytest.approx(unit.size) and unit_of(SOUND).norms == unit.norms
  loss = losses(always, update_stddev=SOUND)
  assert loss.mean() == pytest.approx(0.5 * MU**2, rel=0.03)
  assert loss.var() == pytest.approx(MU**2, rel=0.03)


@made.cases(
  'update_stddev',
  NOISE_MULTIPLIER,  # Counts that nobody accounts for.
  # Counts of ±1/2: a device of zeros is still in the round, so its count is no 0 then.
  (NOISE_MULTIPLIER**-2 - (2.0 * COUNT_STDDEV) ** -2) ** -0.5,
)
def test_less_noise_exceeds_what_is_accounted(update_stddev):
  loss = losses(always, update_stddev=update_stddev)
  assert loss.mean() > 0.5 * MU**2 * 1.25
  assert loss.var() > MU**2 * 1.25
