"""Dependence of the tensors of a TFF process on its clients, in any of its rounds.

What follows from clients' data in the state of one round follows from them in the next round too.
"""

import functools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow_federated as tff

from fl_dpftrl.tff.aggregators import expressions, operations

OWN, SHARED, SECRET = 1, 2, 4
"""A tensor may follow from data of the client that has it, from others', from secrets of noise."""
CLIENTS = OWN | SHARED


class Release(NamedTuple):
  """A call that releases a sum with the aggregator's noise.

  Attributes:
    updates: what clients add to the sum, before it is bounded.
    noise: the noise state that it takes. Its outputs follow from what is not secret of that.
    public: other tensors that its outputs follow from.
    secret_outputs: numbers of its outputs that are secrets of the noise.
    secrets: numbers of the tensors of the process's state that are.
    is_advanced: whether the noise state is the process's, from `initialize` on.
  """

  updates: list[expressions.Tensor]
  noise: list[expressions.Tensor]
  public: list[expressions.Tensor]
  secret_outputs: set[int]
  secrets: set[int]
  is_advanced: bool


class Masks:
  """Dependence of the tensors of an expression.

  Args:
    known: of some tensors; others of the argument follow from nothing.
    releases: calls that hide what they are computed from.
  """

  def __init__(
    self,
    known: Mapping[expressions.Tensor, int],
    releases: Mapping[expressions.Node, Release] | None = None,
  ):
    self._known, self._releases = dict(known), releases or {}

  def of(self, *tensors: expressions.Tensor) -> int:
    """Returns bits of OWN, SHARED and SECRET that any of some tensors has."""
    return functools.reduce(operator.or_, map(self._of, tensors), 0)

  def _of(self, tensor: expressions.Tensor) -> int:
    if tensor not in self._known:
      node, release = tensor.node, self._releases.get(tensor.node)
      if release is None:
        mask = self.of(*node.sources(tensor.number))
        mask |= SHARED if node.kind == expressions.SUM and mask & OWN else 0
      else:
        mask = self.of(*release.noise) & ~SECRET | self.of(*release.public)
        mask |= SECRET if tensor.number in release.secret_outputs else 0
      self._known[tensor] = mask
    return self._known[tensor]


class ProcessFlow:
  """A process as expressions.

  Attributes:
    start, next, weights: `initialize`, `next` and `get_model_weights`; None without a model.
    num_state: number of tensors of the state; they come first in argument and result of `next`.
    paths: of the tensors of the state, and of the other tensors of the result of `next`.
    at_clients: whether each tensor of the argument of `next` is the clients'.
  """

  def __init__(self, process: Any):
    for name in ('initialize', 'next'):
      if not isinstance(getattr(process, name, None), tff.framework.ConcreteComputation):
        raise ValueError(
          f'process must be one of TFF, whose {name} is a computation, got {type(process).__name__}'
        )
    kind, result = process.initialize.type_signature.result, process.next.type_signature.result
    is_state_alone = kind.is_assignable_from(result)
    first = result[0] if isinstance(result, tff.StructType) and len(result) else None
    if not is_state_alone and (first is None or not kind.is_assignable_from(first)):
      raise ValueError('process must return its state, or its state first, from next')
    self.start, self.next = map(expressions.Expression, (process.initialize, process.next))
    weights = getattr(process, 'get_model_weights', None)
    has_weights = isinstance(weights, tff.framework.ConcreteComputation)
    self.weights = expressions.Expression(weights) if has_weights else None
    state = [('state', *path) for path in self.start.paths]
    self.num_state, self.paths = len(state), state + self.next.paths[len(state) :]
    parameter_paths = expressions.paths(process.next.type_signature.parameter)
    self.at_clients = [at_clients for _, at_clients in parameter_paths]

  def arguments(self) -> list[expressions.Tensor]:
    """Returns the tensors of the argument of `next`."""
    return [expressions.Tensor(self.next.parameter, i) for i in range(len(self.at_clients))]

  def refused(
    self, masks: Masks, releases: Collection[expressions.Node] = ()
  ) -> Iterator[tuple[str, str]]:
    """Yields operations that may keep or tell what they get, each with its place."""
    named = dict(next=self.next, initialize=self.start, get_model_weights=self.weights)
    for name, expression in named.items():
      seen: set[Any] = set()
      for node in [] if expression is None else expression.nodes:
        refusals: list[tuple[str, str]] = []
        if node.kind == expressions.FOREIGN:
          refusals.append((str(node.key), 'not TensorFlow'))
        elif node.graph is not None and node.graph not in seen:
          seen.add(node.graph)
          refusals += operations.refused(node.graph.definition, with_data=bool(node.inputs))
          if expression is self.next and node not in releases and masks.of(*node.inputs):
            refusals += operations.quotes(node.graph.definition)
        where = f'at {"clients" if node.at_clients else "the server"} in {name}'
        yield from ((operation, f'{operation} {where} ({place})') for operation, place in refusals)

  def masks(
    self, releases: Mapping[expressions.Node, Release] | None = None, secrets: Iterable[int] = ()
  ) -> Masks:
    """Returns what the tensors of `next` follow from, in any round."""
    arguments = self.arguments()
    bits = {tensor: OWN for tensor, at_clients in zip(arguments, self.at_clients) if at_clients}
    bits |= {arguments[i]: SECRET for i in secrets}
    previous_bits = None
    while bits != previous_bits:
      previous_bits, masks = dict(bits), Masks(bits, releases)
      bits |= {
        one: masks.of(one, after)
        for one, after in zip(arguments[: self.num_state], self.next.result)
      }
    return masks
