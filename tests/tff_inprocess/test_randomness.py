"""Random operations follow from seed, call and client, and from nothing else."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.noise import randomness as noise_randomness

pytestmark = pytest.mark.tff

VECTOR = tff.TensorType(np.float32, [3])
AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


def on_clients(function):
  """clients' floats → function(float) of each."""
  mapped = tff.tensorflow.computation(function, np.float32)
  return tff.federated_computation(lambda values: tff.federated_map(mapped, values), AT_CLIENTS)


@tf.function
def drawn_in_a_function(shape):
  return tf.random.normal(shape)


def draws(x):
  """Draws at the top, in a function, a branch, two loops and a reduction."""

  def more(_, numbers):
    branch = tf.cond(x > 0.0, lambda: tf.random.uniform([1]), lambda: tf.random.normal([1]))
    inner = tf.while_loop(
      lambda i, _: i < 2,
      lambda i, found: (i + 1, tf.concat([found, drawn_in_a_function([1])], 0)),
      (0, tf.zeros([0])),
      shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
    )[1]
    return tf.concat([numbers, branch, inner], 0)

  loop = tf.while_loop(
    lambda i, _: i < 3,
    lambda i, numbers: (i + 1, more(i, numbers)),
    (0, tf.zeros([0])),
    shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
  )[1]
  reduced = tf.data.Dataset.range(4).reduce(
    tf.zeros([4]), lambda found, i: found + tf.one_hot(i, 4) * tf.random.truncated_normal([])
  )
  whole = tf.cast(tf.random.uniform([2], maxval=1 << 30, dtype=tf.int32), tf.float32)
  return tf.concat([tf.random.normal([2]), drawn_in_a_function([2]), loop, reduced, whole], 0)


def test_draws_follow_from_seed_call_and_client_and_no_two_are_the_same(in_process):
  comp, values = on_clients(draws), [1.0, -1.0, 1.0, 1.0]
  with in_process(max_concurrent_clients=1):
    first, second = np.stack(comp(values)), np.stack(comp(values))
  with in_process(max_concurrent_clients=4) as context:
    np.testing.assert_array_equal(np.stack(comp(values)), first)
    np.testing.assert_array_equal(np.stack(comp(values)), second)
    with context.numbered(1):
      np.testing.assert_array_equal(np.stack(comp(values)), second)
      np.testing.assert_array_equal(np.stack(comp(values)), second)
    np.testing.assert_array_equal(np.stack(comp(values[:2])).shape, (2, 19))
  with in_process(seed=8):
    other = np.stack(comp(values))
  assert np.unique([first, second]).size == 2 * len(values) * (2 + 2 + 9 + 4 + 2)
  assert not np.intersect1d(first, other).size


def test_without_a_seed_draws_are_secret(in_process):
  comp = on_clients(draws)
  found = []
  for _ in range(2):
    with in_process(seed=None):
      found.append(np.stack(comp([1.0])))
  assert not np.intersect1d(*found).size


def test_draws_at_the_server_do_not_follow_from_the_seed(in_process):
  """Each call draws anew, also where an operation has a seed, and where summands are added up."""

  @tff.tensorflow.computation(np.float32)
  def noised(x):
    return x + tf.random.normal([3]), x + tf.random.normal([3], seed=5)

  zero = tff.tensorflow.computation(lambda: tf.zeros([3]))
  same = tff.tensorflow.computation(lambda x: x, VECTOR)

  def adding(noise, of):
    return tff.tensorflow.computation(lambda x, y: x + y + noise(), VECTOR, of)

  draw, nothing = lambda: tf.random.normal([3]), lambda: 0.0

  @tff.federated_computation(AT_CLIENTS)
  def total(values):
    added_up = tff.federated_aggregate(
      values, zero(), adding(draw, np.float32), adding(nothing, VECTOR), same
    )
    merged = tff.federated_aggregate(
      values, zero(), adding(nothing, np.float32), adding(draw, VECTOR), same
    )
    return *tff.federated_map(noised, tff.federated_sum(values)), added_up, merged

  found = []
  for _ in range(2):
    with in_process():
      found.extend(total([1.0, 2.0]) for _ in range(2))
      with tff.framework.get_context_stack().current.numbered(0):
        found.append(total([1.0, 2.0]))
  numbers = np.concatenate([np.concatenate(one) for one in found])
  assert np.unique(numbers).size == numbers.size == 72


def test_a_shuffle_on_clients_is_repeated(in_process):
  def order(x):
    data = tf.data.Dataset.range(50).shuffle(50).batch(50)
    return tf.cast(data.get_single_element(), tf.float32) + x

  comp = on_clients(order)
  found = []
  for threads in (1, 2):
    with in_process(max_concurrent_clients=threads):
      found.append(np.stack(comp([0.0] * 3)))
  np.testing.assert_array_equal(*found)
  assert (np.sort(found[0]) == np.arange(50)).all()
  assert np.unique(found[0], axis=0).shape[0] == 3


def test_secret_seeds_of_noise_stay_the_operating_systems(in_process):
  seed = tff.tensorflow.computation(noise_randomness.system_seed)
  found = []
  for _ in range(2):
    with in_process():
      found.extend([seed(), seed()])
  assert np.unique(np.stack(found)).size == 8


def test_draws_are_standard(in_process):
  comp = on_clients(
    lambda x: tf.concat([tf.random.normal([20_000]), tf.random.uniform([20_000])], 0) + x
  )
  with in_process():
    normal, uniform = np.split(comp([0.0])[0], 2)
  assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1.0) < 0.02
  assert uniform.min() >= 0.0 and uniform.max() < 1.0
  assert abs(uniform.mean() - 0.5) < 0.01
