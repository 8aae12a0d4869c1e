"""Processes that bring clients' data past the noise, or tell the noise: all are refused."""

import collections
import functools
import hashlib
import re

import jax
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from jax.experimental import jax2tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.core.impl.context_stack import context_stack_impl

from fl_dpftrl.tff.aggregators import factories, operations, process_check
from tests.tff.aggregators import custom_sums
from tests.tff.aggregators.small_factories import make
from tests.tff.aggregators.test_process_check import VECTOR, honest, process_of

pytestmark = pytest.mark.tff
raw, graph, Data = tf.raw_ops, tff.tensorflow.computation, tf.data.Dataset
NAMED = dict(dtypes=[tf.float32], shared_name='raw')
FILE = '/tmp/of_client'
OURS = make()
memory = collections.defaultdict(lambda: np.zeros(3, np.float32))


def at(function, *values):
  """Maps values at their place by a TensorFlow function."""
  types = [value.type_signature.member for value in values]
  return tff.federated_map(graph(function, *types), values if len(values) > 1 else values[0])


def after(operation, value):
  """Returns a value once an operation has run."""
  with tf.control_dependencies([operation]):
    return tf.identity(value)


def vector(value):
  return tf.ensure_shape(tf.cast(value, tf.float32), [3])


def remember(x):
  memory['x'] = memory['x'] + np.asarray(x)
  return memory['x']


def python(x):
  return vector(tf.numpy_function(remember, [x], tf.float32))


def stateless_python(x):
  return vector(tf.numpy_function(remember, [x], tf.float32, stateful=False))


def plus(a, b):
  return a + b


def generator(x):
  made = lambda value: iter([remember(value)])
  return Data.from_generator(made, output_signature=tf.TensorSpec([3]), args=[x]).reduce(x, tf.add)


def jax_callback(x):
  as_vector = jax.ShapeDtypeStruct((3,), np.float32)
  called = jax2tf.call_tf(python, call_tf_graph=True, output_shape_dtype=as_vector)
  return vector(jax2tf.convert(called)(x))


def compiled_elsewhere(x):
  of = dict(version=5, module=b'', Tout=[tf.float32], Sout=[[3]], platforms=['CPU'])
  return vector(xla.call_module([x], **of)[0])


class RunningMean(tf.keras.layers.Layer):
  """Keeps what it has seen in NumPy."""

  def call(self, x):
    return python(x)


def summary_in_a_file(x):
  writer = raw.SummaryWriter(shared_name='written')
  of = dict(logdir='/tmp', max_queue=1, flush_millis=1, filename_suffix='')
  return after(raw.CreateSummaryFileWriter(writer=writer, **of), x)


def data_set_from_text(x):
  made = raw.DatasetFromGraph(graph_def=tf.strings.as_string(x[0]))
  return tf.data.experimental.from_variant(made, tf.TensorSpec([3])).reduce(x, tf.add)


def batch_of_several_clients(x):
  """TensorFlow gathers calls under one name into one, and does not call that stateful."""
  mean = tf.function(lambda v: tf.reduce_mean(v) + 0.0 * v, input_signature=[tf.TensorSpec([None])])
  of = dict(num_batch_threads=1, max_batch_size=99, batch_timeout_micros=1000, Tout=[tf.float32])
  made = mean.get_concrete_function()
  return vector(
    raw.BatchFunction(in_tensors=[x], captured_tensors=[], f=made, shared_name='raw', **of)[0]
  )


def sum_among_clients(x):
  of = dict(group_size=2, group_key=1, instance_key=1, merge_op='Add', final_op='Id')
  return raw.CollectiveReduceV2(input=x, ordering_token=[], **of)


def sampler_that_learns(x):
  of = dict(num_true=1, num_sampled=3, unique=True, range_max=9)
  classes = tf.cast(x[None, :1], tf.int64)
  return vector(raw.LearnedUnigramCandidateSampler(true_classes=classes, **of).sampled_candidates)


def draws_that_go_on(x):
  """How much one client draws decides what the next client draws."""
  return x + tf.reduce_sum(tf.random.poisson(tf.cast(tf.abs(x[:1]), tf.int32), 1.0, seed=1))


