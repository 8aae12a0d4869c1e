"""The context as users call it."""

import collections
import functools
import operator
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from tff_inprocess import clients, programs

pytestmark = pytest.mark.tff

FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.federated_computation(FLOATS)
def mean_and_doubled(values):
  double = tff.tensorflow.computation(lambda x: 2.0 * x, np.float32)
  return tff.federated_mean(values), tff.federated_map(double, values)


def test_values_are_as_tff_gives_them(in_process):
  @tff.tensorflow.computation
  def constants():
    return {'a': tf.constant([1.0, 2.0]), 'b': (tf.constant(3), tf.constant('x'))}

  with in_process():
    found = constants()
    mean, doubled = mean_and_doubled([1.0, 2.0, 6.0])
  assert found.keys() == {'a', 'b'}
  np.testing.assert_array_equal(found['a'], np.array([1.0, 2.0], np.float32))
  assert found['b'] == (3, b'x') and isinstance(found['b'][0], np.int32)
  assert mean == 3.0 and isinstance(mean, np.float32)
  assert doubled == [2.0, 4.0, 12.0]


def test_a_sum_is_that_of_blocks_in_order(in_process):
  """Bit for bit: from zero within each block, then block by block, then group by group."""
  rng = np.random.default_rng(3)

  @tff.federated_computation(tff.FederatedType(tff.TensorType(np.float32, [5]), tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  def summed(parts):
    return functools.reduce(operator.add, parts)

  for num, num_groups in ((7, 1), (40, 1), (256, 1), (600, 3)):
    updates = (rng.normal(size=(num, 5)) * 10.0 ** rng.integers(-3, 4, (num, 1))).astype('f4')
    blocks = [summed([np.zeros(5, 'f4'), *updates[block]]) for block in clients.blocks(num)]
    groups = clients.groups(len(blocks))
    assert len(groups) == num_groups and sum(map(len, groups)) == len(blocks)
    expected = summed([summed(blocks[i] for i in group) for group in groups])
    for threads in (1, 8):
      with in_process(max_concurrent_clients=threads):
        np.testing.assert_array_equal(total(list(updates)), expected)


def test_what_cannot_run_is_named(in_process):
  applied = tff.federated_computation(
    lambda function, x: function(x), tff.FunctionType(np.int32, np.int32), np.int32
  )
  add_one = tff.tensorflow.computation(lambda x: x + 1, np.int32)
  with in_process():
    with pytest.raises(
      tff_inprocess.UnsupportedComputationError, match='function.* inside the computation'
    ) as caught:
      applied(add_one, 1)
  assert 'worker' not in str(caught.value)
  assert len(str(caught.value)) <= 300 and '\n' not in str(caught.value)


def test_arguments_for_other_numbers_of_clients_are_refused(in_process):
  comp = tff.federated_computation(
    lambda a, b: (tff.federated_sum(a), tff.federated_sum(b)), FLOATS, FLOATS
  )
  with in_process():
    assert comp([1.0], [2.0]) == (1.0, 2.0)
    with pytest.raises(ValueError, match='for 1 and for 2 clients'):
      comp([1.0], [2.0, 3.0])


def test_a_value_of_another_type_is_named(in_process):
  state_type = tff.types.to_type(
    collections.OrderedDict(model=np.float32, noise=[(np.int32, [3]), (np.float32, [2])])
  )

  @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER), FLOATS)
  def advance(state, values):
    return state, tff.federated_sum(values)

  state = dict(model=np.float32(1.0), noise=(np.zeros(3, np.int32), np.zeros(4, np.float32)))
  message = r'^state\.noise\.1: expected .*\(2,\), got float32, \(4,\); .* another model, strategy'
  with in_process(), pytest.raises(TypeError, match=message):
    advance(state, [1.0])
  with in_process(), pytest.raises(TypeError, match='^state.noise: expected a structure'):
    advance({**state, 'noise': ()}, [1.0])


def test_clients_at_the_same_time_compile_once_and_each_runs_once(in_process, monkeypatch):
  """Each would optimise the function for itself; the call that compiles it runs nothing."""
  run, ran, calls = programs.Step._run, [], []

  def recorded(step, arguments, manager):
    calls.append((step, manager.is_cancelled))
    return run(step, arguments, manager)

  monkeypatch.setattr(programs.Step, '_run', recorded)

  @tff.tensorflow.computation(np.float32)
  def counted(x):
    return tf.ensure_shape(tf.numpy_function(lambda y: ran.append(y) or y, [x], tf.float32), [])

  @tff.federated_computation(FLOATS)
  def total(values):
    return tff.federated_sum(tff.federated_map(counted, values))

  with in_process(max_concurrent_clients=4):
    assert total([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == total([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]) == 21.0
  assert sorted(ran) == sorted([1.0, 2.0, 3.0, 4.0, 5.0, 6.0] * 2)
  for step in dict.fromkeys(step for step, _ in calls):
    compiles = [is_cancelled for one, is_cancelled in calls if one is step]
    assert compiles[0] and not any(compiles[1:])


@pytest.mark.slow
def test_a_client_that_fails_hides_behind_no_other(in_process):
  """TensorFlow cancels all calls that share a manager where one of them fails."""

  @tff.tensorflow.computation(tff.TensorType(np.int32, [2]))
  def looked_up(numbers):
    steps, index = numbers[0], numbers[1]
    spent = tf.while_loop(lambda i: i < steps, lambda i: i + 1, [tf.constant(0)])[0]
    return tf.gather([1, 2, 3], index + 0 * spent)

  @tff.federated_computation(tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS))
  def total(numbers):
    return tff.federated_sum(tff.federated_map(looked_up, numbers))

  slow, bad = np.array([20_000, 1], np.int32), np.array([0, 7], np.int32)
  message = r'^client 2, counted from 0, of 6: operation GatherV2 of the client computation failed '
  with in_process(max_concurrent_clients=4):
    for _ in range(10):
      with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        total([slow, slow, bad, bad, slow, bad])
      assert re.search(message, caught.value.message), caught.value.message
    with pytest.raises(TypeError, match='^client 1, counted from 0, of 2: expected .* got float32'):
      total([slow, np.zeros(2, np.float32)])


def test_a_block_puts_back_what_ran_computations_before(in_process):
  stack = tff.framework.get_context_stack()
  before = stack.current
  with in_process() as outer:
    with pytest.raises(KeyError), tff_inprocess.within(seed=1) as context:
      assert stack.current is context
      raise KeyError
    assert stack.current is outer
  assert stack.current is before
  with pytest.raises(RuntimeError, match='stopped'), stack.install(context):
    tff.federated_computation(lambda: tff.federated_value(1, tff.SERVER))()


def test_sums_that_follow_from_each_other(in_process):
  """The second sum needs a value of each client that the first one kept."""

  @tff.tensorflow.computation(np.float32, np.float32)
  def squared_deviation(x, mean):
    return (x - mean) ** 2

  @tff.federated_computation(FLOATS)
  def variance(values):
    half = tff.federated_map(tff.tensorflow.computation(lambda x: x / 2.0, np.float32), values)
    mean = tff.federated_broadcast(tff.federated_mean(half))
    deviations = tff.federated_map(squared_deviation, (half, mean))
    return tff.federated_mean(deviations), deviations, mean

  with in_process():
    found, deviations, mean = variance([2.0, 4.0, 12.0])
  assert (found, mean) == (pytest.approx(14 / 3), 3.0)
  assert deviations == [4.0, 1.0, 9.0]
