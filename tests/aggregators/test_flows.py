"""Dependence of results on arguments, where it is easily missed; and against what changes."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.runtime import flows, marks, rounds

pytestmark = pytest.mark.tff

VECTOR = tff.TensorType(np.float32, [2])
ONE = tff.TensorType(np.float32)


def dependence(function, *types):
  """Returns, for each tensor of a TensorFlow function's result, the arguments it depends on."""
  flow = flows.of(tff.tensorflow.computation(function, *types))
  number = len(flow.parameters)
  return [{i for i in range(number) if leaf.mask & flow.bit(i)} for leaf in flow.leaves]


def by_variable(x, y):
  variable = tf.Variable(tf.zeros([2]))
  with tf.control_dependencies([variable.assign(x)]):
    return variable.read_value(), y


def by_variable_without_order(x, y):
  variable = tf.Variable(tf.zeros([2]))
  variable.assign_add(x)
  return variable.read_value() + 1.0, y


def by_order_alone(x, y):
  with tf.control_dependencies([tf.debugging.assert_positive(x)]):
    return tf.constant(1.0), y


def by_loop(x, y):
  return tf.while_loop(lambda i: tf.reduce_sum(x) > i, lambda i: i + 1.0, [tf.constant(0.0)]), y


def by_branch(x, y):
  return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.constant(1.0), lambda: tf.constant(2.0)), y


def by_old_branch(x, y):
  here = tf.reduce_sum(x) > 0.0
  no, yes = tf.raw_ops.Switch(data=tf.constant(True), pred=here)
  with tf.control_dependencies([yes]):
    one = tf.constant(1.0)
  with tf.control_dependencies([no]):
    two = tf.constant(2.0)
  return tf.raw_ops.Merge(inputs=[one, two]).output, y


def by_function(x, y):
  return tf.function(lambda a: tf.reduce_max(a))(x), y


def by_variable_of_a_function(x, y):
  variable = tf.Variable(tf.zeros([2]))

  @tf.function
  def write(value):
    variable.assign(value)

  write(x)
  return variable.read_value(), y


def by_array(x, y):
  array = tf.TensorArray(tf.float32, 2, dynamic_size=False).unstack(x)
  return array.read(1), y


def by_data_set(x, y):
  data = tf.data.Dataset.from_tensor_slices(x).map(lambda e: 2.0 * e)
  return data.reduce(0.0, lambda total, e: total + e), y


def by_captured_value_of_a_data_set(x, y):
  data = tf.data.Dataset.range(3).map(lambda e: tf.cast(e, tf.float32) * x[0])
  return data.reduce(0.0, lambda total, e: total + e), y


def by_iterator(x, y):
  iterator = tf.compat.v1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(x))
  with tf.control_dependencies([iterator.initializer]):
    return tf.raw_ops.IteratorGetNext(
      iterator=iterator._iterator_resource, output_types=[tf.float32], output_shapes=[[]]
    )[0], y


def by_table(x, y):
  table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, -1.0)
  insert = table.insert(tf.constant([1], tf.int64), x[:1])
  with tf.control_dependencies([insert] if insert is not None else []):
    return table.lookup(tf.constant([1], tf.int64)), y


def by_shape(x, y):
  return tf.cast(tf.size(tf.where(x > 0)), tf.float32), y


def by_string(x, y):
  return tf.strings.length(tf.strings.as_string(x[0])), y


WAYS = [function for name, function in list(globals().items()) if name.startswith('by_')]


@pytest.mark.slow
@pytest.mark.parametrize('way', WAYS, ids=lambda way: way.__name__)
def test_no_way_through_a_graph_is_missed(way):
  first, second = dependence(way, VECTOR, ONE)
  assert 0 in first and second == {1}


def test_what_does_not_depend_is_told_apart():
  assert dependence(lambda x, y: (2.0 * y, x, tf.ones([2])), VECTOR, ONE) == [{1}, {0}, set()]


def at_server(member):
  return tff.FederatedType(member, tff.SERVER)


def at_clients(member):
  return tff.FederatedType(member, tff.CLIENTS)


def depends(computation):
  """Returns whether the result of a computation depends on its first argument."""
  flow = flows.of(computation)
  return [bool(leaf.mask & flow.bit(0)) for leaf in flow.leaves]


