"""The strategy for Flower: one reply of the private mean, devices that stay, and dropout."""

import logging
import math
import re
import types

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from tests import made

adapter = pytest.importorskip('fl_dpftrl.adapters.flower', exc_type=ImportError)
SIZE = 20


class Grid:
  """Nodes in this process; some do not answer, and one sends other arrays."""

  def __init__(self, num_nodes, first_id):
    from flwr.clientapp import ClientApp

    self._first_id, self.silent, self.wrong = first_id, 0, False
    self.asked, self.told, self.at_once = [], {}, None
    self._nodes = range(first_id, first_id + num_nodes)
    self._app = ClientApp()
    adapter.answer_device_id(self._app, lambda context: str(context.node_config['partition-id']))

  def get_node_ids(self):
    return list(self._nodes)

  def push_messages(self, messages):
    for message in messages:
      message.metadata.__dict__['_message_id'] = str(len(self.asked))
      self.asked.append(message)
    return [message.metadata.message_id for message in messages]

  def pull_messages(self, message_ids):
    """Answers some of the questions: one that nobody can answer, with an error."""
    from flwr import app

    replies = []
    for message_id in sorted(message_ids, key=int)[: self.at_once]:
      question = self.asked[int(message_id)]
      told = self.told.get(question.metadata.dst_node_id - self._first_id, 'its own')
      if told is None:
        continue
      reply = self._reply(None, question)
      if told == 'an error':
        reply = app.Message(app.Error(code=0), reply_to=question)
      elif told != 'its own':
        reply = app.Message(content=app.RecordDict(told), reply_to=question)
      replies.append(reply)
    return replies

  def send_and_receive(self, messages, *, timeout=None):
    replies = [self._reply(place, message) for place, message in enumerate(messages)]
    return [reply for reply in replies if reply is not None]

  def _reply(self, place, message):
    from flwr import app

    device = message.metadata.dst_node_id - self._first_id
    if message.metadata.message_type != app.MessageType.TRAIN:
      config = {'partition-id': device}
      return self._app(message, app.Context(1, device, config, app.RecordDict(), {}))
    if place < self.silent:
      return None
    arrays = [np.ones(SIZE + (self.wrong and place == self.silent), np.float32)]
    content = {'arrays': app.ArrayRecord(arrays), 'metrics': app.MetricRecord({'num-examples': 3})}
    return app.Message(content=app.RecordDict(content), reply_to=message)


def called(device):
  from flwr.app import ConfigRecord

  return {'device': ConfigRecord({'device_id': device})}


def test_a_node_that_tells_no_id_of_a_log_is_no_candidate(flower, tmp_path, caplog, monkeypatch):
  from flwr.app import ArrayRecord, ConfigRecord
  from flwr.serverapp.strategy import FedAvg

  monkeypatch.setattr(adapter, '_POLL', 0.01)
  grid = Grid(24, first_id=30)
  odd = [
    *map(
      called, ('2 ', '', 'e\u0301', 'x' * 1025, 'null', '1.0', '07', '+7', '1e+05', 'a\nb', True)
    ),
    {'other': ConfigRecord({'device_id': 'a'})},
    {'device': ConfigRecord({'other': 'a'})},
    {'device': ArrayRecord([np.zeros(1)])},
    {},
  ]
  grid.told = dict(enumerate(odd)) | {15: None, 16: 'an error', 17: None}
  grid.at_once = 5
  with opened(tmp_path) as aggregator:
    strategy = adapter.PrivateStrategy(
      FedAvg(fraction_train=1.0), aggregator, 6, at_least=2, patience=0.05
    )
    arrays = ArrayRecord([np.zeros(SIZE, np.float32)])
    configured = lambda t: {
      m.metadata.dst_node_id - 30 for m in strategy.configure_train(t, arrays, ConfigRecord(), grid)
    }
    assert configured(1) == set(range(18, 24))  # Others answer later, or not.
    told = r'6 nodes told their device in \d+ s, 15 no id that a log takes, 2 did'
    assert re.search(told, caplog.text)
    strategy.aggregate_train(1, [])
    monkeypatch.setattr(adapter.time, 'sleep', None)  # Nobody is waited for again.
    del grid.told[15], grid.told[17]
    assert configured(2) == {15, 17}
    strategy.aggregate_train(2, [])
  assert len(grid.asked) == 24 + 1  # One more for that whose answer was an error.


@pytest.mark.parametrize('num_silent', [0, 20, 23])
def test_too_few_nodes_are_waited_for_beyond_the_patience(
  flower, tmp_path, monkeypatch, num_silent
):
  """The first answers take a while, as those of simulated nodes do; then patience decides."""
  from flwr.app import ArrayRecord, ConfigRecord
  from flwr.serverapp.strategy import FedAvg

  class Slow(Grid):
    pulls = 0

    def pull_messages(self, message_ids):
      self.pulls += 1
      return super().pull_messages(message_ids) if self.pulls > 5 else []

  monkeypatch.setattr(adapter, '_POLL', 0.001)
  monkeypatch.setattr(adapter, '_LONGEST', 0.2)
  grid = Slow(24, first_id=30)
  grid.told = dict.fromkeys(range(num_silent))
  with opened(tmp_path) as aggregator:
    strategy = adapter.PrivateStrategy(
      FedAvg(fraction_train=1.0), aggregator, 6, at_least=2, patience=0.0
    )
    arrays = ArrayRecord([np.zeros(SIZE, np.float32)])
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    assert len(messages) == (0 if num_silent == 23 else min(6, 24 - num_silent))
    assert grid.pulls == 6 if num_silent < 23 else grid.pulls > 9


