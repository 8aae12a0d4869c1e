"""Trains the clients of a round, several at the same time, and takes them in their order."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import cancellation

from fl_dpftrl.runtime import memory, programs, threads, values

Tensors: TypeAlias = Sequence[tf.Tensor]

# How long an interrupted round waits for an operation that is under way.
_PATIENCE_SECONDS = 5.0


# A small cohort has about this many blocks, so that few processors wait for the last.
_FEWEST_BLOCKS = 16
# Clients in a block of a large one.
_LARGEST_BLOCK = 8


def blocks(num_clients: int) -> list[range]:
  """Returns the blocks of successive clients of a round, in order.

  A block's updates are summed in order, from zero, and then the sums of the blocks. The blocks
  depend on the number of clients alone. So a round's sum has the same bits wherever, and by
  however many threads, its clients are trained.
  """
  size = min(_LARGEST_BLOCK, max(1, num_clients // _FEWEST_BLOCKS))
  return [range(first, min(first + size, num_clients)) for first in range(0, num_clients, size)]


@dataclasses.dataclass(frozen=True)
class Later:
  """A client's value that is made where the client is trained.

  Attributes:
    function: makes it; sent to each machine once.
    arguments: of the function, such as the number of the round and the client's id.
  """

  function: Callable[..., Any]
  arguments: tuple[Any, ...]

  def value(self) -> Any:
    return self.function(*self.arguments)


@dataclasses.dataclass(frozen=True)
class Trained:
  """What came of the clients of a block.

  Attributes:
    totals: totals of the block, by name; the zeros of a `Work`, summed up.
    kept: by name, what later stages need of each client.
  """

  totals: dict[str, Tensors]
  kept: list[dict[str, Tensors]]


@dataclasses.dataclass(frozen=True)
class Work:
  """What the clients of one stage have to do.

  Attributes:
    step: of one client.
    num_clients: how many there are.
    zeros: totals of an empty block, by name.
    shared: tensors of what all clients take, by name.
    own: for what each client takes of its own, by name: tensors, or values of a type.
    types: types of those that are no tensors yet.
    arrays: that were returned to users.
    seed: client → int64, of `programs.CLIENT_SEED_SPEC`.
  """

  step: programs.Step
  num_clients: int
  zeros: Mapping[str, Tensors]
  shared: Mapping[str, Tensors]
  own: Mapping[str, Sequence[Any]]
  types: Mapping[str, Any]
  arrays: values.Arrays
  seed: Callable[[int], np.ndarray]

  def taken(self, client: int, name: str) -> Tensors:
    """Returns the tensors of a value that a client takes."""
    if name in self.shared:
      return self.shared[name]
    value = self.own[name][client]
    if name not in self.types:
      return value
    if isinstance(value, Later):
      value = value.value()
    return values.tensors(value, self.types[name], self.arrays)

  def train(self, block: Sequence[int]) -> Trained:
    """Trains the clients of a block, and adds them up in their order."""
    return train(self.step, block, self.zeros, self.taken, self.seed)


def train(
  step: programs.Step,
  block: Sequence[int],
  zeros: Mapping[str, Tensors],
  taken: Callable[[int, str], Tensors],
  seed: Callable[[int], np.ndarray],
) -> Trained:
  """Trains the clients of a block by a step, and adds them up in their order.

  Args:
    step: of one client.
    block: the clients' places.
    zeros: totals of an empty block, by name.
    taken: (client, name) → tensors of any other value that it takes.
    seed: client → int64, of `programs.CLIENT_SEED_SPEC`.
  """
  totals: dict[str, Tensors] = dict(zeros)
  kept: list[dict[str, Tensors]] = []
  for client in block:
    arguments = {
      name: totals[name] if name in totals else taken(client, name) for name in step.takes
    }
    given: dict[str, Tensors] = {**step(tf.constant(seed(client)), arguments.__getitem__)}
    totals = {name: given.pop(name) for name in totals}
    kept.append(given)
  return Trained(totals, kept)


class Clients(Protocol):
  """The place where clients are trained."""

  def blocks(self, work: Work, stop: 'Stop') -> Generator[Trained, None, None]:
    """Yields what came of each block of clients, in order."""
    ...

  def end(self) -> None:
    """Ends what was started for it."""
    ...


@dataclasses.dataclass(frozen=True)
class Threads:
  """Trains clients by threads of this process.

  Attributes:
    at_most: clients at the same time; None for as many as processors and memory allow.
  """

  at_most: int | None = None

  def blocks(self, work: Work, stop: 'Stop') -> Generator[Trained, None, None]:
    own = {name: list(map(_made, of_clients)) for name, of_clients in work.own.items()}
    work = dataclasses.replace(work, own=own)
    model_bytes = sum(map(values.num_bytes, work.shared.values()))
    num_threads = memory.concurrent_clients(model_bytes, self.at_most)
    found = blocks(work.num_clients)
    return in_order(lambda index: work.train(found[index]), len(found), num_threads, stop)

  def end(self) -> None:
    """Does nothing: threads end with their round."""


def _made(value: Any) -> Any:
  """Makes a value that was to be made later; in one thread, as its function expects."""
  return value.value() if isinstance(value, Later) else value


class Stop:
  """Ends running and future rounds from another thread."""

  def __init__(self):
    self._asked = False
    self._under_way: set[Callable[[], None]] = set()

  def ask(self) -> None:
    self._asked = True
    for cancel in tuple(self._under_way):
      cancel()

  def check(self) -> None:
    """Raises RuntimeError if a stop was requested."""
    if self._asked:
      raise RuntimeError('the round was stopped')

  @contextlib.contextmanager
  def told_to(self, cancel: Callable[[], None]) -> Iterator[None]:
    """Calls cancel if a stop is requested within the block."""
    self._under_way.add(cancel)
    try:
      self.check()
      yield
    finally:
      self._under_way.discard(cancel)


def in_order(
  work: Callable[[int], Any], num_clients: int, num_threads: int, stop: Stop | None = None
) -> Generator[Any, None, None]:
  """Yields work(0), work(1), …, of which several are computed at the same time.

  Results that wait for an earlier one, and clients that train, are at most twice
  num_threads together, however much slower one of them is. Where one fails, or
  whoever takes the results goes away, the others are cancelled.

  Args:
    work: of one client, by TensorFlow.
    num_clients: how many.
    num_threads: that work at the same time, at least 1.
    stop: ends the round with a RuntimeError where it is asked for.
  """
  stop = stop or Stop()
  round_ = _Round(work, num_clients, 2 * num_threads)
  manager = cancellation.CancellationManager()

  def cancel():
    round_.stop()
    with contextlib.suppress(Exception):
      manager.start_cancel()

  with cancellation.CancellationManagerContext(manager), stop.told_to(cancel):
    ends = [threads.start(round_.run) for _ in range(min(num_threads, num_clients))]
    try:
      for index in range(num_clients):
        yield round_.take(index)
    except BaseException:
      cancel()
      raise
    finally:
      round_.stop()
      for ended in ends:
        ended.wait(_PATIENCE_SECONDS)
  stop.check()


class _Round:
  """Clients of a round that are under way, done and taken."""

  def __init__(self, work: Callable[[int], Any], num_clients: int, window: int):
    self._work, self._num_clients, self._window = work, num_clients, window
    self._changed = threading.Condition()
    self._next, self._taken, self._stopped = 0, 0, False
    self._done: dict[int, tuple[Any, BaseException | None]] = {}

  def run(self) -> None:
    """Trains clients until none are left; the task of a thread."""
    while (index := self._begin()) is not None:
      try:
        outcome: tuple[Any, BaseException | None] = self._work(index), None
      except BaseException as error:
        outcome = None, error
      with self._changed:
        self._done[index] = outcome
        self._changed.notify_all()
      del outcome

  def _begin(self) -> int | None:
    with self._changed:
      while not self._stopped and self._next < self._num_clients:
        if self._next < self._taken + self._window:
          self._next += 1
          return self._next - 1
        self._changed.wait()
    return None

  def take(self, index: int) -> Any:
    with self._changed:
      while index not in self._done:
        if self._stopped:
          raise RuntimeError('the round was stopped')
        self._changed.wait()
      result, error = self._done.pop(index)
      self._taken = index + 1
      self._changed.notify_all()
    if error is not None:
      raise error
    return result

  def stop(self) -> None:
    with self._changed:
      self._stopped = True
      self._changed.notify_all()
