"""Actors of a Ray cluster, and the blocks of a round that they train."""

import collections
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray import exceptions
from tensorflow.python.framework import config

from fl_dpftrl.runtime import clients, cluster, sending, trainer, transfer, values
from fl_dpftrl.text import messages

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


@contextlib.contextmanager
def _cluster_errors() -> Iterator[None]:
  """Raises cluster.NoActorError where the cluster itself fails."""
  try:
    yield
  except exceptions.RaySystemError as error:
    raise cluster.NoActorError(messages.one_line(f'the Ray cluster failed: {error}')) from None


class Actor:
  """One actor as the driver sees it.

  Attributes:
    handle: Ray's.
    num_blocks: number of blocks that it has under way.
    awaited: reference that is ready once it is there, or there again; None while it is.
    pid: its process id on its machine; None before it was there.

  Args:
    settings: size of the actor.
  """

  def __init__(self, settings: cluster.Actors):
    self._settings = settings
    self.num_blocks = 0
    self.pid: int | None = None
    self.anew()

  def anew(self) -> None:
    """Starts another process for it, where Ray does not."""
    self.handle = _started(self._settings)
    self.await_restart()

  def await_restart(self) -> None:
    self.awaited = self.handle.ready.remote()

  def end(self) -> None:
    """Ends it, whatever it has under way."""
    ray.kill(self.handle, no_restart=True)


def _started(settings: cluster.Actors) -> Any:
  """Starts an actor, and returns Ray's handle of it."""
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
      # One more answers whether the actor is there.
      max_concurrency=settings.clients_per_actor + 1,
      runtime_env={'env_vars': variables},
    )
    .remote(
      fetch=ray.get,
      at_a_time=settings.clients_per_actor,
      num_threads=max(1, int(settings.cpus) // settings.clients_per_actor),
      deterministic=config.is_op_determinism_enabled(),
    )
  )


