"""Trains the clients of a round on the actors of a Ray cluster.

An actor is a process that Ray starts on a machine of the cluster. It gets a compiled step
once, what all clients of a round share once a machine, and then blocks of clients, whose
totals it sends back. The server's work, all noise and its seed stay in the driver, the
process that trains.

An actor that is lost, alone or with its machine, costs the blocks that it had: others train
them, to the same totals.
"""

import collections
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import ray
from ray import exceptions
from tensorflow.python.framework import config

from fl_dpftrl import messages
from fl_dpftrl.runtime import clients, cluster, context, memory, sending, trainer, transfer

# Losses of actors after which a block is thought to cause them, as one too large does.
_ATTEMPTS = 4
# How long to wait for actors before a stop is looked for.
_POLL_SECONDS = 0.5
_LOST = (
  exceptions.RayActorError,
  exceptions.ObjectLostError,
  exceptions.WorkerCrashedError,
  exceptions.OutOfMemoryError,
)


class NoActorError(RuntimeError):
  """No actor is left, or none was to be had in time; a later call may find one."""


def use_machines(
  address: str = 'auto',
  *,
  seed: int | None = None,
  actors: cluster.Actors = cluster.Actors(),
  default_num_clients: int = 0,
  insecure_network: bool = False,
  say: Callable[[str], None] = lambda line: None,
) -> context.InProcessContext:
  """Makes a Ray cluster train the clients of every TFF computation from now on.

  Rounds have the same bits as in this process. What is at the server, all noise and its seed
  are computed here.

  Args:
    address: host:port of the cluster's head, or 'auto' for the one that RAY_ADDRESS names
      or that runs on this machine.
    seed: of random numbers that clients draw; None for a secret one.
    actors: their number and size.
    default_num_clients: number of clients where a computation's argument does not say.
    insecure_network: accepts a cluster on other machines that neither asks for a token nor
      encrypts.
    say: told, in a line, of each actor that is lost or back.

  Returns:
    The context; `stop` ends its actors.

  Raises:
    ValueError: if the cluster cannot be reached or used, saying what would do.
  """
  made = _context(address, seed, actors, default_num_clients, insecure_network, say)
  context.use(made)
  return made


@contextlib.contextmanager
def on_machines(
  address: str = 'auto',
  *,
  seed: int | None = None,
  actors: cluster.Actors = cluster.Actors(),
  default_num_clients: int = 0,
  insecure_network: bool = False,
  say: Callable[[str], None] = lambda line: None,
) -> Iterator[context.InProcessContext]:
  """Makes a Ray cluster train the clients of this thread's TFF computations within the block.

  The context from before is back afterwards, and the actors are gone.

  Args:
    address, seed, actors, default_num_clients, insecure_network, say: see `use_machines`.

  Yields:
    The context.

  Raises:
    ValueError: if the cluster cannot be reached or used, saying what would do.
  """
  made = _context(address, seed, actors, default_num_clients, insecure_network, say)
  with context.within(made):
    yield made


def _context(
  address: str,
  seed: int | None,
  actors: cluster.Actors,
  default_num_clients: int,
  insecure_network: bool,
  say: Callable[[str], None],
) -> context.InProcessContext:
  if actors.clients_per_actor > 1 and memory.uses_one_dnn():
    raise ValueError(
      'clients_per_actor must be 1 while TensorFlow uses oneDNN operations, which are not safe in'
      ' parallel: set TF_ENABLE_ONEDNN_OPTS=0 in the environment before TensorFlow is imported'
    )
  cluster.connect(address, insecure_network=insecure_network)
  number = cluster.number_of_actors(actors.number, cpus=actors.cpus, gpus=actors.gpus)
  actors = dataclasses.replace(actors, number=number)
  return context.InProcessContext(
    seed=seed, default_num_clients=default_num_clients, clients_at=Machines(actors, say)
  )


