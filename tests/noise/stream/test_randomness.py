import itertools
import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from fl_dpftrl.noise import randomness

pytestmark = pytest.mark.tff

SPECS = [tf.TensorSpec([50, 3], tf.float32), tf.TensorSpec([], tf.float32)]


def row(r):
  return tf.constant(r, tf.int64)


@pytest.mark.slow
def test_system_seeds_are_fresh_in_one_graph():
  seed_fn = tf.function(randomness.system_seed)
  seeds = np.stack([seed_fn().numpy() for _ in range(120)])
  assert seeds.dtype == np.int64 and seeds.shape == (120, 2)
  assert len(np.unique(seeds)) == 240
  values = np.unique(np.frombuffer(seeds.tobytes(), np.uint8))
  # 1920 bytes: all values but the two that end lines, a few missing by chance.
  assert not {10, 13} & set(values.tolist())
  assert len(values) > 240


def test_rows_are_functions_of_seed_and_row():
  seed = randomness.fixed_seed(0)
  later = randomness.draw(seed, row(9), SPECS)
  again = tf.function(lambda s, r: randomness.draw(s, r, SPECS))(seed, row(9))
  for one, other in zip(later, again):
    np.testing.assert_array_equal(one, other)


def test_no_word_comes_twice():
  seed = tf.constant([5, 2**63 - 1], tf.int64)
  words = [
    randomness.random_words(seed, row(r), tensor_index, 64).numpy()
    for r in (0, 1, 2, 3, 255, 256, 2**40)
    for tensor_index in (0, 1, 2, 2**24 - 1)
  ]
  words += [
    randomness.random_words(randomness.fixed_seed(s), row(0), 0, 64).numpy() for s in range(10)
  ]
  assert len(np.unique(words)) == np.size(words)


def test_counters_count_up_from_the_offset_of_the_tensor():
  # What the claim that counters never meet rests on, for one thread and many.
  seed = tf.constant([-5, 77], tf.int64)
  words = randomness.random_words(seed, row(12), 3, 2_000_000)
  for position in (0, 1, 999_999):
    pair = tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[2],
      key=tf.constant([2**64 - 5], tf.uint64),
      counter=tf.constant([3 * 2**40 + position, 77 ^ 12], tf.uint64),
      alg=1,
      dtype=tf.uint64,
    )
    np.testing.assert_array_equal(words[2 * position : 2 * position + 2], pair)


@pytest.mark.slow
def test_draws_standard_normals():
  seed = randomness.fixed_seed(3)
  sample = randomness.draw(seed, row(0), [tf.TensorSpec([199_999], tf.float32)])
  sample = sample[0].numpy()
  assert sample.shape == (199_999,)
  assert scipy.stats.kstest(sample, 'norm').pvalue > 1e-3
  # The test notices three percent.
  for scale in (0.97, 1.03):
    assert scipy.stats.kstest(scale * sample, 'norm').pvalue < 1e-3
  # Those made from the same pair of words, and neighbours.
  first, second = sample[:99_999], sample[100_000:]
  for one, other in ((first, second), (sample[:-1], sample[1:])):
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(one))
    assert abs(np.corrcoef(one**2, other**2)[0, 1]) < 5 / np.sqrt(len(one))


def test_no_words_make_a_zero():
  """float32 rounds the last 2³⁹ words to 2⁶⁴, whose logarithm as a share of 2⁶⁴ is 0."""
  firsts = [2**64 - 1 - below for below in (0, 1, 2**10, 2**11, 2**38, 2**39, 2**40, 2**62)]
  firsts += [0, 1, 2**39, 2**63 - 1, 2**63]
  eighths = [turn * 2**61 + near for turn in range(8) for near in (0, 1, 2**38)]
  seconds = [*eighths, 2**61 - 1, 2**62 - 1, 2**63 - 1, 2**64 - 1]
  pairs = list(itertools.product(firsts, seconds))
  words = [first for first, _ in pairs] + [second for _, second in pairs]
  sample = randomness.normals(tf.constant(words, tf.uint64)).numpy()
  assert np.isfinite(sample).all() and (sample != 0.0).all()
  # −log u from the exact distance to the nearer end of (0, 1).
  from_end = [min(2 * w + 1, 2**65 - 2 * w - 1) / 2**65 for w, _ in pairs]
  logs = [math.log1p(-h) if w >= 2**63 else math.log(h) for (w, _), h in zip(pairs, from_end)]
  lengths = np.hypot(*np.split(np.float64(sample), 2))
  np.testing.assert_allclose(lengths, np.sqrt(-2.0 * np.array(logs)), rtol=1e-6)
  turns = 2.0 * math.pi * np.array([(2 * w + 1) / 2**65 for _, w in pairs])
  units = np.concatenate([np.cos(turns), np.sin(turns)])
  np.testing.assert_allclose(sample / np.tile(lengths, 2), units, atol=1e-6)


def test_refuses_what_would_run_out_of_counters():
  seed = randomness.fixed_seed(0)
  with pytest.raises(ValueError, match='num_words='):
    randomness.random_words(seed, row(0), 0, 2**40 + 1)