def test_federated_operations_are_followed():
  add = tff.tensorflow.computation(lambda a, b: a + b, ONE, ONE)
  same = tff.tensorflow.computation(lambda a: a, ONE)
  zero = tff.tensorflow.computation(lambda: tf.constant(0.0))

  @tff.federated_computation(at_clients(ONE), at_clients(ONE), at_clients(tff.TensorType(np.int32)))
  def sums(x, y, z):
    return (
      tff.federated_sum((x, y)),
      tff.federated_aggregate(x, zero(), add, add, same),
      tff.federated_secure_sum(z, 3),
      tff.federated_mean(y, x),
      tff.federated_mean(y),
      tff.federated_sum(tff.federated_broadcast(tff.federated_sum(x))),
    )

  assert depends(sums) == [True, False, True, False, True, False, True]
  # No sum is an unchanged copy of what it sums.
  assert {leaf.origin for leaf in flows.of(sums).leaves} == {None}


def test_keys_of_a_selection_are_followed():
  keys = tff.TensorType(np.int32, [1])
  pick = tff.tensorflow.computation(lambda table, key: table[key], VECTOR, np.int32)

  @tff.federated_computation(at_clients(keys), at_server(VECTOR))
  def select(chosen, table):
    limit = tff.federated_value(2, tff.SERVER)
    taken = tff.federated_select(chosen, limit, table, pick)
    first = tff.tensorflow.computation(lambda d: d.reduce(0.0, tf.add), tff.SequenceType(ONE))
    return tff.federated_sum(tff.federated_map(first, taken))

  assert depends(select) == [True]


def test_sequences_are_followed():
  total = tff.tensorflow.computation(lambda d: d.reduce(0.0, tf.add), tff.SequenceType(ONE))

  @tff.federated_computation(at_clients(tff.SequenceType(ONE)))
  def sum_all(data):
    return tff.federated_sum(tff.federated_map(total, data))

  assert depends(sum_all) == [True]


def test_what_python_remembers_is_followed():
  """A function of clients leaves values in Python's memory, where one of the server reads them."""
  kept = []

  def keep(x):
    kept.append(x)
    return np.float32(0.0)

  leave = tff.tensorflow.computation(
    lambda x: tf.ensure_shape(tf.numpy_function(keep, [x], tf.float32), []), ONE
  )
  read = tff.tensorflow.computation(
    lambda s: s + tf.ensure_shape(tf.numpy_function(kept.pop, [], tf.float32), []), ONE
  )

  @tff.federated_computation
  def initialize():
    return tff.federated_value(0.0, tff.SERVER)

  @tff.federated_computation(at_server(ONE), at_clients(ONE))
  def next_fn(state, x):
    nothing = tff.federated_sum(tff.federated_map(leave, x))
    return tff.federated_map(read, state), nothing

  process = tff.templates.IterativeProcess(initialize, next_fn)
  one = rounds.of(process)
  assert one.state_paths(one.tainted()) == [('state',)]


OPERATIONS = {
  'add': lambda a, b: a + b,
  'cancel': lambda a, b: a - a + b,
  'where': lambda a, b: tf.where(a > 0.3, b, -b),
  'branch': lambda a, b: tf.cond(a > 0.2, lambda: b + 1.0, lambda: b),
  'loop': lambda a, b: tf.while_loop(
    lambda i, v: i < 3.0 * a, lambda i, v: (i + 1.0, v + b), [tf.constant(0.0), b]
  )[1],
  'variable': lambda a, b: by_variable(tf.stack([a, b]), b)[0][0],
  'function': lambda a, b: tf.function(lambda u, v: u * v)(a, b),
  'data set': lambda a, b: by_data_set(tf.stack([a, b]), b)[0],
  'array': lambda a, b: by_array(tf.stack([a, b]), b)[0],
  'table': lambda a, b: by_table(tf.stack([a, b]), b)[0][0],
}


