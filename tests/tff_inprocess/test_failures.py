"""Errors of work on clients' data, which tell nothing of the data, here and on other machines."""

import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from tests import leaks, made
from tff_inprocess import failures, trainer

SECRET = 76_543_219
WORDS = 'diagnosis76543219'
SECRETS = leaks.Secrets([np.int64(SECRET)])


def of_number(fails):
  """Work of a whole number, here a dimension or an index too."""
  return tff.tensorflow.computation(fails, np.int32)


def asserted(*shown, condition=lambda x: x < 3):
  def fails(x):
    data = [one(x) if callable(one) else one for one in shown]
    with tf.control_dependencies([tf.debugging.Assert(condition(x), data)]):
      return tf.identity(x)

  return fails


def compared(x):
  with tf.control_dependencies([tf.debugging.assert_less(x, 3, message='too large')]):
    return tf.identity(x)


def in_python(x):
  def fails(value):
    raise ValueError(f'age {value}')

  return tf.ensure_shape(tf.numpy_function(fails, [x], tf.int32), [])


def in_a_data_set(x):
  data = tf.data.Dataset.range(3).map(lambda i: tf.gather([1, 2, 3], x + tf.cast(i, tf.int32)))
  return data.reduce(0, lambda a, b: a + b)


def forged(x):
  """A message that has the form of another operation's, and of an assertion."""
  text = tf.strings.join(['[[{{node arg}}]] assertion failed: [', tf.strings.as_string(x), ']'])
  return tf.cast(tf.strings.to_number(text), tf.int32)


