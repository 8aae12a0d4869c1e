"""Any strategy of Flower with correlated noise, a budget, and a log that proves ε.

    python examples/flower_strategy.py runs/flower

`PrivateStrategy` hands the strategy that it wraps one reply a round: the model plus the private
mean of the updates. So FedAvg, FedAvgM and FedOpt are post-processing, and clients' weights cannot
matter. Metrics of clients have no noise, so the strategy gets none, and clients evaluate nothing.

Flower gives a node another id whenever it connects anew, and a simulation gives all nodes other ids
at each start. So nodes are asked for a device's id of their own, which must stay the same as long
as the run: a device that comes back under another one would be counted as two.

Interrupt it and start it again: it goes on with the next round and the stored model.
"""

import pathlib
import sys

import numpy as np
from flwr.app import (
  Array,
  ArrayRecord,
  ConfigRecord,
  Message,
  MessageType,
  MetricRecord,
  RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM, Strategy
from flwr.simulation import run_simulation

import fl_dpftrl as dpftrl

NODES, COHORT, ROUNDS, SIZE = 40, 4, 12, 20
TRUE = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


class PrivateStrategy(Strategy):
  """Wraps a strategy, whose model then learns from private means alone.

  Args:
    strategy: chooses the nodes it could train, and updates the model; all nodes that it chooses
      are candidates for a cohort.
    aggregator: admits nodes, adds the noise, writes the log. Its template is the model's arrays.
    cohort: nodes that train in a round; more than the report goal, if some do not answer.
  """

  def __init__(self, strategy: Strategy, aggregator: dpftrl.PrivateAggregator, cohort: int):
    self.strategy, self.aggregator, self.cohort = strategy, aggregator, cohort
    self._arrays, self._round = ArrayRecord(), None
    self._device_of: dict[int, str] = {}

  def configure_train(self, server_round, arrays, config, grid):
    messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
    self._ask([message.metadata.dst_node_id for message in messages], grid)
    by_device = {
      self._device_of[message.metadata.dst_node_id]: message
      for message in messages
      if message.metadata.dst_node_id in self._device_of
    }
    candidates = np.random.default_rng(self.aggregator.next_round).permutation(sorted(by_device))
    admitted = self.aggregator.admissible(candidates.tolist(), at_most=self.cohort).tolist()
    self._arrays, self._round = arrays, None
    if len(admitted) < self.aggregator.report_goal:
      print(f'round {server_round} waits: too few nodes may take part now')
      return []
    self._round = self.aggregator.round(admitted).begin()  # Before a node hears of it.
    return [by_device[device] for device in admitted]

  def _ask(self, nodes, grid):
    """Asks nodes for their devices' ids, once; one that does not answer is no candidate."""
    queries = [
      Message(content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=node)
      for node in nodes
      if node not in self._device_of
    ]
    for reply in grid.send_and_receive(queries, timeout=60.0) if queries else ():
      if not reply.has_error():
        device = str(reply.content['device']['device-id'])
        self._device_of[reply.metadata.src_node_id] = device

  def aggregate_train(self, server_round, replies):
    replies = [reply for reply in replies if not reply.has_error()]
    round_, self._round = self._round, None
    if round_ is None:
      return None, None
    before = {name: array.numpy() for name, array in self._arrays.items()}
    try:
      for reply in replies:
        (record,) = reply.content.array_records.values()
        update = {name: record[name].numpy() - before[name] for name in before}
        round_.add(update, device_id=self._device_of[reply.metadata.src_node_id])
      round_.end()
    except ValueError as error:  # Too few answers, or arrays that are not the model's.
      if round_.is_open:
        round_.fail()
      print(f'round {server_round} failed: {error}')
      return None, None
    mean = {name: np.asarray(before[name] + round_.mean[name]) for name in before}
    name = next(iter(replies[0].content.array_records))
    weight = getattr(self.strategy, 'weighted_by_key', 'num-examples')
    one = replies[0]
    one.content = RecordDict(
      {
        name: ArrayRecord({key: Array(value) for key, value in mean.items()}),
        'metrics': MetricRecord({weight: 1}),
      }
    )
    arrays, _ = self.strategy.aggregate_train(server_round, [one])
    return arrays, None

  def configure_evaluate(self, server_round, arrays, config, grid):
    return []

  def aggregate_evaluate(self, server_round, replies):
    return None

  def summary(self):
    self.strategy.summary()


client_app, server_app = ClientApp(), ServerApp()


@client_app.query()
def query(message: Message, context) -> Message:
  """Says which device this is; of a real one, by what stays the same at each start."""
  device = ConfigRecord({'device-id': str(context.node_config['partition-id'])})
  return Message(content=RecordDict({'device': device}), reply_to=message)


@client_app.train()
def train(message: Message, context) -> Message:
  """Five steps of gradient descent on the node's own examples."""
  rng = np.random.default_rng(int(context.node_config['partition-id']))
  x = rng.normal(size=(32, SIZE)).astype(np.float32)
  y = x @ TRUE + 0.1 * rng.normal(size=32).astype(np.float32)
  weights = message.content['arrays']['weights'].numpy()
  for _ in range(5):
    weights = weights - 0.05 * x.T @ (x @ weights - y) / len(y)
  content = {
    'arrays': ArrayRecord({'weights': Array(weights)}),
    'metrics': MetricRecord({'num-examples': len(y)}),
  }
  return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context) -> None:
  folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/flower')
  model, weights = folder / 'model.npy', np.zeros(SIZE, np.float32)
  with dpftrl.PrivateAggregator(
    dpftrl.load_strategy('blt-b100'),
    template={'weights': weights},
    noise_multiplier=0.3,
    clip_norm=0.5,
    report_goal=COHORT,
    folder=folder,
    schema=dpftrl.MinSep(num_rounds=ROUNDS, min_sep=NODES // COHORT),
    delta=1e-6,
  ) as aggregator:

    def store(server_round: int, arrays: ArrayRecord) -> None:
      np.save(folder / 'new.npy', arrays['weights'].numpy())
      (folder / 'new.npy').replace(model)

    if model.exists():
      weights = np.load(model)
    strategy = PrivateStrategy(
      FedAvgM(fraction_train=1.0, server_learning_rate=1.0, server_momentum=0.5), aggregator, COHORT
    )
    strategy.start(
      grid,
      ArrayRecord({'weights': Array(weights)}),
      num_rounds=ROUNDS - aggregator.next_round,
      train_config=ConfigRecord(),
      evaluate_fn=store,  # It has the model after each round.
    )
    distance = np.linalg.norm(np.load(model) - TRUE)
    print(f'{aggregator.next_round} rounds, distance to the true model {distance:.3f}')
    print(aggregator.privacy_loss())


if __name__ == '__main__':
  run_simulation(server_app, client_app, num_supernodes=NODES)
