"""Actors of a Ray cluster, and the blocks of a round that they train and merge."""

import collections
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray import exceptions
from tensorflow.python.framework import config

from fl_dpftrl.support.text import messages
from tff_inprocess import clients, ray_cluster, trainer, transfer, values

WAS_LOST, IS_BACK = 'is lost', 'is back'
"""Events of an actor."""
# Losses of actors after which a block is thought to cause them, as one too large does.
_ATTEMPTS = 4
# How long to wait for actors before a stop is looked for.
_POLL_SECONDS = 0.5
# Of the cluster's object stores, for totals that wait: Ray writes to disk what does not fit.
_SHARE = 0.5
_LOST = (
  exceptions.RayActorError,
  exceptions.ObjectLostError,
  exceptions.WorkerCrashedError,
  exceptions.OutOfMemoryError,
)

put = ray.put


@dataclasses.dataclass(frozen=True, kw_only=True)
class Actors:
  """Number and size of the actors that train clients.

  Attributes:
    number: number of actors; None for as many as the cluster has room for.
    clients_per_actor: clients that an actor trains at the same time, at least 1.
    cpus: processors of an actor; may be a fraction.
    gpus: GPUs of an actor; may be a fraction, so that actors share one.
    wait_seconds: time without any actor after which a round fails.
  """

  number: int | None = None
  clients_per_actor: int = 1
  cpus: float = 1.0
  gpus: float = 0.0
  wait_seconds: float = 300.0

  def __post_init__(self):
    for name, least in (('number', 1), ('clients_per_actor', 1)):
      value = getattr(self, name)
      if value is not None and (not isinstance(value, int) or value < least):
        raise ValueError(f'{name} of actors must be a whole number of at least {least}: {value!r}')
    ray_cluster.check_size(cpus=self.cpus, gpus=self.gpus)
    seconds = self.wait_seconds
    if not isinstance(seconds, (int, float)) or not 0.0 <= seconds < float('inf'):
      raise ValueError(f'wait_seconds of actors must be a number of at least 0: {seconds!r}')


@contextlib.contextmanager
def _cluster_errors() -> Iterator[None]:
  """Raises cluster.NoActorError where the cluster itself fails."""
  try:
    yield
  except exceptions.RaySystemError as error:
    raise ray_cluster.NoActorError(messages.one_line(f'the Ray cluster failed: {error}')) from None


class Actor:
  """One actor as the driver sees it."""

  def __init__(self, settings: Actors):
    self._settings = settings
    self.pid: int | None = None
    self.anew()

  def anew(self) -> None:
    """Starts another process for it, where Ray does not."""
    self.handle = _started(self._settings)
    self.await_restart()

  def await_restart(self) -> None:
    """Waits for its process, which has nothing to do yet."""
    self.num_blocks, self.merges = 0, False
    self.awaited = self.handle.ready.remote()

  def end(self) -> None:
    """Ends it, whatever it has under way."""
    ray.kill(self.handle, no_restart=True)


