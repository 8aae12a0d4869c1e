"""The strategy for Flower: one reply of the private mean, devices that stay, and dropout."""

import logging

import numpy as np
import pytest

import fl_dpftrl as dpftrl

adapter = pytest.importorskip('fl_dpftrl.adapters.flower', exc_type=ImportError)
SIZE = 20


class Grid:
  """Nodes in this process; some do not answer, and one sends other arrays."""

  def __init__(self, num_nodes, first_id):
    from flwr.clientapp import ClientApp

    self._first_id, self.silent, self.wrong = first_id, 0, False
    self._nodes = range(first_id, first_id + num_nodes)
    self._app = ClientApp()
    adapter.answer_device_id(self._app, lambda context: str(context.node_config['partition-id']))

  def get_node_ids(self):
    return list(self._nodes)

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


def test_the_strategy_gets_one_reply_of_the_private_mean(monkeypatch, tmp_path, caplog):
  from flwr.app import ArrayRecord
  from flwr.serverapp.strategy import FedAvgM
  from flwr.supercore import task_identity

  for name in ('task_id', 'run_id', 'node_id'):  # As Flower's own programs have them.
    monkeypatch.setattr(task_identity.TaskIdentity, f'_{name}', 1)
  monkeypatch.setattr(logging.getLogger('flwr'), 'propagate', True)
  given = []

  class Wrapped(FedAvgM):
    def aggregate_train(self, server_round, replies):
      given.append(replies)
      return super().aggregate_train(server_round, replies)

  with dpftrl.PrivateAggregator(
    dpftrl.BLT((0.9, 0.5), (0.3, 0.2)),
    template={'0': np.zeros(SIZE, np.float32)},
    noise_multiplier=0.3,
    clip_norm=0.5,
    report_goal=4,
    folder=tmp_path / 'run',
    schema=dpftrl.MinSep(num_rounds=5, min_sep=2),
    noise_seed=2,
  ) as aggregator:

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
  assert 'failed: round 4 has 1 updates and needs 2' in caplog.text
  assert caplog.text.count('a reply is left out') == 2
  run = dpftrl.open_run(tmp_path / 'run/participation.parquet', tmp_path / 'run/strategy.json')
  assert dpftrl.replay(run, deltas=1e-6).min_sep >= 2
