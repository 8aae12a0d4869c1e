"""Sends clients' work to the processes that train them."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff

from fl_dpftrl.runtime import clients, trainer, transfer
from fl_dpftrl.text import messages


class Sender:
  """Sends what the clients of a round need, and what many rounds need only once.

  Args:
    put: object → reference to it, as `ray.put`.
  """

  def __init__(self, put: Callable[[Any], Any]):
    self._put = put
    self._references: collections.OrderedDict[int, tuple[Any, Any]] = collections.OrderedDict()

  def work(self, work: clients.Work) -> Any:
    """Returns a reference to what all clients of a stage share."""
    return self._put(
      trainer.SentWork(
        step=self._once(work.step, lambda: transfer.sent_step(work.step)),
        zeros=transfer.sent_totals(work.zeros),
        shared=transfer.sent(work.shared),
        types={name: tff.types.serialize_type(of) for name, of in work.types.items()},
      )
    )

  def block(self, work: clients.Work, block: range) -> trainer.SentBlock:
    """Returns what the clients of a block have of their own."""
    own: Mapping[str, list[Any]] = {
      name: [self._own(work, client, name) for client in block] for name in work.own
    }
    return trainer.SentBlock(
      places=block,
      num_clients=work.num_clients,
      seeds=[work.seed(client) for client in block],
      own=own,
    )

  def _own(self, work: clients.Work, client: int, name: str) -> Any:
    value = work.own[name][client]
    if not isinstance(value, clients.Later):
      return transfer.sent_tensors(work.taken(client, name))
    function = self._once(value.function, lambda: value.function)
    return trainer.SentLater(function, value.arguments)

  def _once(self, key: Any, make: Callable[[], Any]) -> Any:
    """Returns a reference to what belongs to an object."""
    known = self._references.get(id(key))
    if known is None:
      try:
        reference = self._put(make())
      except (TypeError, AttributeError):
        reference = None
      if reference is None:  # Out of the handling: what Ray says shows what is closed over.
        name = messages.quoted(getattr(key, '__name__', type(key).__name__))
        raise ValueError(
          f'{name} cannot be sent to other machines: let it open files and connections itself,'
          ' and close over plain data alone'
        )
      known = self._references[id(key)] = key, reference
      while len(self._references) > trainer.MOST_KEPT:
        self._references.popitem(last=False)
    return known[1]
