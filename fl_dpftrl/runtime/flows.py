"""Dependence of a TFF computation's result on its argument, tensor by tensor.

The expression of the computation is evaluated with sets in place of tensors: each tensor of the
argument is a bit, and each tensor of the result gets the bits that it may depend on. What a
release with correlated noise gives is a bit of its own, so that whoever asks decides whether the
noise hides the sum in it.
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import tensorflow_federated as tff

from fl_dpftrl.runtime import graph_flows
from tff_inprocess import analysis

Block: TypeAlias = tff.framework.ComputationBuildingBlock
_TO_CLIENTS = frozenset(['federated_broadcast', 'federated_value_at_clients'])
_SUMS = frozenset(['federated_sum', 'federated_mean', 'federated_min', 'federated_max'])
# As a sum of the first part of the argument, and all of it depends on the other parts.
_SUMS_OF_FIRST = frozenset(
  ['federated_weighted_mean']
  + [f'federated_secure_{kind}' for kind in ('sum', 'sum_bitwidth', 'modular_sum')]
)


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A tensor or a data set.

  Attributes:
    mask: the bits that it may depend on.
    origin: what it is an unchanged copy of, where that is known.
  """

  mask: int
  origin: tuple[Any, ...] | None = None


class Start(NamedTuple):
  """A tensor of a noise state, as it goes into a release.

  Attributes:
    origin, mask: as of a `Leaf`.
    is_secret: whether it tells noise.
  """

  origin: tuple[Any, ...] | None
  mask: int
  is_secret: bool


@dataclasses.dataclass(frozen=True)
class Release:
  """A sum with noise.

  Attributes:
    number: number of the call that releases it.
    bit: the bit of what is released.
    identity: identity of the aggregator.
    total, noise: the bits that the sum and its noise depend on.
    noise_of_each: the bits that the noise of every tensor of the sum depends on.
    times: number of times that the noise enters a sum.
    starts: the tensors of the noise state, by their numbers in it.
  """

  number: int
  bit: int
  identity: str
  total: int
  noise: int
  noise_of_each: int
  times: int
  starts: dict[str, Start]

  @property
  def secret(self) -> int:
    """The bits of the noise state that tell noise."""
    masks = (start.mask for start in self.starts.values() if start.is_secret)
    return functools.reduce(operator.or_, masks, 0)


@dataclasses.dataclass(frozen=True)
class Flow:
  """Dependence of the result of a computation.

  Attributes:
    parameters: paths of the tensors of the argument, such as ('0', 'weights'); tensor i has bit
      1 << (i + 1).
    at_clients: whether each of these tensors is the clients'.
    results: paths of the tensors of the result.
    leaves: what is known of each of these tensors.
    outside: the bits that the world outside of all graphs learns of; it is bit 0 itself.
    releases: sums with noise.
    sent: bits of the tensors that the server sends to clients, with the bits that each may depend
      on. What a client makes of such a tensor has its bit, too.
  """

  parameters: tuple[tuple[str, ...], ...]
  at_clients: tuple[bool, ...]
  results: tuple[tuple[str, ...], ...]
  leaves: tuple[Leaf, ...]
  outside: int
  releases: tuple[Release, ...]
  sent: tuple[tuple[int, int], ...]

  def bit(self, parameter: int) -> int:
    """Returns the bit of a tensor of the argument."""
    return 2 << parameter


def of(computation: Any) -> Flow:
  """Returns the flow through a TFF computation.

  Raises:
    ValueError: for anything but a computation that TFF can show as an expression.
  """
  if not isinstance(computation, tff.framework.ConcreteComputation):
    raise ValueError(f'computation must be one of TFF, got {type(computation).__name__}')
  kind = computation.type_signature
  parameters = [] if kind.parameter is None else list(paths(kind.parameter))
  evaluation = _Evaluation(len(parameters))
  index = itertools.count()
  argument = None
  if kind.parameter is not None:
    argument = _structure(kind.parameter, lambda: _parameter(next(index)))
  block = computation.to_building_block()
  function = evaluation.value(block, {})
  result = evaluation.apply(function, argument)
  return Flow(
    parameters=tuple(path for path, _ in parameters),
    at_clients=tuple(at_clients for _, at_clients in parameters),
    results=tuple(path for path, _ in paths(kind.result)),
    leaves=tuple(_leaves(result)),
    outside=evaluation.outside,
    releases=tuple(evaluation.releases),
    sent=tuple(evaluation.sent),
  )


