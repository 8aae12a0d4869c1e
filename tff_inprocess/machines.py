"""Trains the clients of a round on the actors of a Ray cluster.

An actor is a process that Ray starts on a machine of the cluster. It gets a compiled step once,
what all clients of a round share once a machine, and then blocks of clients, whose totals it sends
back. The server's work, all noise and its seed stay in the driver, the process that trains.

An actor that is lost, alone or with its machine, costs the blocks that it had: others train
them, to the same totals.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from tff_inprocess import clients, contexts, memory, ray_actors, ray_cluster, threads, trainer

# Between two lines that say how far a long round is.
_SAY_SECONDS = 30.0


def use_machines(
  address: str = 'auto',
  *,
  seed: int | None = None,
  actors: ray_actors.Actors = ray_actors.Actors(),
  default_num_clients: int = 0,
  insecure_network: bool = False,
  show_client_errors: bool = False,
  say: Callable[[str], None] = lambda line: None,
) -> contexts.InProcessContext:
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
    show_client_errors: whether actors print all words of errors of clients' work to their own
      stderr; see `InProcessContext`.
    say: told, in a line, of each actor that is lost or back.

  Returns:
    The context; `stop` ends its actors.
  """
  made = _context(
    address, seed, actors, default_num_clients, insecure_network, show_client_errors, say
  )
  contexts.use(made)
  return made


@contextlib.contextmanager
def on_machines(address: str = 'auto', **settings: Any) -> Iterator[contexts.InProcessContext]:
  """Makes a Ray cluster train the clients of this thread's TFF computations within the block.

  The context from before is back afterwards, and the actors are gone.
  """
  with contexts.within(_context(address, **settings)) as made:
    yield made


def _context(
  address: str,
  seed: int | None = None,
  actors: ray_actors.Actors = ray_actors.Actors(),
  default_num_clients: int = 0,
  insecure_network: bool = False,
  show_client_errors: bool = False,
  say: Callable[[str], None] = lambda line: None,
) -> contexts.InProcessContext:
  if actors.clients_per_actor > 1 and memory.uses_one_dnn():
    raise ValueError(
      'clients_per_actor must be 1 while TensorFlow uses oneDNN operations, which are not safe in'
      ' parallel: set TF_ENABLE_ONEDNN_OPTS=0 in the environment before TensorFlow is imported'
    )
  ray_cluster.connect(address, insecure_network=insecure_network)
  number = ray_cluster.room(actors.number, cpus=actors.cpus, gpus=actors.gpus)
  actors = dataclasses.replace(actors, number=number)
  return contexts.InProcessContext(
    seed=seed,
    default_num_clients=default_num_clients,
    clients_at=Machines(actors, say),
    show_client_errors=show_client_errors,
  )


class Machines(clients.Clients):
  """Trains clients on actors of the connected cluster."""

  def __init__(self, actors: ray_actors.Actors, say: Callable[[str], None]):
    self._settings, self._say = actors, say
    self._actors: list[ray_actors.Actor] = []
    self._sent = trainer.Sender(ray_actors.put)
    self._round: ray_actors.Round | None = None
    self._head = ray_cluster.Head()
    self._store_bytes = ray_cluster.store_bytes()  # Once: a head that is gone does not answer.
    self.losses = 0

  @property
  def pids(self) -> list[int]:
    """Process ids of the actors that are there, on their machines."""
    return [actor.pid for actor in self._actors if actor.pid and actor.awaited is None]

  def status(self) -> str:
    """See `clients.Clients`."""
    if not self._actors:
      return ''
    parts = [f'{len(self.pids)} of {self._settings.number} actors']
    if self._round is not None:
      parts.append(self._round.status())
    return ', '.join([*parts, f'{self.losses} lost so far'])

  def groups(
    self, work: clients.Work, stop: threads.Stop
  ) -> Generator[clients.Trained, None, None]:
    """Yields what came of each group of blocks of clients, in order."""
    self._start()
    round_ = ray_actors.Round(self._actors, self._settings, self._sent, work, self._store_bytes)
    with contextlib.closing(self._taken(round_, stop)) as trained:
      yield from trained if round_.merges else work.grouped(trained)

  def _taken(
    self, round_: ray_actors.Round, stop: threads.Stop
  ) -> Generator[clients.Trained, None, None]:
    """Yields the blocks of a round, or its groups where actors merge."""
    self._round = round_
    said = time.monotonic()
    try:
      with stop.told_to(self.end):
        while not round_.is_over:
          stop.check()
          self._head.check()
          for event in round_.advance():
            self._tell(event)
          if (trained := round_.take()) is not None:
            yield trained
          if time.monotonic() - said >= _SAY_SECONDS:
            said = time.monotonic()
            self._say(self.status())
    finally:
      self._round = None
      # What is under way is of a round that failed. A stop may have come while actors started.
      self._end(round_.actors if stop.is_asked else round_.busy())

  def end(self) -> None:
    """Ends all actors, whatever they have under way."""
    self._end(self._actors)

  def _end(self, actors: Sequence[ray_actors.Actor]) -> None:
    for actor in actors:
      actor.end()
    self._actors = [actor for actor in self._actors if actor not in actors]

  def _start(self) -> None:
    missing = (self._settings.number or 1) - len(self._actors)
    self._actors.extend(ray_actors.Actor(self._settings) for _ in range(missing))

  def _tell(self, event: str) -> None:
    self.losses += event == ray_actors.WAS_LOST
    self._say(f'an actor {event}: {self.status()}')
