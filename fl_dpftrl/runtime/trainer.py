"""The process that trains blocks of clients on another machine."""

import collections
import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.runtime import clients, transfer, values

MOST_KEPT = 16
"""Steps and functions that are kept, of a few computations."""
# Of successive rounds, what clients share: one that ends beside one that begins.
_MOST_WORK = 2


@dataclasses.dataclass(frozen=True)
class SentWork:
  """Part of a stage that all clients share, as it travels; see `clients.Work`.

  Attributes:
    step: reference to a `transfer.SentStep`.
    zeros, shared: tensors by name.
    types: serialised types of values that clients have of their own.
  """

  step: Any
  zeros: Mapping[str, Sequence[transfer.Sent]]
  shared: Mapping[str, Sequence[transfer.Sent]]
  types: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class SentLater:
  """A `clients.Later` with a reference to its function."""

  function: Any
  arguments: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class SentBlock:
  """The clients of one block, as they travel.

  Attributes:
    places: their places in the round.
    num_clients: number of clients of the round.
    seeds: of each, as of `clients.Work`.
    own: values of their own, by name.
  """

  places: range
  num_clients: int
  seeds: Sequence[np.ndarray]
  own: Mapping[str, Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class SentTrained:
  """A `clients.Trained` as it travels."""

  totals: Mapping[str, Sequence[transfer.Sent]]
  kept: Sequence[Mapping[str, Sequence[transfer.Sent]]]


@dataclasses.dataclass(frozen=True)
class Failed:
  """The error of clients' own work, which would fail everywhere."""

  error: BaseException


class Trainer:
  """Trains blocks of clients; an actor of Ray.

  Args:
    fetch: reference → what it stands for.
    at_a_time: clients that are trained at the same time; others wait.
    num_threads: processors that an operation of TensorFlow may use.
    deterministic: whether operations must give the same bits in each run.
  """

  def __init__(
    self, *, fetch: Callable[[Any], Any], at_a_time: int, num_threads: int, deterministic: bool
  ):
    with contextlib.suppress(RuntimeError):  # TensorFlow has begun.
      tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    if deterministic:
      tf.config.experimental.enable_op_determinism()
    self._fetch = fetch
    self._objects, self._works = _Kept(MOST_KEPT), _Kept(_MOST_WORK)
    self._making, self._places = threading.Lock(), threading.Semaphore(at_a_time)
    self._arrays = values.Arrays()

  def ready(self) -> int:
    """Returns the process id, once the process is there."""
    return os.getpid()

  def train(
    self, work: Sequence[Any], block: SentBlock
  ) -> tuple[Failed | None, SentTrained | None]:
    """Returns why a block failed, and what came of it; one of them is None.

    Args:
      work: reference to a `SentWork`, in a list, so that Ray does not fetch it.
      block: the clients.
    """
    try:
      loaded = self._works.get(work[0], self._load)
      first = block.places.start
      with self._places:
        trained = clients.train(
          loaded.step,
          block.places,
          block.num_clients,
          loaded.zeros,
          lambda client, name: self._taken(loaded, block, client - first, name),
          lambda client: block.seeds[client - first],
        )
    except Exception as error:
      return Failed(transfer.portable_error(error)), None
    kept = [transfer.sent(one) for one in trained.kept]
    return None, SentTrained(transfer.sent(trained.totals), kept)

  def _load(self, reference: Any) -> '_Loaded':
    sent: SentWork = self._fetch(reference)
    return _Loaded(
      step=self._objects.get(sent.step, lambda step: self._fetch(step).step()),
      zeros=transfer.received(sent.zeros),
      shared=transfer.received(sent.shared),
      types={name: tff.types.deserialize_type(of) for name, of in sent.types.items()},
    )

  def _taken(self, loaded: '_Loaded', block: SentBlock, index: int, name: str) -> clients.Tensors:
    if name in loaded.shared:
      return loaded.shared[name]
    value = block.own[name][index]
    if not isinstance(value, SentLater):
      return transfer.tensors(value)
    function = self._objects.get(value.function, self._fetch)
    with self._making:  # A user's function that reads files may not be safe in parallel.
      made = function(*value.arguments)
    return values.tensors(made, loaded.types[name], self._arrays)


@dataclasses.dataclass(frozen=True)
class _Loaded:
  """A `SentWork` that was received."""

  step: Any
  zeros: Mapping[str, clients.Tensors]
  shared: Mapping[str, clients.Tensors]
  types: Mapping[str, Any]


class _Kept:
  """The last few objects that were loaded, by what they were loaded from."""

  def __init__(self, most: int):
    self._most = most
    self._lock = threading.Lock()
    self._found: collections.OrderedDict[Any, Any] = collections.OrderedDict()

  def get(self, key: Any, load: Callable[[Any], Any]) -> Any:
    """Returns the object of a key; loads it where it is not there, once."""
    with self._lock:
      if key not in self._found:
        self._found[key] = load(key)
        while len(self._found) > self._most:
          self._found.popitem(last=False)
      self._found.move_to_end(key)
      return self._found[key]