def iterator_of_another_call(x):
  handle = raw.IteratorFromStringHandleV2(string_handle=tf.strings.as_string(x[0]))
  of = dict(output_types=[tf.float32], output_shapes=[[3]])
  return raw.IteratorGetNext(iterator=handle, **of)[0]


def order_of_addresses(x):
  """The keys of a map of tensors come in an order that differs from map to map."""
  made = raw.EmptyTensorMap()
  for key in range(3):
    made = raw.TensorMapInsert(input_handle=made, key=key, value=x)
  keys = raw.TensorMapStackKeys(input_handle=made, key_dtype=tf.int32)
  return vector(x * tf.cast(keys, tf.float32))


def words_of_an_assertion(x):
  return after(raw.Assert(condition=x[0] > 1e9, data=[tf.strings.as_string(x)]), x)


# What clients do with their updates, and the operation for which it is refused.
AT_CLIENTS = {
  'numpy': ('PyFunc', python),
  'python': ('EagerPyFunc', lambda x: vector(tf.py_function(remember, [x], tf.float32))),
  'stateless python': ('PyFuncStateless', stateless_python),
  'python in a loop': ('PyFunc',
    lambda x: tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, python(v)), [0, x])[1]),
  'python in a branch': ('PyFunc', lambda x: tf.cond(x[0] > 0, lambda: python(x), lambda: x)),
  'python in a data set': ('PyFunc', lambda x: Data.from_tensors(x).map(python).reduce(x, tf.add)),
  'python of a generator': ('(PyFunc|GeneratorDataset)', generator),
  'JAX callback': ('XlaCallModule', jax_callback),
  'compiled elsewhere': ('XlaCallModule', compiled_elsewhere),
  'Keras layer that remembers': ('PyFunc', lambda x: RunningMean()(x)),
  'file': ('WriteFile', lambda x: after(tf.io.write_file(FILE, tf.io.serialize_tensor(x)), x)),
  'print': ('PrintV2', lambda x: after(tf.print(x, output_stream=f'file://{FILE}'), x)),
  'debugging': ('DebugIdentity', lambda x: raw.DebugIdentity(input=x, debug_urls=['file:///tmp'])),
  'cache': ('CacheDataset', lambda x: Data.from_tensors(x).cache(FILE).reduce(x, tf.add)),
  'snapshot': ('SnapshotDatasetV2',
    lambda x: Data.from_tensors(x).snapshot(FILE).reduce(x, tf.add)),
  'summary': ('SummaryWriter', summary_in_a_file),
  'data set from text': ('DatasetFromGraph', data_set_from_text),
  'batch of several clients': ('BatchFunction', batch_of_several_clients),
  'sum among clients': ('CollectiveReduceV2', sum_among_clients),
  'sampler that learns': ('LearnedUnigramCandidateSampler', sampler_that_learns),
  'draws that go on': ('RandomPoissonV2', draws_that_go_on),
  'iterator of another call': ('IteratorFromStringHandleV2', iterator_of_another_call),
  'tensor of the session': ('GetSessionTensor',
    lambda x: vector(raw.GetSessionTensor(handle=tf.strings.as_string(x[0]), dtype=tf.float32))),
  'memory of the call before': ('Empty', lambda x: x + raw.Empty(shape=[3], dtype=tf.float32)),
  'constant that is written': ('InplaceAdd',
    lambda x: x + raw.InplaceAdd(x=tf.zeros([1, 3]), i=[0], v=x[None])[0]),
  'order of addresses': ('TensorMapStackKeys', order_of_addresses),
  'words of an assertion': ('Assert', words_of_an_assertion),
}  # fmt: skip


def around(leave, take):
  """Returns a step that leaves the sum in one graph at the server, and takes it in another."""

  def step(ours, state, extra, x):
    left = at(leave, tff.federated_sum(x))
    after_round, kept, _ = honest(ours, state, extra, x)
    return after_round, at(take, kept), left

  return step