def _started(settings: Actors) -> Any:
  """Starts an actor, and returns Ray's handle of it."""
  variables = {'TF_CPP_MIN_LOG_LEVEL': '3'}  # Its log may quote clients' values.
  if one_dnn := os.environ.get('TF_ENABLE_ONEDNN_OPTS'):
    variables['TF_ENABLE_ONEDNN_OPTS'] = one_dnn
  if settings.gpus:
    variables['TF_FORCE_GPU_ALLOW_GROWTH'] = 'true'
  return (
    ray.remote(trainer.Trainer)
    .options(
      num_cpus=settings.cpus,
      num_gpus=settings.gpus,
      max_restarts=-1,
      # One more merges, and one more answers whether the actor is there.
      max_concurrency=settings.clients_per_actor + 2,
      runtime_env={'env_vars': variables},
    )
    .remote(
      fetch=ray.get,
      lost=_LOST,
      at_a_time=settings.clients_per_actor,
      num_threads=max(1, int(settings.cpus) // settings.clients_per_actor),
      deterministic=config.is_op_determinism_enabled(),
    )
  )


@dataclasses.dataclass(frozen=True)
class _Task:
  """A block that an actor trains, or a group that it merges."""

  actor: Actor
  result: Any
  index: int
  merges: bool


class Round:
  """Blocks of a round that wait, are under way, or are trained.

  Totals stay on the machines that made them until it is their turn to be merged: by the driver,
  or by actors, a group at a time, where many actors train more than one group.
  """

  def __init__(
    self,
    actors: Sequence[Actor],
    settings: Actors,
    sent: trainer.Sender,
    work: clients.Work,
    store_bytes: float,
  ):
    self.actors, self._settings = actors, settings
    self._blocks = clients.blocks(work.num_clients)
    self._window = self._most_totals(work, store_bytes)
    groups = clients.groups(len(self._blocks))
    self.merges = (
      len(groups) > 1
      and self._window >= 2 * clients.GROUP
      and work.merge is not None
      and not work.merged_with
      and not transfer.calls_python(work.merge)
    )
    self._sent, self._work = sent, work
    self._sent_work = sent.work(work, merges=self.merges)
    # Indices of the blocks that are taken together.
    self._parts = groups if self.merges else [range(i, i + 1) for i in range(len(self._blocks))]
    self._num_taken = 0
    self._waiting = collections.deque(range(len(self._blocks)))
    self._under_way: dict[Any, _Task] = {}
    self._trained: dict[int, Any] = {}
    self._merged: dict[int, Any] = {}
    self._losses: collections.Counter[tuple[int, int]] = collections.Counter()
    self._last_seen = time.monotonic()

  def _most_totals(self, work: clients.Work, store_bytes: float) -> int:
    """Returns how many blocks may be under way or wait to be merged."""
    most = 2 * self._settings.clients_per_actor * len(self.actors)
    total = sum(map(values.num_bytes, work.zeros.values()))
    room = int(_SHARE * store_bytes) // max(1, total)
    return max(1, min(most, room))

  @property
  def is_over(self) -> bool:
    return self._num_taken == len(self._parts)

  @property
  def _first(self) -> int:
    """The first block that is not taken."""
    return len(self._blocks) if self.is_over else self._parts[self._num_taken].start

  def status(self) -> str:
    """Returns how far the round is, as a part of a progress line."""
    merged = sum(len(self._parts[part]) for part in self._merged)
    num_trained = self._first + merged + len(self._trained)
    num_under_way = sum(not task.merges for task in self._under_way.values())
    return f'{num_trained} of {len(self._blocks)} blocks trained, {num_under_way} under way'

  def busy(self) -> list[Actor]:
    """Returns the actors that have something under way."""
    return [actor for actor in self.actors if actor.num_blocks or actor.merges]

  def take(self) -> clients.Trained | None:
    """Returns the block, or group of blocks, that comes next; None while it is not there.

    Raises:
      Exception: that one of its clients raised.
    """
    result = self._next()
    if isinstance(result, trainer.Failed):
      raise result.error
    if result is None:
      return None
    part = self._parts[self._num_taken]
    self._merged.pop(self._num_taken, None)
    for index in part:
      self._trained.pop(index, None)
    try:
      with _cluster_errors():
        sent: clients.Trained = ray.get(result)
    except _LOST as error:  # With its machine, after it was made.
      self._waiting.extendleft(reversed(part))
      self._blame(part, error)
      return None
    self._num_taken += 1
    return trainer.received(sent)

  def _next(self) -> Any:
    """Returns a reference to what is taken next, why it failed, or None while it is not there."""
    part = self._num_taken
    if part in self._merged:
      return self._merged[part]
    for index in self._parts[part]:
      trained = self._trained.get(index)
      if trained is None or isinstance(trained, trainer.Failed):
        return trained  # Blocks before it are trained.
    return None if self.merges else trained

  def advance(self) -> list[str]:
    """Hands out blocks and waits until one can be taken; tells of actors lost or back.

    Raises:
      cluster.NoActorError: if no actor is there in time, or a block ends each that trains it.
    """
    self._hand_out()
    if self.merges:
      self._hand_out_groups()
    awaited = {actor.awaited: actor for actor in self.actors if actor.awaited is not None}
    references = [*self._under_way, *awaited]
    # Where something can be taken, whatever else happened is looked at without waiting for it.
    most, seconds = (len(references), 0.0) if self._next() is not None else (1, _POLL_SECONDS)
    with _cluster_errors():
      ready: list[Any] = []
      if references:
        ready, _ = ray.wait(references, num_returns=most, timeout=seconds)
      events = [
        self._arrived(awaited[reference]) if reference in awaited else self._ended(reference)
        for reference in ready
      ]
    now = time.monotonic()
    if any(actor.awaited is None for actor in self.actors):
      self._last_seen = now
    elif now - self._last_seen > self._settings.wait_seconds:
      raise ray_cluster.NoActorError(
        f'no actor was there for {self._settings.wait_seconds:g} seconds: the cluster has too'
        ' little room, or its machines are gone'
      )
    return [event for event in events if event]

  def _hand_out(self) -> None:
    """Gives blocks that wait to the actors with the fewest."""
    end = self._first + self._window
    for num_blocks in range(self._settings.clients_per_actor):
      for actor in self.actors:
        if not self._waiting or self._waiting[0] >= end:
          return
        if actor.awaited is None and actor.num_blocks == num_blocks:
          index = self._waiting.popleft()
          block = self._sent.block(self._work, self._blocks[index])
          train = actor.handle.train.options(num_returns=2)
          told, result = train.remote([self._sent_work], block)
          self._under_way[told] = _Task(actor, result, index, merges=False)
          actor.num_blocks += 1

  def _hand_out_groups(self) -> None:
    """Gives groups whose blocks are all trained to actors that merge none."""
    idle = [actor for actor in self.actors if actor.awaited is None and not actor.merges]
    under_way = {task.index for task in self._under_way.values() if task.merges}
    for index in range(self._num_taken, len(self._parts)):
      trained = [self._trained.get(block) for block in self._parts[index]]
      if not idle or index in under_way or None in trained:
        continue
      if any(isinstance(one, trainer.Failed) for one in trained):
        continue
      actor = idle.pop()
      merge = actor.handle.merge.options(num_returns=2)
      told, result = merge.remote([self._sent_work], trained)
      self._under_way[told] = _Task(actor, result, index, merges=True)
      actor.merges = True

  def _ended(self, reference: Any) -> str:
    """Notes that a block is trained or a group merged, or the actor lost."""
    if reference not in self._under_way:  # Of an actor that was lost just now.
      return ''
    task = self._under_way[reference]
    try:
      outcome: trainer.Failed | list[int] | None = ray.get(reference)
    except _LOST as error:
      self._lose(task.actor, error)
      return WAS_LOST
    del self._under_way[reference]
    if not task.merges:
      task.actor.num_blocks -= 1
      self._trained[task.index] = task.result if outcome is None else outcome
      if outcome is not None:
        # Blocks before it go on: the error is that of the first place, each time the same.
        self._waiting = collections.deque(i for i in self._waiting if i < task.index)
      return ''
    task.actor.merges = False
    group = self._parts[task.index]
    if isinstance(outcome, list):  # Totals are lost, with their machines.
      for index in [group[place] for place in reversed(outcome)]:
        del self._trained[index]
        self._waiting.appendleft(index)
      return ''
    for index in group:  # Their totals may go.
      del self._trained[index]
    self._merged[task.index] = task.result if outcome is None else outcome
    return ''

  def _lose(self, actor: Actor, error: Exception) -> None:
    """Takes back what an actor had, which may be the cause."""
    mine = [told for told, task in self._under_way.items() if task.actor is actor]
    tasks = [self._under_way.pop(told) for told in mine]
    actor.await_restart()
    for task in reversed(tasks):
      if not task.merges:
        self._waiting.appendleft(task.index)
      self._blame(self._parts[task.index] if task.merges else [task.index], error)

  def _blame(self, blocks: Sequence[int], error: Exception) -> None:
    """Notes that blocks, or a group of them, were lost with their actor or its machine."""
    clients_of = self._blocks[blocks[0]].start, self._blocks[blocks[-1]].stop - 1
    self._losses[clients_of] += 1
    if self._losses[clients_of] == _ATTEMPTS:
      raise ray_cluster.NoActorError(
        f'clients {clients_of[0]} to {clients_of[1]} of the round ended {_ATTEMPTS} actors, the'
        f' last by {type(error).__name__}: give an actor more memory, or fewer clients_per_actor'
      )

  def _arrived(self, actor: Actor) -> str:
    was_there = actor.pid is not None
    try:
      actor.pid = ray.get(actor.awaited)
    except _LOST:
      actor.anew()
      return ''
    actor.awaited = None
    return IS_BACK if was_there else ''
