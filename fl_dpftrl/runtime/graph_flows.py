"""Dependence of the outputs of a TensorFlow graph on its inputs.

Sets are bits of a Python integer. The answer covers every dependence: an operation that data or
order connects to an input depends on it, and what is written into a resource reaches all that
use the resource. A function depends on all of its inputs in each of its outputs.
"""

import dataclasses
import functools
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from fl_dpftrl.runtime import marks
from tff_inprocess import graphs

# The outside of all graphs, such as Python's memory and files: bit 0 of every set.
WORLD = 1
_FIRST = 1
# Stateful operations by which nothing leaves a graph and nothing enters it but random numbers.
_CLOSED = re.compile(
  r'(Stateful|Parameterized)?(Random|Truncated|Multinomial|StandardNormal|UniformInt|Gamma|Poisson)'
  r'|Assert$|Placeholder|Print|TensorSlice|Range|Shuffle|RepeatDataset|.*SeedGenerator|Anonymous'
  r'|.*(BatchDataset|MapDataset|MapAndBatchDataset|FlatMapDataset)'
)
# Operations that reach the outside, whether TensorFlow calls them stateful or not; and those of
# them that only read.
_OPEN = re.compile(r'.*PyFunc|.*File|.*Record|TextLine|Save|Restore|.*Snapshot|LoadDataset|Sql')
_READS = re.compile(r'ReadFile|MatchingFiles|.*FromTextFile|.*Record|TextLine|Restore|LoadDataset')
_REFERENCES = frozenset([tf.resource.as_datatype_enum])


@dataclasses.dataclass(frozen=True)
class Release:
  """A sum with noise in a graph; sets are of the graph's bits.

  Attributes:
    identity: identity of the aggregator.
    total: inputs that the sum depends on.
    noise: inputs that the noise depends on.
    noise_of_each: inputs that the noise of every tensor of the sum depends on.
    times: number of times that the noise enters a sum.
  """

  identity: str
  total: int
  noise: int
  noise_of_each: int
  times: int


@dataclasses.dataclass(frozen=True)
class GraphFlow:
  """Dependence of the outputs of a graph.

  Bit 0 is the outside, bits 1 to num_inputs are inputs, and the bits behind them are releases.

  Attributes:
    num_inputs: number of tensors in the parameter.
    outputs: the inputs and releases that each tensor of the result depends on.
    same: input whose value a tensor of the result is, or None.
    outside: inputs that the outside learns of.
    releases: the sums with noise.
    starts: (identity, part) of a noise state → (input that holds it, whether it is secret).
    ends: (identity, part) of the noise state that a tensor of the result holds, or None.
  """

  num_inputs: int
  outputs: tuple[int, ...]
  same: tuple[int | None, ...]
  outside: int
  releases: tuple[Release, ...]
  starts: dict[tuple[str, str], tuple[int, bool]]
  ends: tuple[tuple[str, str] | None, ...]


def of(program: Any) -> GraphFlow:
  """Returns the flow through a graph.

  Args:
    program: proto of a TFF computation that is made of TensorFlow.
  """
  graph = tf.compat.v1.GraphDef()
  program.graph_def.Unpack(graph)
  inputs = list(tensor_names(program.parameter)) if program.HasField('parameter') else []
  return _Graph(graph, inputs).flow(list(tensor_names(program.result)))


def tensor_names(binding: Any) -> Iterator[str]:
  """Yields the names of the tensors and data sets of a binding, in the order of their type."""
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for part in binding.struct.element:
      yield from tensor_names(part)
  elif kind == 'tensor':
    yield binding.tensor.tensor_name
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name


