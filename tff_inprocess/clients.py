"""Trains the clients of a round, several at the same time, and takes them in their order."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tff_inprocess import (
  analysis,
  data_sets,
  failures,
  memory,
  programs,
  randomness,
  threads,
  values,
)

Tensors: TypeAlias = Sequence[tf.Tensor]

# A small cohort has about this many blocks, so that few processors wait for the last.
_FEWEST_BLOCKS = 16
# Clients in a block of a large one.
_LARGEST_BLOCK = 8
GROUP = 32
"""Blocks in a group; rounds of up to 256 clients have one."""


def blocks(num_clients: int) -> list[range]:
  """Returns the blocks of successive clients of a round, in order.

  A block's updates are summed in order, from zero; then the totals of a group's blocks are merged
  in order, and then those of the groups. Blocks and groups depend only on the number of clients.
  So a round's sum has the same bits wherever, and by however many threads, its clients are trained
  and its totals merged.
  """
  return _cut(num_clients, min(_LARGEST_BLOCK, max(1, num_clients // _FEWEST_BLOCKS)))


def groups(num_blocks: int) -> list[range]:
  """Returns the groups of successive blocks of a round, in order; see `blocks`."""
  return _cut(num_blocks, GROUP)


def _cut(num: int, size: int) -> list[range]:
  return [range(first, min(first + size, num)) for first in range(0, num, size)]


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
  """Result of a block of clients, or of several.

  Attributes:
    totals: totals of the clients, by name; the zeros of a `Work`, summed up.
    kept: by name, what later stages need of each client.
  """

  totals: Mapping[str, Tensors]
  kept: Sequence[Mapping[str, Tensors]]


@dataclasses.dataclass(frozen=True)
class Work:
  """Work of the clients of one stage.

  Attributes:
    step: of one client.
    merge: of the totals so far and those that come next, as of `programs.Stage`.
    num_clients: how many there are.
    zeros: totals of an empty block, by name.
    shared: tensors of what all clients take, by name.
    merged_with: tensors of what a merge takes beside totals, by name; mostly nothing.
    own: for what each client takes of its own, by name, client → tensors, or a value of a type.
    types: types of those that are no tensors yet.
    arrays: that were returned to users.
    seed: client → int64, of `programs.CLIENT_SEED_SPEC`.
    model_bytes: size of what each client keeps copies of.
    show_errors: whether the words of errors, which may quote clients' values, are printed.
  """

  step: programs.Step
  merge: programs.Step | None
  num_clients: int
  zeros: Mapping[str, Tensors]
  shared: Mapping[str, Tensors]
  merged_with: Mapping[str, Tensors]
  own: Mapping[str, Any]
  types: Mapping[str, Any]
  arrays: values.Arrays
  seed: Callable[[int], np.ndarray]
  model_bytes: int
  show_errors: bool

  def taken(self, client: int, name: str) -> Tensors:
    """Returns the tensors of a value that a client takes; a data set is a variant."""
    if name in self.shared:
      return self.shared[name]
    value = self._value(client, name)
    return values.tensors(value, self.types[name], self.arrays) if name in self.types else value

  def _value(self, client: int, name: str) -> Any:
    value = self.own[name][client]
    return value.value() if isinstance(value, Later) else value

  def _all_taken(self, client: int) -> tuple[programs.Step, dict[str, Tensors]]:
    """Returns the step of a client, and what it takes beside totals; batches are arrays still."""
    known: dict[str, Tensors] = {}
    layout: list[int | data_sets.Kind] = []
    for name in self.step.takes:
      if name in self.zeros:
        layout.append(len(self.zeros[name]))
        continue
      cut = None
      if name in self.types:
        value = self._value(client, name)
        cut = values.batches(value, self.types[name])
        known[name] = cut.tensors() if cut else values.tensors(value, self.types[name], self.arrays)
      else:
        known[name] = self.taken(client, name)
      layout.append(data_sets.loose(cut.kind) if cut else len(known[name]))
    cuts = not all(isinstance(one, int) for one in layout)
    return self.step.cutting(tuple(layout)) if cuts else self.step, known

  def train(self, block: Sequence[int], manager: threads.Manager | None = None) -> Trained:
    """Trains the clients of a block, and adds them up in their order."""
    totals = self.zeros
    kept: list[Mapping[str, Tensors]] = []
    for client in block:
      if manager is not None and manager.is_cancelled:
        raise RuntimeError('the round was stopped')
      place = _place(client, self.num_clients)
      step, known = _told(functools.partial(self._all_taken, client), place, self.show_errors)
      given = step(
        data_sets.unchanging(self.seed(client)),
        {**known, **totals}.__getitem__,
        manager,
        place=place,
        show_errors=self.show_errors,
      )
      totals = {name: given.pop(name) for name in totals}
      kept.append(given)
    return Trained(totals, kept)

  def merged(self, trained: Iterable[Trained]) -> Trained:
    """Merges results of successive blocks, or of successive groups, in order."""
    totals: Mapping[str, Tensors] | None = None
    kept: list[Mapping[str, Tensors]] = []
    for one in trained:
      kept.extend(one.kept)
      if totals is None or self.merge is None:
        totals = one.totals
        continue
      # A merge takes the totals so far first, in the order in which all have their totals.
      so_far = dict(zip(self.merge.takes, totals.values()))
      known = {**self.merged_with, **one.totals, **so_far}
      totals = self.merge(randomness.secret_seed(), known.__getitem__, show_errors=self.show_errors)
    return Trained(self.zeros if totals is None else totals, kept)

  def grouped(self, trained: Iterator[Trained]) -> Generator[Trained, None, None]:
    """Yields the result of each group, given those of all blocks."""
    for group in groups(len(blocks(self.num_clients))):
      yield self.merged(itertools.islice(trained, len(group)))


class Clients:
  """A place where clients are trained."""

  def groups(self, work: Work, stop: threads.Stop) -> Generator[Trained, None, None]:
    """Yields what came of each group of blocks of clients, in order."""
    raise NotImplementedError

  def end(self) -> None:
    """Ends what was started for it; here nothing."""

  def status(self) -> str:
    """Returns what a progress line says of it; '' for nothing."""
    return ''


@dataclasses.dataclass(frozen=True)
class Threads(Clients):
  """Trains clients by threads of this process, which end with their round.

  Attributes:
    at_most: clients at the same time; None for as many as processors and memory allow.
  """

  at_most: int | None = None

  def groups(self, work: Work, stop: threads.Stop) -> Generator[Trained, None, None]:
    failures.warn_of_log()
    own = {name: _made(of_clients, work.show_errors) for name, of_clients in work.own.items()}
    work = dataclasses.replace(work, own=own)
    num_threads = memory.concurrent_clients(work.model_bytes, self.at_most)
    of_round = blocks(work.num_clients)
    train_block = lambda index, manager: work.train(of_round[index], manager)
    with contextlib.closing(
      threads.in_order(train_block, len(of_round), num_threads, stop)
    ) as trained:
      yield from work.grouped(trained)


def _made(of_clients: Sequence[Any], show_errors: bool) -> list[Any]:
  """Makes values that were to be made later; in one thread, as their functions expect."""
  return [
    _told(value.value, _place(client, len(of_clients)), show_errors)
    if isinstance(value, Later)
    else value
    for client, value in enumerate(of_clients)
  ]


def _told(make: Callable[[], Any], place: str, show_errors: bool) -> Any:
  """Returns what a function makes of a client's data, whose errors are told without them."""
  try:
    return make()
  except (values.MisfitError, analysis.UnsupportedComputationError) as error:
    failed = failures.at(error, place)
  except Exception as error:
    failed = failures.of_function(error, place=place, show=show_errors)
  # Out of the handling of an error, which would be shown as what came before.
  raise failed


def _place(client: int, num_clients: int) -> str:
  return f'client {client}, counted from 0, of {num_clients}'
