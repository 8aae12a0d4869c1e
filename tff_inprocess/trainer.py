"""Work of clients as it travels: the driver sends it, and processes elsewhere do it."""

import collections
import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.support.text import messages
from tff_inprocess import clients, data_sets, transfer, values

# Steps and functions that are kept, of a few computations.
_MOST_KEPT = 16
# Of successive rounds, what clients share: one that ends beside one that begins.
_MOST_WORK = 2


@dataclasses.dataclass(frozen=True)
class SentWork:
  """Part of a `clients.Work` that all of its clients share, as it travels."""

  step: Any
  merge: Any
  num_clients: int
  zeros: Mapping[str, Sequence[transfer.Sent]]
  shared: Mapping[str, Sequence[transfer.Sent]]
  types: Mapping[str, Any]
  show_errors: bool


SentBlock = tuple[range, Sequence[np.ndarray], Mapping[str, Sequence[Any]]]
"""The clients of one block, as they travel: their places, seeds and own values."""


@dataclasses.dataclass(frozen=True)
class Failed:
  """The error of clients' own work, which would fail everywhere."""

  error: BaseException


class Sender:
  """Sends what the clients of a round need, and what many rounds need only once."""

  def __init__(self, put: Callable[[Any], Any]):
    self._put = put
    self._kept = _Kept(_MOST_KEPT)

  def work(self, work: clients.Work, *, merges: bool) -> Any:
    """Returns a reference to what all clients of a stage share."""
    return self._put(
      SentWork(
        step=self._step(work.step),
        merge=self._step(work.merge) if merges else None,
        num_clients=work.num_clients,
        zeros=transfer.sent_totals(work.zeros),
        shared=transfer.sent(work.shared),
        types={name: tff.types.serialize_type(of) for name, of in work.types.items()},
        show_errors=work.show_errors,
      )
    )

  def block(self, work: clients.Work, block: range) -> SentBlock:
    """Returns what the clients of a block have of their own."""
    own = {name: [self._own(work, client, name) for client in block] for name in work.own}
    return block, [work.seed(client) for client in block], own

  def _step(self, step: Any) -> Any:
    return self._once(step, lambda: transfer.sent_step(step))

  def _own(self, work: clients.Work, client: int, name: str) -> Any:
    value = work.own[name][client]
    if isinstance(value, data_sets.Batches):
      return value
    if not isinstance(value, clients.Later):
      return transfer.sent_tensors(work.taken(client, name))
    return clients.Later(self._once(value.function, lambda: value.function), value.arguments)

  def _once(self, key: Any, make: Callable[[], Any]) -> Any:
    """Returns a reference to what belongs to an object."""
    try:
      # With the object, so that no other one gets its id.
      return self._kept.get(id(key), lambda _: (key, self._put(make())))[1]
    except (TypeError, AttributeError):
      name = messages.quoted(getattr(key, '__name__', type(key).__name__))
    # Out of the handling: what Ray says shows what is closed over.
    raise ValueError(
      f'{name} cannot be sent to other machines: let it open files and connections itself,'
      ' and close over only plain data'
    )


class Trainer:
  """Trains blocks of clients and merges their totals; an actor of Ray."""

  def __init__(
    self,
    *,
    fetch: Callable[[Any], Any],
    lost: tuple[type[Exception], ...],
    at_a_time: int,
    num_threads: int,
    deterministic: bool,
  ):
    with contextlib.suppress(RuntimeError):  # TensorFlow has begun.
      tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    if deterministic:
      tf.config.experimental.enable_op_determinism()
    self._fetch, self._lost = fetch, lost
    self._objects, self._works = _Kept(_MOST_KEPT), _Kept(_MOST_WORK)
    self._making, self._places = threading.Lock(), threading.Semaphore(at_a_time)
    self._arrays = values.Arrays()

  def ready(self) -> int:
    """Returns the process id, once the process is there."""
    return os.getpid()

  def train(
    self, work: Sequence[Any], block: SentBlock
  ) -> tuple[Failed | None, clients.Trained | None]:
    """Returns why a block failed, and what came of it; one of them is None.

    The work is a reference in a list, so that Ray does not fetch it.
    """
    places, seeds, values_of = block
    try:
      loaded: clients.Work = self._works.get(work[0], self._load)
      own = {
        name: {
          place: clients.Later(self._received, (value, name in loaded.types))
          for place, value in zip(places, of_clients)
        }
        for name, of_clients in values_of.items()
      }
      mine = dataclasses.replace(loaded, own=own, seed=dict(zip(places, seeds)).__getitem__)
      with self._places:
        trained = mine.train(places)
    except Exception as error:
      return Failed(transfer.portable_error(error)), None
    return None, _sent(trained)

  def merge(
    self, work: Sequence[Any], trained: Sequence[Any]
  ) -> tuple[Failed | list[int] | None, clients.Trained | None]:
    """Returns why results were not merged, if not, and what came of it, one of which is None.

    The reason is an error, or the places of results that are lost.
    """
    lost: list[int] = []

    def arrived() -> Iterator[clients.Trained]:
      for place, reference in enumerate(trained):
        try:
          sent: clients.Trained = self._fetch(reference)
        except self._lost:
          lost.append(place)
        else:
          if not lost:  # Else nothing comes of it, and only what else is lost is of interest.
            yield received(sent)

    try:
      loaded: clients.Work = self._works.get(work[0], self._load)
      merged = loaded.merged(arrived())
    except Exception as error:
      return Failed(transfer.portable_error(error)), None
    return (lost, None) if lost else (None, _sent(merged))

  def _load(self, reference: Any) -> clients.Work:
    sent: SentWork = self._fetch(reference)
    step = lambda of: self._objects.get(of, lambda one: self._fetch(one).step())
    return clients.Work(
      step=step(sent.step),
      merge=sent.merge and step(sent.merge),
      num_clients=sent.num_clients,
      zeros=transfer.received(sent.zeros),
      shared=transfer.received(sent.shared),
      merged_with={},
      own={},
      types={name: tff.types.deserialize_type(of) for name, of in sent.types.items()},
      arrays=self._arrays,
      seed=lambda client: np.zeros(4, np.int64),
      model_bytes=0,
      show_errors=sent.show_errors,
    )

  def _received(self, value: Any, has_type: bool) -> Any:
    """Returns a client's own value, given as it travelled."""
    if isinstance(value, data_sets.Batches):
      return value
    if not isinstance(value, clients.Later):
      tensors = transfer.tensors(value)
      return values.Received(tensors) if has_type else tensors
    function = self._objects.get(value.function, self._fetch)
    with self._making:  # A user's function that reads files may not be safe in parallel.
      return function(*value.arguments)


def _sent(trained: clients.Trained) -> clients.Trained:
  """Returns what came of clients as it travels."""
  return clients.Trained(transfer.sent(trained.totals), [*map(transfer.sent, trained.kept)])


def received(sent: clients.Trained) -> clients.Trained:
  """Returns what came of clients elsewhere."""
  return clients.Trained(transfer.received(sent.totals), [*map(transfer.received, sent.kept)])


class _Kept:
  """The last few objects that were made, each by a key."""

  def __init__(self, most: int):
    self._most = most
    self._lock = threading.Lock()
    self._objects: collections.OrderedDict[Any, Any] = collections.OrderedDict()

  def get(self, key: Any, make: Callable[[Any], Any]) -> Any:
    """Returns the object of a key; makes it where it is not there, once."""
    with self._lock:
      if key not in self._objects:
        self._objects[key] = make(key)
        while len(self._objects) > self._most:
          self._objects.popitem(last=False)
      self._objects.move_to_end(key)
      return self._objects[key]