def queued(made):
  of = dict(component_types=[tf.float32])
  named = lambda: made(shared_name='raw', **of)
  return around(
    lambda v: after(raw.QueueEnqueueV2(handle=named(), components=[v]), v),
    lambda s: vector(raw.QueueDequeueV2(handle=named(), **of)[0]),
  )


def staged_with_keys():
  of, key = dict(indices=[0], **NAMED), lambda: tf.constant(0, tf.int64)
  return around(
    lambda v: after(raw.MapStage(key=key(), values=[v], **of), v),
    lambda s: vector(raw.MapUnstage(key=key(), **of)[0]),
  )


def accumulated():
  of = dict(dtype=tf.float32, shape=[3], shared_name='raw')
  named, zero = lambda: raw.ResourceConditionalAccumulator(**of), np.int64(0)
  add, take = raw.ResourceAccumulatorApplyGradient, raw.ResourceAccumulatorTakeGradient
  return around(
    lambda v: after(add(handle=named(), local_step=zero, gradient=v), v),
    lambda s: vector(take(handle=named(), num_required=1, dtype=tf.float32)),
  )


def from_before(work):
  """Returns a step whose extra tensor begins with what an operation finds."""
  return lambda ours, state, extra, x: honest(ours, state, at(lambda s: s + work(), extra), x)


def shown(work):
  """Returns a step whose metric is made from the sum of updates."""
  return lambda ours, state, extra, x: (
    *honest(ours, state, extra, x)[:2],
    at(work, tff.federated_sum(x)),
  )


def jax_computation(ours, state, extra, x):
  """As `tff.jax.computation` makes one, which needs an older JAX."""
  of = tff.tensorflow.computation(lambda v: v, VECTOR)
  proto = computation_pb2.Computation(type=type(of).get_proto(of).type, xla=computation_pb2.Xla())
  made = type(of)(computation_proto=proto, context_stack=context_stack_impl.context_stack)
  return honest(ours, state, extra, tff.federated_map(made, x))


def variable_that_a_data_set_assigns(ours, state, extra, x):
  """The map runs as often as clients' data say; a slow operation alone makes the read wait."""

  def work(s, total):
    held = tf.Variable(tf.zeros([3]))
    counted = Data.range(9).map(lambda i: held.assign_add(s + 1.0)[0])
    slow = tf.linalg.expm(tf.fill([999, 999], s[0]))
    many = tf.cast(tf.abs(total[0]), tf.int64)
    return after(slow, held.read_value()), counted.take(many).reduce(0.0, tf.add)

  output, pair = ours.next(state, x), at(work, extra, tff.federated_sum(x))
  return output.state, at(lambda p: p[0], pair), at(lambda p: p[1], pair)


def iterator_in_a_table(ours, state, extra, x):
  """A table at clients keeps how far an iterator came, which goes around the aggregator."""

  def work(v):
    many, zero = tf.cast(tf.abs(v[0]), tf.int64), tf.zeros([1], tf.int64)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    ran = Data.range(many).map(lambda i: after(table.insert(zero, [i]), i)).reduce(many, tf.add)
    return vector(tf.fill([3], after(ran, table.lookup(zero))[0]))

  return honest(ours, state, at(plus, extra, tff.federated_sum(at(work, x))), x)


def key_of_a_selection(ours, state, extra, x):
  keys = at(lambda v: tf.cast(v[:1], tf.int32), x)
  pick = graph(lambda table, key: table + tf.cast(key, tf.float32), VECTOR, np.int32)
  rows = tff.federated_select(keys, tff.federated_value(9, tff.SERVER), extra, pick)
  total = graph(lambda data: data.reduce(tf.zeros([3]), tf.add), tff.SequenceType(VECTOR))
  return honest(ours, state, tff.federated_sum(tff.federated_map(total, rows)), x)


def release_and_sum_sent_in_the_next_round(ours, state, extra, x):
  output = ours.next(state, at(plus, x, tff.federated_broadcast(extra)))
  return output.state, at(plus, output.result, tff.federated_sum(x)), output.measurements