def test_replies_beyond_the_report_goal_do_not_enlarge_the_mean(flower, tmp_path, recwarn):
  from flwr.app import ArrayRecord
  from flwr.serverapp.strategy import FedAvg

  with opened(tmp_path) as aggregator:
    strategy = adapter.PrivateStrategy(FedAvg(fraction_train=1.0), aggregator, 8, at_least=2)
    strategy.start(Grid(9, first_id=30), ArrayRecord([np.zeros(SIZE, np.float32)]), num_rounds=1)
    assert aggregator.next_round == 1
  assert not [w for w in recwarn if 'report_goal' in str(w.message)]


@pytest.fixture(name='flower')
def _flower(monkeypatch):
  """Flower as its own programs have it, whose lines are seen."""
  from flwr.supercore import task_identity

  for name in ('task_id', 'run_id', 'node_id'):
    monkeypatch.setattr(task_identity.TaskIdentity, f'_{name}', 1)
  monkeypatch.setattr(logging.getLogger('flwr'), 'propagate', True)


def opened(tmp_path, **arguments):
  noise = dict(noise_multiplier=0.3, clip_norm=0.5, noise_seed=2)
  schema, template = dpftrl.MinSep(num_rounds=5, min_sep=2), {'0': np.zeros(SIZE, np.float32)}
  arguments |= dict(template=template, report_goal=4, participation=schema)
  return made.aggregator(tmp_path / 'run', **noise, **arguments)


def test_the_strategy_gets_one_reply_of_the_private_mean(flower, tmp_path, caplog):
  from flwr.app import ArrayRecord
  from flwr.serverapp.strategy import FedAvgM

  given = []

  class Wrapped(FedAvgM):
    def aggregate_train(self, server_round, replies):
      given.append(replies)
      return super().aggregate_train(server_round, replies)

  with opened(tmp_path) as aggregator:

    def run(grid, num_rounds):
      strategy = adapter.PrivateStrategy(Wrapped(fraction_train=1.0), aggregator, 4, at_least=2)
      strategy.start(grid, ArrayRecord([np.zeros(SIZE, np.float32)]), num_rounds=num_rounds)

    run(Grid(9, first_id=30), 2)
    grid = Grid(9, first_id=70)  # Flower started anew: other nodes, the same devices.
    run(grid, 1)
    grid.silent, grid.wrong = 1, True  # Two of four answer as they should.
    run(grid, 1)
    assert [len(replies) for replies in given] == [1, 1, 1, 1]
    grid.silent = 2  # One of four: too few, and the round is burnt.
    run(grid, 1)
    assert len(given) == 4 and aggregator.next_round == 5
    assert aggregator.statement(1e-6).to_json()['num_devices'] <= 9
  words = 'round 1 failed: 1 updates came, and 2 are needed; row of noise 4 is used up'
  assert words in caplog.text
  assert caplog.text.count('a reply is left out') == 2
  run = dpftrl.open_run(tmp_path / 'run/participation.parquet', tmp_path / 'run/strategy.json')
  assert dpftrl.replay(run, delta=1e-6).min_sep >= 2


def test_metrics_of_clients_are_read_by_name(flower, tmp_path):
  from flwr.app import ConfigRecord, MetricRecord, RecordDict

  with opened(tmp_path, metrics={'loss': 10.0, 'accuracy': 1.0}) as aggregator:
    strategy = adapter.PrivateStrategy(None, aggregator, 4)
    content = {'told': MetricRecord({'loss': 2.5, 'other': 1}), 'more': ConfigRecord({'x': 'y'})}
    answer = types.SimpleNamespace(content=RecordDict(content))
    assert strategy._metrics(answer) == {
      'accuracy': pytest.approx(math.nan, nan_ok=True),
      'loss': 2.5,
    }
  with opened(tmp_path / 'without') as aggregator:
    assert adapter.PrivateStrategy(None, aggregator, 4)._metrics(answer) is None


def test_a_site_answers_with_the_model_plus_its_private_mean(flower, tmp_path):
  from flwr import app

  model = np.full(SIZE, 2.0, np.float32)
  content = app.RecordDict({'arrays': app.ArrayRecord({'w': app.Array(model)})})
  message = app.Message(content=content, message_type=app.MessageType.TRAIN, dst_node_id=1)
  schema = dpftrl.MinSep(num_rounds=5, min_sep=2, max_participations=1)
  options = dict(template={'w': model}, noise_multiplier=0.0, report_goal=3)
  with made.aggregator(tmp_path, participation=schema, **options) as aggregator:
    update = lambda arrays, patient: {'w': 9.0 * np.eye(1, SIZE, dtype=np.float32)[0]}
    with pytest.raises(TypeError, match='answer_round.. got an unexpected keyword'):
      adapter.answer_round(message, aggregator, range(4), update, goal=3)
    answers = [adapter.answer_round(message, aggregator, range(4), update) for _ in range(2)]
    assert aggregator.next_round == 1  # One patient is left, and three are needed.
  values = [answer.content['arrays']['w'].numpy() for answer in answers]
  np.testing.assert_allclose(values[0] - model, np.eye(1, SIZE)[0], atol=1e-5)
  np.testing.assert_array_equal(values[1], model)
  assert all(answer.content['metrics']['num-examples'] == 1 for answer in answers)