def drawn_process(generator):
  """Draws a process of five state tensors, each a random expression of state and clients' sum."""
  number = 5
  names = list(OPERATIONS)

  def expression(values):
    last = values[-1]
    for _ in range(generator.integers(1, 3)):
      pair = [values[generator.integers(len(values))], last]
      generator.shuffle(pair)
      last = OPERATIONS[names[generator.integers(len(names))]](*pair)
    return last

  state_type = tff.to_type([ONE] * number)
  work = tff.tensorflow.computation(
    lambda s, x: (expression([s[0], s[1], x]), expression([s[2], s[3]])), state_type, ONE
  )

  def update(state, sums):
    # Not every tensor sees the sums.
    return [
      expression([*state, sums[1], sums[0]] if i == 0 else [*state[i:], state[i - 1]])
      if generator.random() < 0.7
      else state[i]
      for i in range(number)
    ]

  update = tff.tensorflow.computation(update, state_type, tff.to_type([ONE, ONE]))
  start = tff.tensorflow.computation(lambda: [tf.constant(0.1 * (i + 1)) for i in range(number)])

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(start, tff.SERVER)

  @tff.federated_computation(initialize.type_signature.result, at_clients(ONE))
  def next_fn(state, x):
    sent = tff.federated_map(work, (tff.federated_broadcast(state), x))
    return tff.federated_map(update, (state, tff.federated_sum(sent)))

  return tff.templates.IterativeProcess(initialize, next_fn)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(12))
def test_whatever_changes_with_clients_data_is_said_to_depend_on_them(seed, in_process):
  process = drawn_process(np.random.default_rng(seed))
  one = rounds.of(process)
  said = {int(path[-1]) for path in one.state_paths(one.tainted())}
  ends = []
  with in_process():
    for data in ([0.25, 0.5], [0.25, -0.75], [0.9, 0.5], [0.0, 0.0]):
      state, seen = process.initialize(), []
      for _ in range(3):
        state = process.next(state, [np.float32(x) for x in data])
        seen.append(state)
      ends.append(np.array(seen, np.float64))
  changed = np.any([~np.isclose(end, ends[0], equal_nan=True) for end in ends[1:]], axis=(0, 1))
  assert set(np.flatnonzero(changed)) <= said


def noised_process(*, noised=2, times=1, noise_of=lambda noise, total: noise, written=True):
  """A process whose state is a vector and its noise, in two tensors.

  Args:
    noised: number of the tensors of the sum that noise is added to.
    times: number of sums that get the noise.
    noise_of: (noise, sum) → what is added.
    written: whether the noise of the state is advanced.
  """

  @tff.tensorflow.computation(VECTOR, ONE, VECTOR)
  def release(state, seed, total):
    del state
    seed = marks.noise_in(seed, [True], 'me')
    parts = [noise_of(seed * (i + 1.0), total[i]) if i < noised else 0.0 for i in range(2)]
    for _ in range(times):
      added = marks.add_noise([total[0], total[1]], [tf.convert_to_tensor(p) for p in parts], 'me')
    return tf.stack(added), marks.noise_out(seed + 1.0, 'me')

  start = tff.tensorflow.computation(lambda: (tf.zeros([2]), tf.constant(0.0)))

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(start, tff.SERVER)

  @tff.federated_computation(initialize.type_signature.result, at_clients(VECTOR))
  def next_fn(state, x):
    result, seed = tff.federated_map(release, (state[0], state[1], tff.federated_sum(x)))
    return tff.federated_zip((result, seed if written else state[1]))

  return tff.templates.IterativeProcess(initialize, next_fn)


@pytest.mark.parametrize(
  ('arguments', 'holds'),
  [
    ({}, True),
    (dict(noised=1), False),
    (dict(noised=0), False),
    (dict(written=False), False),
    (dict(noise_of=lambda noise, total: 0.0 * total), False),
    (dict(noise_of=lambda noise, total: noise - total), False),
  ],
  ids=['noise', 'half', 'none', 'not advanced', 'of the data', 'against the data'],
)
def test_a_release_hides_its_sum_if_all_of_its_noise_comes_from_the_state(arguments, holds):
  one = rounds.of(noised_process(**arguments))
  assert [release.identity for release in one.releases] == ['me']
  hiding = [release for release in one.releases if one.is_advanced(release)]
  assert bool(hiding) is holds
  assert bool(one.state_paths(one.tainted(hiding))) is not holds
  assert one.state_paths(one.tainted())  # Unless somebody asks for this release.


def test_noise_in_two_sums_of_a_graph_is_counted():
  (release,) = rounds.of(noised_process(times=2)).releases
  assert release.times == 2


def test_a_release_at_clients_hides_nothing():

  @tff.tensorflow.computation(ONE, ONE)
  def release(seed, x):
    return marks.add_noise(x, marks.noise_in(seed, [True], 'me'), 'me')

  @tff.federated_computation(at_clients(ONE), at_server(ONE))
  def next_fn(x, seed):
    return tff.federated_sum(tff.federated_map(release, (tff.federated_broadcast(seed), x)))

  assert not flows.of(next_fn).releases and depends(next_fn) == [True]