def metric_that_waits_two_rounds(ours, state, extra, x):
  length = tff.federated_mean(at(lambda v: tf.norm(v), x))
  late = at(lambda s, now: tf.stack([s[1], s[2], now]), extra, length)
  return ours.next(state, x).state, late, at(lambda s: s[0], extra)


def metric_that_clients_see(ours, state, extra, x):
  """Only their metrics follow from it, and yet each client learns of the others."""
  sent = tff.federated_broadcast(tff.federated_mean(x))
  square = tff.federated_mean(at(lambda v, mean: tf.square(v - mean), x, sent))
  return *honest(ours, state, extra, x)[:2], square


def weights_of_clients_as_learning_rate(ours, state, extra, x):
  output = ours.next(state, x)
  examples = tff.federated_sum(at(lambda v: tf.cast(tf.math.count_nonzero(v), tf.float32), x))
  step = at(lambda s, released, rate: s + rate * released, extra, output.result, examples)
  return output.state, step, output.measurements


def seed_that_clients_see(ours, state, extra, x):
  seen = at(lambda v, seed: v + seed, x, tff.federated_broadcast(at(number_of_seed, state)))
  return *honest(ours, state, extra, x)[:2], tff.federated_sum(seen)


def number_of_seed(state):
  return tf.fill([3], tf.cast(state.noise.seed[0], tf.float32))


def known_seed(state):
  return state._replace(noise=state.noise._replace(seed=tf.zeros_like(state.noise.seed)))


class Altered(factories.CorrelatedNoiseFactory):
  """An aggregator with one operation more."""

  def release(self, sums, stream, total, noise):
    result, advanced = super().release(sums, stream, total, noise)
    return tf.nest.map_structure(tf.negative, result), advanced


