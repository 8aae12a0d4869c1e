"""TFF computations as calls that take and give tensors, and what each tensor follows from.

A computation is evaluated with names of tensors in place of tensors: each call of a graph, each sum
over clients and each broadcast becomes a node. An output of a graph follows from the inputs that it
is computed from, or from all of them where a stateful operation is among what it is computed from.
That covers every dependence, since a stateless operation is a function of its inputs, and since no
allowed operation (`operations`) takes anything into a call, or out of it, but the call's tensors.
So nothing has to be known of the ways through variables, tables, data sets and random numbers.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.tff.aggregators import by_engine, operations
from tff_inprocess import graphs

Path: TypeAlias = tuple[str, ...]

PARAMETER, GRAPH, FOREIGN = 'parameter', 'graph', 'foreign'
SUM, SENT, OTHER = 'sum', 'sent', 'other'
_SENT = ('federated_broadcast', 'federated_value_at_clients')
_COPIES = ('federated_value_at_server', 'federated_zip_at_clients', 'federated_zip_at_server')
_MAPS = ('federated_map', 'federated_map_all_equal', 'federated_apply')
_EVALS = ('federated_eval_at_clients', 'federated_eval_at_server')
_SUMS = ('federated_sum', 'federated_mean', 'federated_min', 'federated_max')
# Sums of the first part of the argument, which follow from the other parts, too.
_SUMS_OF_FIRST = ('federated_weighted_mean', 'federated_secure_sum')
_SUMS_OF_FIRST += ('federated_secure_sum_bitwidth', 'federated_secure_modular_sum')
# An attribute that TensorFlow numbers anew in each graph.
_NUMBERED = '_gradient_op_type'


class Tensor(NamedTuple):
  """An output of a node."""

  node: 'Node'
  number: int


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
  """A call, or the parameter of a computation.

  Attributes:
    kind: PARAMETER, GRAPH (of TensorFlow), FOREIGN (code of another kind), SUM (over clients), SENT
      (to clients) or OTHER.
    key: tells calls of different operations apart.
    inputs: the tensors that it takes.
    at_clients: whether each client makes the call.
    graph: of a GRAPH.
  """

  kind: str
  key: Hashable
  inputs: tuple[Tensor, ...] = ()
  at_clients: bool = False
  graph: 'Graph | None' = None

  @property
  def operation(self) -> Hashable:
    """The kind of call and its place, the same for calls that do the same."""
    return self.kind, self.key, self.at_clients, self.graph and self.graph.identity

  def sources(self, output: int) -> Sequence[Tensor]:
    """Returns the inputs that an output may follow from."""
    if self.graph is None:
      return self.inputs
    return [self.inputs[i] for i in self.graph.sources(output)]


class Graph:
  """A TensorFlow graph of a computation."""

  def __init__(self, block: tff.framework.CompiledComputation):
    program = block.proto.tensorflow
    self.type = block.type_signature
    self.definition = tf.compat.v1.GraphDef()
    program.graph_def.Unpack(self.definition)
    has_inputs = program.HasField('parameter')
    self.inputs = list(graphs.tensor_names(program.parameter)) if has_inputs else []
    self._results = list(graphs.tensor_names(program.result))
    self._start = [program.initialize_op] if program.initialize_op else []
    self._nodes = {node.name: node for node in self.definition.node}
    self._functions = {f.signature.name: f for f in self.definition.library.function}
    self.sources = functools.cache(self._sources)
    self._function_digest = functools.cache(self._digest_of_function)
    inside = [node.op for function in self._functions.values() for node in function.node_def]
    self._has_pure_functions = all(op in self._functions or operations.is_pure(op) for op in inside)

  def _sources(self, output: int) -> Sequence[int]:
    """Returns the numbers of the inputs that an output may follow from."""
    placeholders = {
      n for n in map(graphs.node_of, self.inputs) if self._nodes[n].op == 'Placeholder'
    }
    seen, pending = set(), [graphs.node_of(self._results[output])]
    while pending:
      name = pending.pop()
      if name not in seen:
        seen.add(name)
        if name not in placeholders:
          if not self._is_pure(self._nodes[name]):
            return range(len(self.inputs))
          pending.extend(map(graphs.node_of, self._nodes[name].input))
    return [i for i, name in enumerate(self.inputs) if graphs.node_of(name) in seen]

  def _is_pure(self, node: Any) -> bool:
    """Returns whether a node's outputs are a function only of its inputs."""
    is_call = node.op in self._functions
    calls = is_call or bool(graphs.function_names(node))
    return (is_call or operations.is_pure(node.op)) and (self._has_pure_functions or not calls)

  @functools.cached_property
  def identity(self) -> bytes:
    """Digest of what the graph computes, whatever its nodes and functions are called."""
    return self._digest(self.definition.node, self.inputs, [*self._results, *self._start])

  def _digest_of_function(self, name: str) -> bytes:
    function = self._functions[name]
    argument_names = [argument.name for argument in function.signature.input_arg]
    results = [function.ret[result.name] for result in function.signature.output_arg]
    ends = [f'^{function.control_ret[name]}' for name in function.signature.control_output]
    return self._digest(function.node_def, argument_names, results + ends)

  def _digest(
    self, nodes: Iterable[Any], argument_names: Sequence[str], ends: Sequence[str]
  ) -> bytes:
    """Returns a digest of all that some tensors are computed from, in the order of a search."""
    by_name = {node.name: node for node in nodes}
    numbers = {graphs.node_of(name): number for number, name in enumerate(argument_names)}
    order, pending = [], [graphs.node_of(name) for name in reversed(ends)]
    while pending:
      name = pending.pop()
      if name not in numbers:
        numbers[name] = len(numbers)
        order.append(by_name[name])
        pending.extend(map(graphs.node_of, reversed(by_name[name].input)))

    def place(tensor: str) -> tuple[bool, int, str]:
      output = tensor.partition(':')[2] or '0'
      return tensor.startswith('^'), numbers[graphs.node_of(tensor)], output

    rows = [(self._computed(node), *map(place, node.input)) for node in order]
    return hashlib.sha256(repr((len(argument_names), rows, *map(place, ends))).encode()).digest()

  def _computed(self, node: Any) -> Any:
    """Returns what a node computes from its inputs, the same for the same operation."""
    own = by_engine.identity(node)
    if own is not None:
      return own
    attributes = []
    for name, value in sorted(node.attr.items()):
      called = [function.name for function in (value.list.func or [value.func]) if function.name]
      plain = b'' if called else value.SerializeToString(deterministic=True)
      if name != _NUMBERED:
        attributes.append((name, plain, *map(self._function_digest, called)))
    return self._function_digest(node.op) if node.op in self._functions else node.op, attributes