def paths(
  kind: tff.Type, path: tuple[str, ...] = (), at_clients: bool = False
) -> Iterator[tuple[tuple[str, ...], bool]]:
  """Yields the path of each tensor of a type, and whether it is placed at clients."""
  if isinstance(kind, tff.FederatedType):
    yield from paths(kind.member, path, kind.placement is tff.CLIENTS)
  elif isinstance(kind, tff.StructType):
    for i, (name, part) in enumerate(tff.structure.to_elements(kind)):
      yield from paths(part, (*path, name or str(i)), at_clients)
  else:
    yield path, at_clients


def _parameter(index: int) -> Leaf:
  return Leaf(2 << index, ('parameter', index))


def _structure(kind: tff.Type, fresh: Callable[[], Leaf]) -> Any:
  """Returns a value of a type, whose tensors are fresh."""
  if isinstance(kind, tff.FederatedType):
    return _structure(kind.member, fresh)
  if isinstance(kind, tff.StructType):
    return tuple(_structure(part, fresh) for _, part in tff.structure.to_elements(kind))
  return fresh()


def _leaves(value: Any) -> Iterator[Leaf]:
  """Yields the tensors of a value; for a function, all that it may bring along."""
  if isinstance(value, tuple):
    for part in value:
      yield from _leaves(part)
  elif isinstance(value, Leaf):
    yield value
  elif isinstance(value, _Function):
    yield Leaf(_joined(tuple(value.known.values())))


def _joined(value: Any) -> int:
  return functools.reduce(operator.or_, (leaf.mask for leaf in _leaves(value)), 0)


def _with(value: Any, mask: int) -> Any:
  """Returns a value, all tensors of which depend on more, and are copies of nothing."""
  if isinstance(value, tuple):
    return tuple(_with(part, mask) for part in value)
  return Leaf(value.mask | mask)


def _either(one: Any, other: Any) -> Any:
  """Returns a value that depends on what either of two depends on."""
  if isinstance(one, tuple):
    return tuple(map(_either, one, other))
  return Leaf(one.mask | other.mask)


@dataclasses.dataclass(frozen=True)
class _Function:
  """A function of an expression.

  Attributes:
    block: a lambda, a compiled computation or an intrinsic.
    known: values of the names that it may use.
  """

  block: Any
  known: dict[str, Any]