class Machines:
  """Trains clients on actors of the connected cluster; a `clients.Clients`.

  Args:
    actors: their number and size.
    say: told, in a line, of each actor that is lost or back.

  Attributes:
    losses: number of actors lost so far.
  """

  def __init__(self, actors: cluster.Actors, say: Callable[[str], None]):
    self._settings, self._say = actors, say
    self._actors: list[_Actor] = []
    self._sent = sending.Sender(ray.put)
    self.losses = 0

  @property
  def pids(self) -> list[int]:
    """Process ids of the actors that are there, on their machines."""
    return [actor.pid for actor in self._actors if actor.pid and actor.awaited is None]

  def blocks(
    self, work: clients.Work, stop: clients.Stop
  ) -> Generator[clients.Trained, None, None]:
    """Yields what came of each block of clients, in order.

    Raises:
      NoActorError: if no actor is there in time, or a block ends each that trains it.
    """
    self._start()
    round_ = _Round(self._actors, self._settings, self._sent.work(work), self._sent.block, work)
    try:
      with stop.told_to(self.end):
        while not round_.is_over:
          stop.check()
          for event in round_.advance():
            self._tell(event)
          yield from map(_received, round_.taken())
    except exceptions.RaySystemError as error:
      raise NoActorError(messages.one_line(f'the Ray cluster failed: {error}')) from None
    finally:
      # What is under way is of a round that failed or was stopped.
      self._end(round_.busy())

  def end(self) -> None:
    """Ends all actors, whatever they have under way."""
    self._end(self._actors)

  def _end(self, actors: Sequence['_Actor']) -> None:
    for actor in actors:
      ray.kill(actor.handle, no_restart=True)
    self._actors = [actor for actor in self._actors if actor not in actors]

  def _start(self) -> None:
    missing = (self._settings.number or 1) - len(self._actors)
    self._actors.extend(_Actor(self._new) for _ in range(missing))

  def _new(self) -> Any:
    """Starts an actor."""
    settings = self._settings
    variables = {
      name: os.environ[name]
      for name in ('TF_ENABLE_ONEDNN_OPTS', 'TF_CPP_MIN_LOG_LEVEL')
      if name in os.environ
    }
    if settings.gpus:
      variables['TF_FORCE_GPU_ALLOW_GROWTH'] = 'true'
    return (
      ray.remote(trainer.Trainer)
      .options(
        num_cpus=settings.cpus,
        num_gpus=settings.gpus,
        max_restarts=-1,
        max_concurrency=settings.clients_per_actor + 1,
        runtime_env={'env_vars': variables},
      )
      .remote(
        fetch=ray.get,
        num_threads=max(1, int(settings.cpus) // settings.clients_per_actor),
        deterministic=config.is_op_determinism_enabled(),
      )
    )

  def _tell(self, event: str) -> None:
    if event == _WAS_LOST:
      self.losses += 1
    self._say(
      f'an actor {event}: {len(self.pids)} of {len(self._actors)} are there,'
      f' {self.losses} were lost so far'
    )


_WAS_LOST, _IS_BACK = 'is lost', 'is back'


class _Actor:
  """One actor as the driver sees it.

  Attributes:
    handle: Ray's.
    num_blocks: number of blocks that it has under way.
    awaited: reference that is ready once it is there, or there again; None while it is.
    pid: its process id on its machine; None before it was there.
  """

  def __init__(self, start: Callable[[], Any]):
    self._start = start
    self.num_blocks = 0
    self.pid: int | None = None
    self.anew()

  def anew(self) -> None:
    """Starts another process for it, where Ray does not."""
    self.handle = self._start()
    self.await_restart()

  def await_restart(self) -> None:
    self.awaited = self.handle.ready.remote()


class _Round:
  """Blocks of a round that wait, are under way, or are trained."""

  def __init__(
    self,
    actors: Sequence[_Actor],
    settings: cluster.Actors,
    sent_work: Any,
    sent_block: Callable[[clients.Work, range], trainer.SentBlock],
    work: clients.Work,
  ):
    self._actors, self._settings = actors, settings
    self._sent_work, self._sent_block, self._work = sent_work, sent_block, work
    self._blocks = clients.blocks(work.num_clients)
    self._waiting = collections.deque(range(len(self._blocks)))
    self._under_way: dict[Any, tuple[int, _Actor]] = {}
    self._trained: dict[int, Any] = {}
    self._num_taken = 0
    self._losses: collections.Counter[int] = collections.Counter()
    self._last_seen = time.monotonic()

  @property
  def is_over(self) -> bool:
    return self._num_taken == len(self._blocks)

  def busy(self) -> list[_Actor]:
    """Returns the actors that have blocks under way."""
    return [actor for actor in self._actors if actor.num_blocks]

  def taken(self) -> list[trainer.SentTrained]:
    """Returns trained blocks that come next.

    Raises:
      Exception: that a client of the next block raised.
    """
    found = []
    while self._num_taken in self._trained:
      trained = self._trained.pop(self._num_taken)
      if isinstance(trained, trainer.Failed):
        raise trained.error
      found.append(trained)
      self._num_taken += 1
    return found

  def advance(self) -> list[str]:
    """Hands out blocks and waits until something happens; tells of actors lost or back."""
    self._hand_out()
    awaited = {actor.awaited: actor for actor in self._actors if actor.awaited is not None}
    ready, _ = ray.wait([*self._under_way, *awaited], num_returns=1, timeout=_POLL_SECONDS)
    events = [
      event
      for reference in ready
      if (
        event := self._trained_or_lost(reference)
        if reference in self._under_way
        else self._arrived(awaited[reference])
      )
    ]
    now = time.monotonic()
    if any(actor.awaited is None for actor in self._actors):
      self._last_seen = now
    elif now - self._last_seen > self._settings.wait_seconds:
      raise NoActorError(
        f'no actor was there for {self._settings.wait_seconds:g} seconds: the cluster has too'
        ' little room, or its machines are gone'
      )
    return events

  def _hand_out(self) -> None:
    places = self._settings.clients_per_actor
    window = self._num_taken + 2 * places * len(self._actors)
    for _ in range(places):
      for actor in self._actors:
        if not self._waiting or self._waiting[0] >= window:
          return
        if actor.awaited is None and actor.num_blocks < places:
          index = self._waiting.popleft()
          block = self._sent_block(self._work, self._blocks[index])
          reference = actor.handle.train.remote([self._sent_work], block)
          self._under_way[reference] = index, actor
          actor.num_blocks += 1

  def _trained_or_lost(self, reference: Any) -> str:
    index, actor = self._under_way.pop(reference)
    actor.num_blocks -= 1
    try:
      trained = ray.get(reference)
    except _LOST as error:
      self._waiting.appendleft(index)
      self._losses[index] += 1
      if self._losses[index] == _ATTEMPTS:
        block = self._blocks[index]
        raise NoActorError(
          f'clients {block[0]} to {block[-1]} of the round ended {_ATTEMPTS} actors, the last by'
          f' {type(error).__name__}: give an actor more memory, or fewer clients_per_actor'
        ) from None
      if actor.awaited is not None:
        return ''
      actor.await_restart()
      return _WAS_LOST
    if isinstance(trained, trainer.Failed):
      # Blocks before it go on: the error is that of the first place, each time the same.
      self._waiting = collections.deque(i for i in self._waiting if i < index)
    self._trained[index] = trained
    return ''

  def _arrived(self, actor: _Actor) -> str:
    was_there = actor.pid is not None
    try:
      actor.pid = ray.get(actor.awaited)
    except _LOST:
      actor.anew()
      return ''
    actor.awaited = None
    return _IS_BACK if was_there else ''


def _received(sent: trainer.SentTrained) -> clients.Trained:
  return clients.Trained(
    transfer.received(sent.totals), [transfer.received(kept) for kept in sent.kept]
  )