class Round:
  """Blocks of a round that wait, are under way, or are trained.

  Totals stay on the machines that made them until it is their turn to be merged.

  Args:
    actors: those that train.
    settings: their size.
    sent: sends the work.
    work: of the round's clients.
    store_bytes: memory for objects of the cluster's machines together.
  """

  def __init__(
    self,
    actors: Sequence[Actor],
    settings: cluster.Actors,
    sent: sending.Sender,
    work: clients.Work,
    store_bytes: float,
  ):
    self._actors, self._settings = actors, settings
    self._sent, self._sent_work, self._work = sent, sent.work(work), work
    self._blocks = clients.blocks(work.num_clients)
    self._window = self._most_totals(store_bytes)
    self._waiting = collections.deque(range(len(self._blocks)))
    self._under_way: dict[Any, tuple[int, Actor, Any]] = {}
    self._trained: dict[int, Any] = {}
    self._num_taken = 0
    self._losses: collections.Counter[int] = collections.Counter()
    self._last_seen = time.monotonic()

  def _most_totals(self, store_bytes: float) -> int:
    """Returns how many blocks may be under way or wait to be merged."""
    most = 2 * self._settings.clients_per_actor * len(self._actors)
    total = sum(map(values.num_bytes, self._work.zeros.values()))
    room = int(_SHARE * store_bytes) // max(1, total)
    return max(1, min(most, room))

  @property
  def is_over(self) -> bool:
    return self._num_taken == len(self._blocks)

  def counts(self) -> dict[str, int]:
    """Returns numbers of blocks, as of `cluster.Status`."""
    return dict(
      num_blocks=len(self._blocks),
      num_trained=self._num_taken + len(self._trained),
      num_under_way=len(self._under_way),
    )

  def busy(self) -> list[Actor]:
    """Returns the actors that have blocks under way."""
    return [actor for actor in self._actors if actor.num_blocks]

  def take(self) -> clients.Trained | None:
    """Returns the block that comes next; None while it is not trained.

    Raises:
      Exception: that one of its clients raised.
    """
    index = self._num_taken
    if index not in self._trained:
      return None
    trained = self._trained.pop(index)
    if isinstance(trained, trainer.Failed):
      raise trained.error
    try:
      with _cluster_errors():
        sent: trainer.SentTrained = ray.get(trained)
    except _LOST as error:  # With its machine, after it was trained.
      self._put_back(index, error)
      return None
    self._num_taken += 1
    return clients.Trained(
      transfer.received(sent.totals), [transfer.received(kept) for kept in sent.kept]
    )

  def advance(self) -> list[str]:
    """Hands out blocks and waits until one can be taken; tells of actors lost or back.

    Raises:
      cluster.NoActorError: if no actor is there in time, or a block ends each that trains it.
    """
    self._hand_out()
    awaited = {actor.awaited: actor for actor in self._actors if actor.awaited is not None}
    references = [*self._under_way, *awaited]
    # Where a block can be taken, whatever else happened is looked at without waiting for it.
    can_take = self._num_taken in self._trained
    most, seconds = (len(references), 0.0) if can_take else (1, _POLL_SECONDS)
    with _cluster_errors():
      ready: list[Any] = []
      if references:
        ready, _ = ray.wait(references, num_returns=most, timeout=seconds)
      events = [
        self._arrived(awaited[reference]) if reference in awaited else self._ended(reference)
        for reference in ready
      ]
    now = time.monotonic()
    if any(actor.awaited is None for actor in self._actors):
      self._last_seen = now
    elif now - self._last_seen > self._settings.wait_seconds:
      raise cluster.NoActorError(
        f'no actor was there for {self._settings.wait_seconds:g} seconds: the cluster has too'
        ' little room, or its machines are gone'
      )
    return [event for event in events if event]

  def _hand_out(self) -> None:
    end = self._num_taken + self._window
    for num_blocks in range(self._settings.clients_per_actor):
      for actor in self._actors:
        if not self._waiting or self._waiting[0] >= end:
          return
        if actor.awaited is None and actor.num_blocks == num_blocks:
          index = self._waiting.popleft()
          block = self._sent.block(self._work, self._blocks[index])
          train = actor.handle.train.options(num_returns=2)
          told, trained = train.remote([self._sent_work], block)
          self._under_way[told] = index, actor, trained
          actor.num_blocks += 1

  def _ended(self, reference: Any) -> str:
    """Notes that a block is trained, or its actor lost."""
    if reference not in self._under_way:  # Of an actor that was lost just now.
      return ''
    index, actor, trained = self._under_way[reference]
    try:
      failed: trainer.Failed | None = ray.get(reference)
    except _LOST as error:
      self._lose(actor, error)
      return WAS_LOST
    del self._under_way[reference]
    actor.num_blocks -= 1
    if failed is not None:
      # Blocks before it go on: the error is that of the first place, each time the same.
      self._waiting = collections.deque(i for i in self._waiting if i < index)
    self._trained[index] = trained if failed is None else failed
    return ''

  def _lose(self, actor: Actor, error: Exception) -> None:
    """Takes back the blocks of an actor; those that it trained may be the cause."""
    mine = [r for r, (_, its_actor, _) in self._under_way.items() if its_actor is actor]
    indices = [self._under_way.pop(reference)[0] for reference in mine]
    actor.num_blocks = 0
    actor.await_restart()
    trained = indices[: self._settings.clients_per_actor]
    for index in reversed(indices):
      self._put_back(index, error if index in trained else None)

  def _put_back(self, index: int, cause: Exception | None) -> None:
    """Makes a block wait again.

    Args:
      index: its place.
      cause: how it was lost while it was trained; None if it only waited there.

    Raises:
      cluster.NoActorError: if it was lost too often.
    """
    self._waiting.appendleft(index)
    if cause is None:
      return
    self._losses[index] += 1
    if self._losses[index] == _ATTEMPTS:
      block = self._blocks[index]
      raise cluster.NoActorError(
        f'clients {block[0]} to {block[-1]} of the round ended {_ATTEMPTS} actors, the last by'
        f' {type(cause).__name__}: give an actor more memory, or fewer clients_per_actor'
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
