"""Any strategy of Flower with correlated noise, a budget, and a log that proves ε.

    strategy = PrivateStrategy(FedAvgM(server_momentum=0.9), aggregator, cohort=120, at_least=80)
    strategy.start(grid, arrays, num_rounds=aggregator.max_rounds - aggregator.next_round)

The strategy that `PrivateStrategy` wraps gets one reply a round: the model plus the private mean of
the updates. So FedAvg, FedAvgM and FedOpt are post-processing, and clients' weights cannot matter.
Metrics that the aggregator was given are released with noise; the strategy gets no others, and
clients evaluate nothing.

Flower gives a node another id whenever it connects anew, and a simulation gives all nodes other ids
at each start. So nodes are asked for a device's id, which `answer_device_id` has a ClientApp tell.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import numpy as np

from fl_dpftrl import adapters
from fl_dpftrl.adapters import sites
from fl_dpftrl.logs import id_columns, id_spellings
from fl_dpftrl.run import private_aggregator

with adapters.peer('Flower', 'flower'):
  from flwr import app
  from flwr.clientapp import ClientApp
  from flwr.serverapp import Grid
  from flwr.serverapp.strategy import Strategy

_ACTION = 'device_id'
_POLL, _SLOWEST_POLL, _PROGRESS = 0.05, 2.0, 10.0  # seconds
_LONGEST = 600.0  # seconds without an answer, where too few nodes told their device
_LOG = logging.getLogger('flwr')


def answer_device_id(clients: ClientApp, device_id: Callable[[app.Context], str]) -> None:
  """Has the clients of an app tell their device's id when they are asked.

  Args:
    clients: their app.
    device_id: what stays the same at each start of a device. One that comes back under another id
      counts as two, and ε is too small then.
  """

  @clients.query(_ACTION)
  def answer(message: app.Message, context: app.Context) -> app.Message:
    record = app.ConfigRecord({_ACTION: str(device_id(context))})
    return app.Message(content=app.RecordDict({'device': record}), reply_to=message)


def answer_round(
  message: app.Message,
  aggregator: private_aggregator.PrivateAggregator,
  people: Sequence[str] | Sequence[int],
  update: sites.Update,
  cohort: int | None = None,
  at_least: int | None = None,
) -> app.Message:
  """Answers a message to train as a site that trusts nobody outside of it: docs/sites.md.

  The reply has the model plus the private mean over people of the site, under the key of the model,
  and the same weight at every site. Args are those of `sites.next_model`.
  """
  ((key, record),) = message.content.array_records.items()
  model = {name: array.numpy() for name, array in record.items()}
  params, metrics = sites.next_model(aggregator, model, people, update, cohort, at_least)
  arrays = app.ArrayRecord({name: app.Array(value) for name, value in params.items()})
  content = {key: arrays, 'metrics': app.MetricRecord({'num-examples': 1, **metrics})}
  return app.Message(content=app.RecordDict(content), reply_to=message)


class PrivateStrategy(Strategy):
  """Wraps a strategy, whose model then learns only from private means.

  A node that does not tell its device's id, or one that no log takes, is no candidate. One that
  fails, is late, or sends other arrays than the model's, took part without an update. With too few
  updates the model stays.

  Args:
    strategy: chooses the nodes it could train, all of them candidates for a cohort, and updates the
      model.
    aggregator: admits devices, adds the noise, writes the log. Its template is the model's arrays
      by name.
    cohort: devices that train in a round; more than the updates needed, if some do not answer.
    at_least: see `PrivateAggregator.round`.
    patience: seconds without an answer after which a round begins, if enough nodes told their
      device's id; ten minutes if not. One that answers later is a candidate from then on.
  """

  def __init__(
    self,
    strategy: Strategy,
    aggregator: private_aggregator.PrivateAggregator,
    cohort: int,
    at_least: int | None = None,
    patience: float = 10.0,
  ):
    self.strategy, self.aggregator, self.cohort = strategy, aggregator, cohort
    self._at_least, self._patience = at_least, patience
    self._needed = at_least or aggregator.report_goal
    self._initial: dict[str, np.ndarray] = {}
    self._round: Any = None
    self._device_of: dict[int, str] = {}
    self._questions: dict[str, int] = {}  # By the id of a message, the node that was asked.
    self._unfit: set[int] = set()

  def configure_train(
    self, server_round: int, arrays: app.ArrayRecord, config: app.ConfigRecord, grid: Grid
  ) -> Iterable[app.Message]:
    """Begins a round, and returns the messages to its cohort."""
    messages = {
      message.metadata.dst_node_id: message
      for message in self.strategy.configure_train(server_round, arrays, config, grid)
    }
    self._ask(messages.keys(), grid)
    admitted = self._admitted(messages.keys())
    if len(admitted) < self._needed:
      words = 'round %s waits: %s nodes may take part now, and %s are needed'
      _LOG.warning(words, server_round, len(admitted), self._needed)
      return []
    self._initial = {name: array.numpy() for name, array in arrays.items()}
    self._round = self.aggregator.round(list(admitted), at_least=self._at_least)
    self._round.begin()  # Before nodes hear.
    return [messages[node] for node in admitted.values()]

  def _admitted(self, nodes: Set[int]) -> dict[str, int]:
    """Returns nodes that may train now, by their devices, at most a cohort in a random order."""
    by_device = {self._device_of[node]: node for node in nodes & self._device_of.keys()}
    rng = np.random.default_rng(self.aggregator.next_round)
    devices = rng.permutation(sorted(by_device)).tolist()
    admitted = self.aggregator.admissible(devices, at_most=self.cohort).tolist()
    return {device: by_device[device] for device in admitted}

  def _ask(self, nodes: Set[int], grid: Grid) -> None:
    """Asks nodes once for their devices' ids; waits if some are new, or too few may train."""
    asked = self._device_of.keys() | self._unfit | set(self._questions.values())
    kind = f'{app.MessageType.QUERY}.{_ACTION}'
    queries = [
      app.Message(content=app.RecordDict(), message_type=kind, dst_node_id=node)
      for node in nodes
      if node not in asked
    ]
    pushed = set(grid.push_messages(queries)) if queries else set()
    for query in queries:
      if query.metadata.message_id in pushed:
        self._questions[query.metadata.message_id] = query.metadata.dst_node_id
    is_short = len(self._admitted(nodes)) < self._needed
    waits = queries or is_short
    start = heard = shown = time.monotonic()
    while self._questions:
      begun = time.monotonic()
      replies = list(grid.pull_messages(set(self._questions)))
      seconds = time.monotonic() - begun  # They grow with the questions.
      for reply in replies:
        self._hear(reply)
      if replies and is_short:
        is_short = len(self._admitted(nodes)) < self._needed
      now = time.monotonic()
      heard = now if replies else heard
      if not waits or now - heard >= max(self._patience, _LONGEST * is_short):
        break
      if now - shown >= _PROGRESS:
        shown = now
        self._show(logging.INFO, now - start)
      if self._questions:
        time.sleep(min(max(_POLL, 10.0 * seconds), _SLOWEST_POLL))
    if waits and (queries or self._questions):
      level = logging.WARNING if self._unfit or self._questions else logging.INFO
      self._show(level, time.monotonic() - start)

  def _hear(self, reply: app.Message) -> None:
    """Keeps the device's id that a node told; a node whose answer is an error is asked again."""
    node = self._questions.pop(reply.metadata.reply_to_message_id, None)
    if node is None or reply.has_error():
      return
    try:
      (device,) = id_columns.column([reply.content['device'][_ACTION]]).to_pylist()
      device = str(device)
      if id_spellings.is_odd_number(device):
        raise ValueError('a number in another notation makes the log one that replay refuses')
    except (KeyError, TypeError, ValueError):  # Its words quote what was sent.
      self._unfit.add(node)
    else:
      self._device_of[node] = device

  def _show(self, level: int, seconds: float) -> None:
    words = '%s nodes told their device in %.0f s, %s no id that a log takes, %s did not answer'
    counts = (len(self._device_of), seconds, len(self._unfit), len(self._questions))
    _LOG.log(level, words, *counts)

  def aggregate_train(
    self, server_round: int, replies: Iterable[app.Message]
  ) -> tuple[app.ArrayRecord | None, app.MetricRecord | None]:
    """Ends the round, and hands its private mean to the strategy as one reply."""
    round_, self._round, initial = self._round, None, self._initial
    reply, name = None, ''
    if round_ is None:
      return None, None
    goal = math.inf if self.aggregator.is_drawn else self.aggregator.report_goal
    for answer in (one for one in replies if not one.has_error()):
      if round_.num_updates >= goal:  # It divides the sum.
        _LOG.info('round %s: replies beyond the report goal are left out', server_round)
        break
      try:
        ((key, record),) = answer.content.array_records.items()
        update = {name: record[name].numpy() - initial[name] for name in initial}
        device = self._device_of[answer.metadata.src_node_id]
        round_.add(update, metrics=self._metrics(answer), device_id=device)
        reply, name = answer, key
      except (KeyError, TypeError, ValueError) as error:
        kind = type(error).__name__  # Its words may quote what was sent.
        _LOG.warning('round %s: a reply is left out: %s', server_round, kind)
    try:
      round_.end()
    except ValueError:
      words = 'round %s failed: %s updates came, and %s are needed; row of noise %s is used up'
      _LOG.warning(words, server_round, round_.num_updates, round_.at_least, round_.index)
      return None, None
    if reply is None:
      return None, None
    mean = {key: app.Array(np.asarray(initial[key] + round_.mean[key])) for key in initial}
    weight = getattr(self.strategy, 'weighted_by_key', 'num-examples')
    content = {name: app.ArrayRecord(mean), 'metrics': app.MetricRecord({weight: 1})}
    reply.content = app.RecordDict(content)
    arrays, _ = self.strategy.aggregate_train(server_round, [reply])
    return arrays, app.MetricRecord(round_.metrics) if round_.metrics else None

  def _metrics(self, answer: app.Message) -> dict[str, float] | None:
    """Returns the metrics of the run that a client sent; NaN, which counts as 0, for others."""
    names = self.aggregator.metric_names
    sent = {key: v for one in answer.content.metric_records.values() for key, v in one.items()}
    values = ((name, sent.get(name)) for name in names)
    return {n: float(v) if isinstance(v, (int, float)) else math.nan for n, v in values} or None

  def configure_evaluate(self, *unused: Any) -> Iterable[app.Message]:
    """Returns no message: what clients measure has no noise."""
    return []

  def aggregate_evaluate(self, *unused: Any) -> None:
    """Returns None."""

  def summary(self) -> None:
    """Logs the summary of the wrapped strategy."""
    self.strategy.summary()
