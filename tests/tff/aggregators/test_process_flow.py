"""What tensors follow from, where it is easily missed; and against what changes."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from fl_dpftrl.tff.aggregators import expressions, process_flow

pytestmark = pytest.mark.tff

VECTOR = tff.TensorType(np.float32, [2])
ONE = tff.TensorType(np.float32)


def dependence(computation):
  """Returns, for each tensor of a computation's result, the arguments that it follows from."""
  made = expressions.Expression(computation)
  number = len(list(expressions.paths(computation.type_signature.parameter)))
  given = [expressions.Tensor(made.parameter, i) for i in range(number)]
  masks = process_flow.Masks({tensor: 8 << i for i, tensor in enumerate(given)})
  return [{i for i in range(number) if masks.of(tensor) & 8 << i} for tensor in made.result]


def test_what_does_not_depend_is_told_apart():
  copies = tff.tensorflow.computation(lambda x, y: (2.0 * y, x, tf.ones([2])), VECTOR, ONE)
  assert dependence(copies) == [{1}, {0}, set()]


def at_clients(member):
  return tff.FederatedType(member, tff.CLIENTS)


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

  assert dependence(sums) == [{0}, {1}, {0}, {2}, {0, 1}, {1}, {0}]


def by_variable(a, b):
  variable = tf.Variable(0.0)
  with tf.control_dependencies([variable.assign(a)]):
    return variable.read_value() + b


def by_variable_of_a_function(a, b):
  variable = tf.Variable(0.0)
  with tf.control_dependencies([tf.function(lambda value: variable.assign(value) + 0.0)(a)]):
    return variable.read_value() + b


def by_table(a, b):
  table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, -1.0)
  with tf.control_dependencies([table.insert(tf.constant([1], tf.int64), [a])]):
    return table.lookup(tf.constant(1, tf.int64)) + b


def by_old_branch(a, b):
  no, yes = tf.raw_ops.Switch(data=b, pred=a > 0.3)
  return tf.raw_ops.Merge(inputs=[no, -yes]).output


OPERATIONS = {
  'add': lambda a, b: a + b,
  'cancel': lambda a, b: a - a + b,
  'where': lambda a, b: tf.where(a > 0.3, b, -b),
  'branch': lambda a, b: tf.cond(a > 0.2, lambda: b + 1.0, lambda: b),
  'old branch': by_old_branch,
  'loop': lambda a, b: tf.while_loop(
    lambda i, v: i < 3.0 * a, lambda i, v: (i + 1.0, v + b), [tf.constant(0.0), b]
  )[1],
  'shape': lambda a, b: tf.cast(tf.size(tf.where(tf.stack([a, b]) > 0.0)), tf.float32),
  'variable': by_variable,
  'variable of a function': by_variable_of_a_function,
  'function': lambda a, b: tf.function(lambda u, v: u * v)(a, b),
  'data set': lambda a, b: tf.data.Dataset.range(2).map(lambda i: a).reduce(b, tf.add),
  'array': lambda a, b: tf.TensorArray(tf.float32, 2).unstack(tf.stack([a, b])).read(1) + a,
  'table': by_table,
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
@pytest.mark.parametrize('seed', range(6))
def test_whatever_changes_with_clients_data_is_said_to_follow_from_them(seed):
  process = drawn_process(np.random.default_rng(seed))
  flow = process_flow.ProcessFlow(process)
  masks = flow.masks()
  said = {i for i, tensor in enumerate(flow.next.result) if masks.of(tensor)}
  ends = []
  with tff_inprocess.within():
    for data in ([0.25, 0.5], [0.25, -0.75], [0.9, 0.5], [0.0, 0.0]):
      state, seen = process.initialize(), []
      for _ in range(3):
        state = process.next(state, [np.float32(x) for x in data])
        seen.append(state)
      ends.append(np.array(seen, np.float64))
  changed = np.any([~np.isclose(end, ends[0], equal_nan=True) for end in ends[1:]], axis=(0, 1))
  assert set(np.flatnonzero(changed)) <= said


def test_the_same_function_has_the_same_identity_and_any_change_another():
  """Names of nodes and functions do not count; operations, constants and their order do."""

  def made(operation=tf.add, constant=2.0, names=''):
    @tf.function
    def inside(a):
      return tf.cond(a > 0.0, lambda: operation(a, constant), lambda: a)

    def work(x):
      with tf.name_scope(names or 'plain'):
        return tf.while_loop(lambda a: a < 9.0, inside, [x])[0], inside(x)

    (node,) = expressions.Expression(tff.tensorflow.computation(work, ONE)).nodes
    return node.graph.identity

  others = made(tf.multiply), made(constant=3.0), made(tf.subtract)
  assert made() == made(names='other') and len({made(), *others}) == 4