def match(pattern: Tensor, tensor: Tensor, same: dict[Any, Any]) -> bool:
  """Returns whether a tensor is computed as a pattern's, for some argument of the pattern.

  Args:
    pattern: tensor of another expression.
    tensor: what is compared with it.
    same: nodes, and tensors of the argument, that stand for those of the pattern; it is added to.
  """
  node, other = pattern.node, tensor.node
  if node.kind == PARAMETER:
    return same.setdefault(pattern, tensor) == tensor
  if pattern.number != tensor.number or node in same:
    return pattern.number == tensor.number and same[node] is other
  same[node] = other
  pairs = zip(node.inputs, other.inputs)
  alike = node.operation == other.operation and len(node.inputs) == len(other.inputs)
  return alike and all(match(*pair, same) for pair in pairs)


class _Function(NamedTuple):
  """A function of an expression: a lambda with the names that it knows, a graph or an intrinsic."""

  block: Any
  known: dict[str, Any]


class Expression:
  """A computation as nodes.

  Attributes:
    parameter: node of the argument.
    nodes: all other nodes.
    result, paths: tensors of the result, and their paths.
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    self._graphs: dict[int, Graph] = {}  # By their blocks, which live as long as this call.
    self.nodes: list[Node] = []
    self.parameter = Node(PARAMETER, None)
    kind, block = computation.type_signature, computation.to_building_block()
    parameter_outputs = None if kind.parameter is None else _outputs(kind.parameter, self.parameter)
    self.result = list(_flat(self._apply(self._value(block, {}, False), parameter_outputs, False)))
    self.paths = [path for path, _ in paths(kind.result)]

  def _add(self, *args: Any) -> Node:
    self.nodes.append(Node(*args))
    return self.nodes[-1]

  def _value(self, block: Any, local_values: dict[str, Any], at_clients: bool) -> Any:
    """Returns the value of an expression: tensors and functions in nested tuples."""
    if isinstance(block, tff.framework.Reference):
      return local_values[block.name]
    if isinstance(block, tff.framework.Selection):
      return self._value(block.source, local_values, at_clients)[block.as_index()]
    if isinstance(block, tff.framework.Struct):
      return tuple(self._value(block[i], local_values, at_clients) for i in range(len(block)))
    if isinstance(block, tff.framework.Block):
      for name, local in block.locals:
        local_values = {**local_values, name: self._value(local, local_values, at_clients)}
      return self._value(block.result, local_values, at_clients)
    if isinstance(block, tff.framework.Call):
      function = self._value(block.function, local_values, at_clients)
      given = (
        None if block.argument is None else self._value(block.argument, local_values, at_clients)
      )
      return self._apply(function, given, at_clients)
    if isinstance(block.type_signature, tff.FunctionType):
      return _Function(block, local_values if isinstance(block, tff.framework.Lambda) else {})
    if isinstance(block, tff.framework.Literal):
      return Tensor(self._add(OTHER, repr(block.value)), 0)
    raise ValueError(f'process must have no {type(block).__name__}, which brings data from outside')

  def _apply(self, function: _Function, argument: Any, at_clients: bool) -> Any:
    """Returns what a function gives for an argument, which is None if it takes none."""
    block = function.block
    if isinstance(block, tff.framework.Lambda):
      return self._value(
        block.result, {**function.known, block.parameter_name: argument}, at_clients
      )
    if not isinstance(block, tff.framework.CompiledComputation):
      return self._call(block.uri, block.type_signature, argument, at_clients)
    kind, inputs = block.proto.WhichOneof('computation'), tuple(_flat(argument))
    if kind != 'tensorflow':
      return _outputs(block.type_signature.result, self._add(FOREIGN, kind, inputs, at_clients))
    graph = self._graphs.get(id(block)) or Graph(block)
    self._graphs[id(block)] = graph
    return _outputs(graph.type.result, self._add(GRAPH, None, inputs, at_clients, graph))

  def _call(self, uri: str, kind: tff.FunctionType, given: Any, at_clients: bool) -> Any:
    """Returns what an intrinsic gives."""
    if uri in _COPIES:
      return given
    if uri in _SENT:
      return self._each(SENT, uri, given)
    if uri in _SUMS:
      return self._each(SUM, uri, given)
    if uri in _SUMS_OF_FIRST:
      return self._each(SUM, uri, given[0], *_flat(given[1:]))
    at_clients = at_clients or _is_at(kind.result, tff.CLIENTS)
    if uri in _MAPS:
      return self._apply(given[0], given[1], at_clients)
    if uri in _EVALS:
      return self._apply(given, None, at_clients)
    # Others may call their functions with what these gave before: all follows from all.
    kinds, parts = [kind.parameter], [given]
    if isinstance(kind.parameter, tff.StructType):
      kinds, parts = [part for _, part in tff.structure.to_elements(kind.parameter)], given
    if at_clients:  # As federated_select, which sends clients parts of the server's value.
      pairs = zip(kinds, parts)
      parts = [self._each(SENT, uri, p) if _is_at(k, tff.SERVER) else p for k, p in pairs]
    from_clients = not at_clients and any(_is_at(part, tff.CLIENTS) for part in kinds)
    whole = (SUM if from_clients else OTHER), uri
    argument = self._add(*whole, tuple(_flat(parts)), at_clients)
    for part_kind, part in zip(kinds, parts):
      if isinstance(part, _Function):
        taken = None if part_kind.parameter is None else _outputs(part_kind.parameter, argument)
        parts = [*parts, self._apply(part, taken, at_clients)]
    return _outputs(kind.result, self._add(*whole, tuple(_flat(parts)), at_clients))

  def _each(self, node_kind: str, uri: str, value: Any, *others: Tensor) -> Any:
    """Returns a value of the same structure, each tensor of which is made from one."""
    if isinstance(value, Tensor):
      return Tensor(self._add(node_kind, uri, (value, *others)), 0)
    return tuple(self._each(node_kind, uri, part, *others) for part in value)


def paths(kind: tff.Type, path: Path = (), at_clients: bool = False) -> Iterator[tuple[Path, bool]]:
  """Yields the path of each tensor or data set of a type, and whether it is at clients."""
  if isinstance(kind, tff.FederatedType):
    yield from paths(kind.member, path, kind.placement is tff.CLIENTS)
  elif isinstance(kind, tff.StructType):
    for i, (name, part) in enumerate(tff.structure.to_elements(kind)):
      yield from paths(part, (*path, name or str(i)), at_clients)
  else:
    yield path, at_clients


def _is_at(kind: tff.Type, placement: Any) -> bool:
  """Returns whether a type, or a part of it, is at a placement."""
  is_placed = lambda part: isinstance(part, tff.FederatedType) and part.placement is placement
  return tff.types.contains(kind, is_placed)


def _outputs(kind: tff.Type, node: Node) -> Any:
  """Returns a value of a type, whose tensors are the outputs of a node."""
  index = itertools.count()

  def made(part: tff.Type) -> Any:
    if isinstance(part, tff.FederatedType):
      return made(part.member)
    if isinstance(part, tff.StructType):
      return tuple(made(element) for _, element in tff.structure.to_elements(part))
    return Tensor(node, next(index))

  return made(kind)


def _flat(value: Any) -> Iterator[Tensor]:
  """Yields the tensors of a value, in order; functions are left out."""
  if isinstance(value, Tensor):
    yield value
  elif isinstance(value, (tuple, list)) and not isinstance(value, _Function):
    for part in value:
      yield from _flat(part)