class Quieter(factories.CorrelatedNoiseFactory):
  """An aggregator whose noise is halved on the way."""

  def noise_stream(self, value_type):
    stream = super().noise_stream(value_type)

    def half(noise):
      row, advanced = stream.next(noise)
      return tf.nest.map_structure(lambda part: part // 2, row), advanced

    return stream._replace(next=half)


class Longer(factories.CorrelatedNoiseFactory):
  """An aggregator that bounds updates, and then doubles them."""

  def bound(self, update):
    bounded = super().bound(update)
    return bounded._replace(update=tf.nest.map_structure(lambda part: 2 * part, bounded.update))


# A part of the reason for which it is refused, a step, and changes of the process.
LEARNS, TOLD = 'state.extra depends on clients', 'sends to clients depends'
CASES = {
  **{
    name: (
      f'{operation} at clients in next',
      lambda ours, state, extra, x, work=work: honest(ours, state, extra, at(work, x)),
      {},
    )
    for name, (operation, work) in AT_CLIENTS.items()
  },
  'JAX computation': ('xla at clients in next', jax_computation, {}),
  'metrics through python': ('PyFunc at the server in next', shown(python), {}),
  'python in the weights': ('PyFunc at the server in get_model_weights', honest,
    dict(weights=lambda state: python(state['extra']))),
  'python at the start': ('PyFunc at the server in initialize', honest,
    dict(copies=lambda state: at(lambda s: python(tf.zeros([3])), state))),
  'file at the server': ('ReadFile at the server in next',
    from_before(lambda: vector(tf.io.parse_tensor(tf.io.read_file(FILE), tf.float32))), {}),
  'names of files': ('MatchingFiles at the server in next',
    from_before(lambda: tf.cast(tf.size(tf.io.matching_files(f'{FILE}*')), tf.float32)), {}),
  'print at the server': ('PrintV2 at the server in next', shown(lambda v: after(tf.print(v), v)),
    {}),
  'named queue': ('FIFOQueueV2 at the server in next', queued(raw.FIFOQueueV2), {}),
  'random queue': ('RandomShuffleQueueV2 at the server', queued(raw.RandomShuffleQueueV2), {}),
  'stage': (
    'Stage at the server in next',
    around(
      lambda v: after(raw.Stage(values=[v], shared_name='raw'), v),
      lambda s: vector(raw.Unstage(**NAMED)[0]),
    ),
    {},
  ),
  'stage with keys': ('MapStage at the server in next', staged_with_keys(), {}),
  'accumulator': ('ResourceConditionalAccumulator at the server in next', accumulated(), {}),
  'words of an assertion in a branch': ('Assert at the server in next',
    shown(lambda v: after(tf.debugging.Assert(v[0] > 1e9, [tf.strings.format('{}', v)]), v)), {}),
  'variable that a data set assigns': (LEARNS, variable_that_a_data_set_assigns, {}),
  'iterator in a table': (LEARNS, iterator_in_a_table, {}),
  'key of a selection': (LEARNS, key_of_a_selection, {}),
  'release and sum, sent later': (TOLD, release_and_sum_sent_in_the_next_round, {}),
  'metric that waits two rounds': (LEARNS, metric_that_waits_two_rounds, {}),
  'metric that clients see': (TOLD, metric_that_clients_see, {}),
  'weights as learning rate': (LEARNS, weights_of_clients_as_learning_rate, {}),
  'release with an operation more': ('built with the aggregator', honest, dict(kind=Altered)),
  'release with less noise': ('built with the aggregator', honest, dict(kind=Quieter)),
  'updates that grow once bounded': ('built with the aggregator', honest, dict(kind=Longer)),
  'seed that clients see': ('1 depends on the seed', seed_that_clients_see, {}),
  'seed that everybody knows': ('begin as the aggregator begins it', honest,
    dict(begins=lambda state: at(known_seed, state))),
  'seed that the start copies': ('state.extra depends on the seed', honest,
    dict(copies=lambda state: at(number_of_seed, state))),
}  # fmt: skip


@functools.cache
def created(kind):
  """Creates the process of an aggregator of a kind, once."""
  settings = {name: getattr(OURS, name) for name in OURS.__dataclass_fields__}
  return kind(**{name: of for name, of in settings.items() if name[0] != '_'}).create(VECTOR)


def process_with(
  step,
  *,
  kind=factories.CorrelatedNoiseFactory,
  begins=lambda state: state,
  copies=lambda state: at(lambda s: tf.zeros([3]), state),
  weights=None,
):
  """As `process_of`, for an aggregator of a kind, with a start and weights of its own."""
  ours = created(kind)

  @tff.federated_computation
  def initialize():
    first = ours.initialize()
    return tff.federated_zip(dict(aggregator=begins(first), extra=copies(first)))

  process = tff.templates.IterativeProcess(initialize, process_of(ours, step).next)
  if weights is not None:
    process.get_model_weights = graph(weights, initialize.type_signature.result.member)
  return process


@pytest.mark.parametrize('name', CASES)
def test_the_process_is_refused(name):
  reason, step, made = CASES[name]
  found = process_check.check_process(process_with(step, **made), OURS)
  assert not found.ok and re.search(reason, found.reason), found.reason


def test_every_operation_that_passes_was_read():
  """Of another TensorFlow, read and try the kernels of what is new, then renew the digest."""
  node = tf.compat.v1.NodeDef
  names = [name for name in dir(raw) if name[0] != '_']
  passing = [n for n in names if operations._is_allowed(node(op=n, input=['', '']), {}, True)]
  digest = hashlib.sha256(' '.join(passing).encode()).hexdigest()
  assert (tf.__version__[:5], digest[:16]) == ('2.21.', '9ab77fb073491388')


def test_an_inner_factory_with_a_queue_is_refused():
  def keep(total):
    waiting = raw.FIFOQueueV2(component_types=[tf.int64], shared_name='inner')
    return after(raw.QueueEnqueueV2(handle=waiting, components=[total]), total)

  with pytest.raises(ValueError, match='inner_factory must be .* got Custom'):
    make(inner_factory=custom_sums.Custom(keep)).create(VECTOR)


def test_a_trusted_operation_is_named():
  process = process_with(CASES['numpy'][1])
  found = process_check.check_process(process, OURS, trusted_operations=('PyFunc', 'Stage'))
  assert found.ok and found.trusted == ('PyFunc',) and 'PyFunc' in str(found)
  with pytest.raises(ValueError, match='trusted_operations must be'):
    process_check.check_process(process, OURS, trusted_operations='PyFunc')