class _Evaluation:
  """Evaluation of an expression with sets in place of tensors.

  Args:
    num_parameters: number of tensors in the argument of the computation.
  """

  def __init__(self, num_parameters: int):
    self._bits = (2 << number for number in itertools.count(num_parameters))
    self._calls = itertools.count()
    self._graphs: dict[int, graph_flows.GraphFlow] = {}
    self._is_repeated = False
    self.outside = 0
    self.releases: list[Release] = []
    self.sent: list[tuple[int, int]] = []

  def value(self, block: Block, known: dict[str, Any]) -> Any:
    """Returns the value of an expression, where names have known values."""
    if isinstance(block, tff.framework.Reference):
      return known[block.name]
    if isinstance(block, tff.framework.Selection):
      return self.value(block.source, known)[block.as_index()]
    if isinstance(block, tff.framework.Struct):
      return tuple(self.value(block[i], known) for i in range(len(block)))
    if isinstance(block, tff.framework.Block):
      known = dict(known)
      for name, local in block.locals:
        known[name] = self.value(local, known)
      return self.value(block.result, known)
    if isinstance(block, tff.framework.Call):
      argument = None if block.argument is None else self.value(block.argument, known)
      return self.apply(self.value(block.function, known), argument)
    if isinstance(block.type_signature, tff.FunctionType):
      return _Function(block, known if isinstance(block, tff.framework.Lambda) else {})
    return _structure(block.type_signature, lambda: Leaf(0))  # Constants.

  def apply(self, function: _Function, argument: Any) -> Any:
    """Returns what a function gives for an argument, which is None if it takes none."""
    block = function.block
    if isinstance(block, tff.framework.Lambda):
      name = block.parameter_name
      return self.value(block.result, {**function.known, **({name: argument} if name else {})})
    if isinstance(block, tff.framework.CompiledComputation):
      return self._run(block, argument)
    return self._call_intrinsic(block, argument)

  def _call_intrinsic(self, block: Any, argument: Any) -> Any:
    uri = block.uri
    if uri in _TO_CLIENTS:
      return self._to_clients(argument)
    if uri in analysis.COPIES:  # Each part depends on the same part of the argument.
      return argument
    if uri in _SUMS:
      return _with(argument, 0)
    if uri in _SUMS_OF_FIRST:
      return _with(argument[0], _joined(argument[1:]))
    if uri == 'federated_apply':
      return self.apply(argument[0], argument[1])
    if uri in analysis.EVALS:
      return self.apply(argument, None)
    # In all others, what is called is called for each client, or for each element.
    before, self._is_repeated = self._is_repeated, True
    try:
      if uri in analysis.MAPS:
        return self.apply(argument[0], argument[1])
      if uri == 'federated_aggregate':
        return self._aggregate(*argument)
      return self._unknown(argument, block.type_signature)
    finally:
      self._is_repeated = before

  def _to_clients(self, value: Any) -> Any:
    """Returns a value as clients get it, each of its tensors with a bit of its own."""
    if isinstance(value, tuple):
      return tuple(map(self._to_clients, value))
    if not isinstance(value, Leaf) or not value.mask:
      return value
    bit = next(self._bits)
    self.sent.append((bit, value.mask))
    return Leaf(value.mask | bit, value.origin)

  def _aggregate(self, value: Any, zero: Any, accumulate: Any, merge: Any, report: Any) -> Any:
    total, before = _with(zero, 0), None
    while total != before:
      before = total
      total = _either(total, self.apply(accumulate, (total, value)))
      total = _either(total, self.apply(merge, (total, total)))
    return self.apply(report, total)

  def _unknown(self, argument: Any, kind: tff.FunctionType) -> Any:
    """Returns the result of an intrinsic, each tensor of which depends on all of its argument."""
    if isinstance(argument, tuple):  # As of federated_select: parts may come from the server.
      kinds = [of_part for _, of_part in tff.structure.to_elements(kind.parameter)]
      at_server = [isinstance(k, tff.FederatedType) and k.placement is tff.SERVER for k in kinds]
      argument = tuple(self._to_clients(a) if b else a for a, b in zip(argument, at_server))
    mask, before = _joined(argument), None
    functions = [part for part in _flat(argument) if isinstance(part, _Function)]
    while mask != before:
      before, fresh = mask, functools.partial(Leaf, mask)
      for function in functions:
        parameter = function.block.type_signature.parameter
        given = None if parameter is None else _structure(parameter, fresh)
        mask |= _joined(self.apply(function, given))
    return _structure(kind.result, lambda: Leaf(mask))

  def _run(self, block: Any, argument: Any) -> Any:
    """Returns the result of a compiled computation."""
    kind, leaves = block.type_signature.result, list(_leaves(argument))
    everything = functools.reduce(operator.or_, (leaf.mask for leaf in leaves), 0)
    if block.proto.WhichOneof('computation') != 'tensorflow':
      self.outside |= everything
      return _structure(kind, lambda: Leaf(everything | graph_flows.WORLD))
    flow = self._graph(block)
    if flow.num_inputs != len(leaves):
      raise ValueError(f'the graph of {block.type_signature} has {flow.num_inputs} inputs')
    meaning = [graph_flows.WORLD, *(leaf.mask for leaf in leaves)]
    number = next(self._calls)
    for release in flow.releases:
      meaning.append(self._release(release, number, flow, leaves, meaning))
    self.outside |= _translated(flow.outside, meaning)
    outputs = iter(zip(flow.outputs, flow.same, flow.ends, strict=True))

    def fresh() -> Leaf:
      mask, same, end = next(outputs)
      if same is not None:
        origin = leaves[same].origin
      else:
        origin = None if end is None else ('noise', number, *end)
      return Leaf(_translated(mask, meaning), origin)

    return _structure(kind, fresh)

  def _release(
    self,
    release: graph_flows.Release,
    number: int,
    flow: graph_flows.GraphFlow,
    leaves: list[Leaf],
    meaning: list[int],
  ) -> int:
    """Returns the bits that stand for a sum with noise; records it if it is made once a round."""
    known = meaning[: flow.num_inputs + 1]
    total, noise = _translated(release.total, known), _translated(release.noise, known)
    if self._is_repeated or (release.total | release.noise) >> len(known):
      return total | noise
    starts = {
      part: Start(leaves[index].origin, leaves[index].mask, secret)
      for (identity, part), (index, secret) in flow.starts.items()
      if identity == release.identity
    }
    self.releases.append(
      Release(
        number=number,
        bit=next(self._bits),
        identity=release.identity,
        total=total,
        noise=noise,
        noise_of_each=_translated(release.noise_of_each, known),
        times=release.times,
        starts=starts,
      )
    )
    return self.releases[-1].bit

  def _graph(self, block: Any) -> graph_flows.GraphFlow:
    # By identity: graphs may hold gigabytes of constants. The expression keeps its blocks alive.
    if id(block) not in self._graphs:
      self._graphs[id(block)] = graph_flows.of(block.proto.tensorflow)
    return self._graphs[id(block)]


def _flat(value: Any) -> Iterator[Any]:
  if isinstance(value, tuple):
    for part in value:
      yield from _flat(part)
  else:
    yield value


def _translated(mask: int, meaning: list[int]) -> int:
  """Returns the union of the meanings of a graph's bits."""
  result = 0
  while mask:
    low = mask & -mask
    result |= meaning[low.bit_length() - 1]
    mask ^= low
  return result