class _Graph:
  """A graph with the set of each operation, computed to a fixed point.

  Args:
    graph: the graph.
    inputs: names of the tensors of the parameter.
  """

  def __init__(self, graph: Any, inputs: list[str]):
    self._inputs = inputs
    self._nodes = {node.name: node for node in graph.node}
    self._functions = {f.signature.name: f for f in graph.library.function}
    self._bodies: dict[str, tuple[bool, frozenset[str]]] = {}
    self._given: dict[str, int] = defaultdict(int)
    for i, name in enumerate(inputs):
      self._given[graphs.node_of(name)] |= 1 << (_FIRST + i)
    self._starts = {}
    self._secret = 0
    for node in self._marked(marks.NOISE_IN):
      identity, part, hidden = _words(node, marks.NOISE_IN)
      source = self._same_input(node.name)
      if source is not None:
        self._starts[identity, part] = source, hidden == '1'
        self._secret |= (1 << (_FIRST + source)) if hidden == '1' else 0
    self._releases = self._group_releases()
    self._masks = self._propagate()

  def flow(self, results: list[str]) -> GraphFlow:
    """Returns the flow into tensors of the graph."""
    return GraphFlow(
      num_inputs=len(self._inputs),
      outputs=tuple(self._mask(name) for name in results),
      same=tuple(self._same_input(name) for name in results),
      outside=self._join(
        name
        for name, node in self._nodes.items()
        if self._is_open(node) and not _READS.match(node.op)
      ),
      releases=tuple(
        Release(
          identity,
          total=self._join_tensors(node.input[0] for parts in of.values() for node in parts)
          | self._join_tensors(name for ps in of.values() for n in ps for name in n.input[2:]),
          noise=self._join_tensors(node.input[1] for parts in of.values() for node in parts),
          noise_of_each=functools.reduce(
            operator.and_,
            (self._masks[graphs.node_of(node.input[1])] for parts in of.values() for node in parts),
          ),
          times=max(map(len, of.values())),
        )
        for identity, of in self._releases.items()
      ),
      starts=self._starts,
      ends=tuple(map(self._end, results)),
    )

  def _marked(self, name: str) -> list[Any]:
    return [node for node in self._nodes.values() if name in node.attr]

  def _group_releases(self) -> dict[str, dict[str, list[Any]]]:
    """Returns the marked additions by identity and part."""
    grouped: dict[str, dict[str, list[Any]]] = {}
    for node in self._marked(marks.RELEASE):
      if node.op == marks.ADD:
        identity, part = _words(node, marks.RELEASE)
        grouped.setdefault(identity, {}).setdefault(part, []).append(node)
    return grouped

  def _propagate(self) -> dict[str, int]:
    """Returns the set of each operation, the least that all rules hold for."""
    release_bits = {
      node.name: 1 << (_FIRST + len(self._inputs) + i)
      for i, parts in enumerate(self._releases.values())
      for nodes in parts.values()
      for node in nodes
    }
    after: dict[str, set[str]] = defaultdict(set)
    for node in self._nodes.values():
      for name in node.input:
        after[graphs.node_of(name)].add(node.name)
    for group in self._shared_resources():
      for name in group:
        after[name] |= group
    masks = dict.fromkeys(self._nodes, 0)
    for name, node in self._nodes.items():
      masks[name] = self._given.get(name, 0) | (WORLD if self._is_open(node) else 0)
    left = [name for name, mask in masks.items() if mask or name in release_bits]
    masks |= release_bits
    while left:
      name = left.pop()
      sent = masks[name]
      for other in after[name]:
        if other in release_bits:
          continue  # What reaches it is in the release.
        kept = sent & ~self._secret if marks.PUBLIC in self._nodes[other].attr else sent
        if kept & ~masks[other]:
          masks[other] |= kept
          left.append(other)
    return masks

  def _shared_resources(self) -> list[set[str]]:
    """Returns groups of operations that may write into, or read from, the same resource."""
    users: dict[str, set[str]] = defaultdict(set)
    for node in self._nodes.values():
      for name in node.input:
        producer = self._nodes.get(graphs.node_of(name))
        if producer is not None and not name.startswith('^') and self._gives_handle(producer):
          users[producer.name] |= {producer.name, node.name}
      for key in self._resource_names(node):
        users[f'shared {key}'].add(node.name)
    return [group for group in users.values() if len(group) > 1]

  def _gives_handle(self, node: Any) -> bool:
    function = self._functions.get(node.op)
    definition = function.signature if function is not None else op_def_registry.get(node.op)
    if definition is None:
      return True
    for output in definition.output_arg:
      types = {output.type}
      if output.type_attr:
        types = {node.attr[output.type_attr].type}
      elif output.type_list_attr:
        types = set(node.attr[output.type_list_attr].list.type)
      if output.is_ref or types & _REFERENCES:
        return True
    return False

  def _resource_names(self, node: Any) -> Iterable[str]:
    """Yields names under which an operation, or its functions, know resources."""
    if 'shared_name' in node.attr:
      yield node.attr['shared_name'].s.decode('latin-1') or node.name
    for function in self._functions_of(node):
      yield from self._body(function)[1]

  def _functions_of(self, node: Any) -> Iterator[str]:
    if node.op in self._functions:
      yield node.op
    yield from graphs.function_names(node)

  def _body(self, name: str) -> tuple[bool, frozenset[str]]:
    """Returns True if a function reaches the outside, and the names of resources that it knows."""
    if name not in self._bodies:
      self._bodies[name] = False, frozenset()  # For functions that call themselves.
      function = self._functions.get(name)
      nodes = [] if function is None else list(function.node_def)
      names = frozenset(key for node in nodes for key in self._resource_names(node))
      is_open = function is None or any(map(self._is_open, nodes))
      self._bodies[name] = is_open, names
    return self._bodies[name]

  def _is_open(self, node: Any) -> bool:
    """Returns True if an operation may reach Python's memory, files or other processes."""
    functions = list(self._functions_of(node))
    if functions:
      return any(self._body(name)[0] for name in functions)
    if graphs.is_own_call(node):
      return False
    if _OPEN.match(node.op):
      return True
    definition = op_def_registry.get(node.op)
    if definition is None:
      return True
    if not definition.is_stateful or _CLOSED.match(node.op):
      return False
    # Others keep their state in a resource, whose users are followed.
    return not ('shared_name' in node.attr or self._takes_handle(definition, node))

  def _takes_handle(self, definition: Any, node: Any) -> bool:
    return self._gives_handle(node) or any(
      argument.is_ref or argument.type in _REFERENCES for argument in definition.input_arg
    )

  def _same_input(self, tensor: str) -> int | None:
    """Returns the input whose value a tensor is, through operations that copy."""
    name = self._source(tensor)[0]
    return self._inputs.index(name) if name in self._inputs else None

  def _end(self, tensor: str) -> tuple[str, str] | None:
    node = self._source(tensor)[1]
    if node is None or marks.NOISE_OUT not in node.attr:
      return None
    identity, part = _words(node, marks.NOISE_OUT)
    return identity, part

  def _source(self, tensor: str) -> tuple[str, Any]:
    """Returns where a tensor comes from through copies: its name, and its operation."""
    while True:
      name = tensor if ':' in tensor else f'{tensor}:0'
      node = self._nodes.get(graphs.node_of(name))
      if name in self._inputs or node is None or node.op != 'Identity':
        return name, node
      if marks.NOISE_OUT in node.attr:
        return name, node
      tensor = node.input[0]

  def _mask(self, tensor: str) -> int:
    """Returns the set of a tensor, also of one that is fed."""
    return self._masks.get(graphs.node_of(tensor), 0) | self._given.get(graphs.node_of(tensor), 0)

  def _join(self, names: Iterable[str]) -> int:
    joined = 0
    for name in names:
      joined |= self._masks[name]
    return joined

  def _join_tensors(self, tensors: Iterable[str]) -> int:
    return self._join(graphs.node_of(tensor) for tensor in tensors)


def _words(node: Any, mark: str) -> list[str]:
  return node.attr[mark].s.decode().rsplit(' ', 2 if mark == marks.NOISE_IN else 1)