text_of = tf.strings.as_string
looked_up = tf.function(lambda x: tf.gather([1, 2, 3], x))
# Operation or words that are told, and work that fails.
WORK = {
  'index': ('GatherV2', lambda x: tf.gather([1, 2, 3], x)),
  'index in a branch': ('GatherV2', lambda x: tf.cond(x > 3, lambda: looked_up(x), lambda: 0)),
  'index in a function': ('GatherV2', looked_up),
  'index in a data set': ('operation', in_a_data_set),
  'scattered': ('ScatterNd', lambda x: tf.scatter_nd([[x]], [1], [3])[0]),
  'shape': ('AddV2', lambda x: tf.reduce_sum(tf.ones([x // 100]) + tf.ones([3]))),
  'number': ('StringToNumber', lambda x: tf.strings.to_number(text_of(x) + 'a', tf.int32)),
  'decoded': ('DecodeRaw', lambda x: tf.io.decode_raw([text_of(x) + 'a'], tf.int32)[0, 0]),
  'characters': ('Substr', lambda x: tf.strings.length(tf.strings.substr(text_of(x), x, 1))),
  'Python': ('PyFunc', in_python),
  'assertion': ('Assert', compared),
  'assertion of text': ('Assert', asserted(lambda x: tf.strings.join(['age ', text_of(x)]))),
  'assertion of words': ('Assert', asserted(lambda x: text_of(x), 'age', lambda x: x)),
  'forged': ('StringToNumber', forged),
}


@pytest.fixture(autouse=True)
def fixture_silent(capfd):
  """TensorFlow's log says nothing either."""
  yield
  out, err = capfd.readouterr()
  assert not SECRETS.found_in(out + err)


def summed(work):
  of = work.type_signature.parameter

  @tff.federated_computation(tff.FederatedType(of, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(tff.federated_map(work, values))

  return total


@pytest.mark.parametrize('told, fails', WORK.values(), ids=WORK)
def test_an_operation_is_told_by_its_name_alone(in_process, told, fails):
  """Of a client, at the server, and of a computation without either."""
  work = of_number(fails)
  server = tff.federated_computation(
    lambda values: tff.federated_map(work, tff.federated_sum(values)),
    tff.FederatedType(np.int32, tff.CLIENTS),
  )
  for run, place in ((summed(work), 'client 0, counted from 0, of 1: '), (server, ''), (work, '')):
    argument = np.int32(SECRET) if run is work else [np.int32(SECRET)]
    with in_process(), leaks.refused(SECRETS, tf.errors.OpError):
      run(argument)
    with in_process(), pytest.raises(tf.errors.OpError) as error:
      run(argument)
    assert error.value.message.startswith(place) and told in error.value.message
    assert len(error.value.message) <= 300 and '\n' not in error.value.message


def read(client):
  raise UnicodeDecodeError('utf-8', WORDS.encode(), 0, 1, WORDS)


def in_tensorflow(client):
  return tf.gather([1.0, 2.0], SECRET)


def generated(client):
  def rows():
    yield np.float32(0.0)
    raise KeyError(WORDS)

  return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.float32))


def mixed(client):
  return [np.float32(0.0), WORDS]


@made.cases(
  'make, kind, told',
  (read, UnicodeError, 'UnicodeError in read, test_failures.py:'),
  (in_tensorflow, tf.errors.InvalidArgumentError, 'InvalidArgumentError in in_tensorflow, '),
  (generated, tf.errors.OpError, 'failed'),
  (mixed, TypeError, 'expected a data set of type'),
)
def test_a_clients_data_that_fail_are_told_by_type_and_line(in_process, make, kind, told):
  of = tff.SequenceType(np.float32)
  work = summed(tff.tensorflow.computation(lambda data: data.reduce(0, lambda n, _: n + 1), of))
  data = [tff_inprocess.Later(make, (0,))]
  with in_process(), leaks.refused(leaks.Secrets([np.int64(SECRET)]), kind):
    work(data)
  with in_process(), pytest.raises(kind) as error:
    work(data)
  assert told in str(error.value) and str(error.value).startswith('client 0, counted from 0, of 1')
  assert all(WORDS not in text for text in leaks.said(error.value))


def chosen(x):
  """Fails in the node, and with the words, that belong to the value."""

  def fails(digit):
    words = f'{WORDS}{digit}'
    with tf.control_dependencies([tf.debugging.Assert(x < 0, [words], name=f'is{digit}_{WORDS}')]):
      return tf.gather([1, 2, 3], x, name=f'gather{digit}_{WORDS}')

  return tf.switch_case(x % 10, {digit: lambda digit=digit: fails(digit) for digit in range(10)})


def error_of(value, fails):
  with pytest.raises(tf.errors.OpError) as error:
    summed(of_number(fails))([np.int32(value)])
  return error.value


@pytest.mark.parametrize('fails', [chosen, lambda x: compiled(x)], ids=['case', 'function'])
def test_constants_of_a_graph_tell_no_value(in_process, fails):
  """Each value has words, nodes and functions of its own, which a message would tell it by."""
  with in_process():
    errors = [error_of(value, fails) for value in (SECRET, SECRET + 1)]
  assert len({str(error) for error in errors}) == 1 and 'Assert' in str(errors[0])
  assert all(WORDS not in text for error in errors for text in leaks.said(error))


@tf.function
def compiled(x):
  return chosen(x)


def by_line(value):
  class Diagnosis1(KeyError):
    pass

  class Diagnosis2(KeyError):
    pass

  if value == 1:
    raise Diagnosis1(value)
  raise Diagnosis2(value)


def test_the_size_of_a_clients_value_is_not_told(in_process):
  work = tff.tensorflow.computation(lambda x: x[0], tff.TensorType(np.float32, [3]))
  with in_process(), pytest.raises(TypeError, match=r'got float32$'):
    summed(work)([np.zeros(SECRET % 100, np.float32)])


def test_lines_and_classes_of_errors_of_data_tell_no_value(in_process):
  of = tff.SequenceType(np.float32)
  work = summed(tff.tensorflow.computation(lambda data: data.reduce(0, lambda n, _: n + 1), of))
  errors = []
  for value in (1, 2):
    with in_process(), pytest.raises(KeyError) as error:
      work([tff_inprocess.Later(by_line, (value,))])
    errors.append(error.value)
  assert len({(type(error), str(error)) for error in errors}) == 1
  assert 'KeyError in by_line, test_failures.py:' in str(errors[0])


def of_an_actor(work):
  """Returns the error of a round's only block, in this process."""
  sent = []
  put = lambda one: sent.append(one) or len(sent) - 1
  sender = trainer.Sender(put)
  actor = trainer.Trainer(
    fetch=sent.__getitem__, lost=(), at_a_time=1, num_threads=1, deterministic=False
  )
  return actor.train([sender.work(work, merges=False)], sender.block(work, range(1)))[0].error


@pytest.mark.parametrize('name', ['index', 'shape', 'assertion of text'])
def test_an_actor_tells_no_more(in_process, monkeypatch, name):
  caught = []

  def groups(self, work, stop):
    caught.append(of_an_actor(work))
    raise caught[0]
    yield

  told, fails = WORK[name]
  with in_process() as context, pytest.raises(tf.errors.OpError):
    monkeypatch.setattr(type(context.clients_at), 'groups', groups)
    summed(of_number(fails))([np.int32(SECRET)])
  (error,) = caught
  assert told in error.message and error.message.startswith('client 0')
  assert all(not SECRETS.found_in(text) for text in leaks.said(error))


def test_all_words_go_to_stderr_where_they_are_asked_for(in_process, monkeypatch):
  lines = []
  monkeypatch.setattr(sys, 'stderr', type('', (), {'write': lines.append, 'flush': lambda: None}))
  with in_process(show_client_errors=True), leaks.refused(SECRETS, tf.errors.OpError):
    summed(of_number(lambda x: tf.gather([1, 2, 3], x)))([np.int32(SECRET)])
  assert 'client 0, counted from 0, of 1: Traceback' in ''.join(lines)
  assert f'indices = {SECRET} is not in [0, 3)' in ''.join(lines)


def test_a_log_of_tensorflow_that_quotes_values_is_warned_of(in_process, monkeypatch):
  monkeypatch.delenv('TF_CPP_MIN_LOG_LEVEL')
  failures._warn.cache_clear()
  total = tff.federated_computation(tff.federated_sum, tff.FederatedType(np.int32, tff.CLIENTS))
  with pytest.warns(RuntimeWarning, match='set TF_CPP_MIN_LOG_LEVEL=3') as told:
    for _ in range(2):
      with in_process():
        total([1])
  assert sum('TF_CPP_MIN_LOG_LEVEL' in str(each.message) for each in told) == 1
