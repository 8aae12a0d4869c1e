"""Random operations that are functions of a seed that a graph is fed.

A stateful random operation of TensorFlow draws from a generator that the process
keeps for it: what a client draws would depend on which clients ran before. Here
each becomes its stateless counterpart. The seed is one more input of the graph and
of every function in it that draws: it goes into calls and branches, and through
loops as one more loop variable, so that no two draws share a seed.

Not covered, and left as they are: gamma and Poisson variates, shuffles of tensors,
and random functions that are mapped over a data set.
"""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_inprocess import graphs

SEED_SPEC = tf.TensorSpec([2], tf.int64, 'random_seed')
SEED_NAME = 'random_seed'
_SEED_TYPE = tf.int64.as_datatype_enum
_PHILOX = 1
_MARK = '__with_seed'

# Operation → its counterpart, (attributes: new name → old name), and how many
# inputs come before the seed.
_DRAWS = {
  'RandomStandardNormal': ('StatelessRandomNormal', {'dtype': 'dtype', 'T': 'T'}, 1),
  'RandomUniform': ('StatelessRandomUniform', {'dtype': 'dtype', 'T': 'T'}, 1),
  'TruncatedNormal': ('StatelessTruncatedNormal', {'dtype': 'dtype', 'T': 'T'}, 1),
  'RandomUniformInt': ('StatelessRandomUniformInt', {'dtype': 'Tout', 'T': 'T'}, 1),
  'Multinomial': ('StatelessMultinomial', {'T': 'T', 'output_dtype': 'output_dtype'}, 2),
  'NonDeterministicInts': (
    'StatelessRandomUniformFullInt',
    {'dtype': 'dtype', 'T': 'shape_dtype'},
    1,
  ),
}
# Those whose counterpart is given the very generator of a seed.
_SEEDED = {
  'RandomStandardNormal': 'StatelessRandomNormalV2',
  'RandomUniform': 'StatelessRandomUniformV2',
  'TruncatedNormal': 'StatelessTruncatedNormalV2',
}
# Data sets that draw, from the two numbers that these inputs are.
_SEED_INPUTS = ('seed', 'seed2')
_DATA_SETS = {
  'ShuffleDataset': 2,
  'ShuffleDatasetV3': 2,
  'ShuffleAndRepeatDataset': 2,
  'ShuffleAndRepeatDatasetV2': 2,
  'AnonymousSeedGenerator': 0,
  'AnonymousRandomSeedGenerator': 0,
  'RandomDataset': 0,
}
_CALLS = ('PartitionedCall', 'StatefulPartitionedCall')
_BRANCHES = ('If', 'StatelessIf', 'Case', 'StatelessCase')
_LOOPS = ('While', 'StatelessWhile')


def child(seed: tf.Tensor, index: int | tf.Tensor) -> tf.Tensor:
  """Returns the seed of part number `index` of something with a seed."""
  return tf.random.stateless_uniform(
    [2], seed + tf.convert_to_tensor([index, 0], tf.int64), None, None, tf.int64
  )


def secret_seed() -> tf.Tensor:
  """Returns a seed of the operating system."""
  return tf.constant(np.frombuffer(os.urandom(16), '<i8'))


def rewrite(graph: tf.compat.v1.GraphDef, *, honours_seeds: bool) -> str | None:
  """Rewrites a graph in place so that it draws from a seed that it is fed.

  Args:
    graph: serialised; functions that draw get another name in it.
    honours_seeds: an operation with a seed of its own draws what a new operation
      of that seed draws first. Else such seeds are passed over.

  Returns:
    The name of the placeholder for the seed; None if nothing draws.
  """
  return _Rewriter(graph, honours_seeds).run()


class _Rewriter:
  """Rewrites one graph; see `rewrite`."""

  def __init__(self, graph: tf.compat.v1.GraphDef, honours_seeds: bool):
    self._graph = graph
    self._honours_seeds = honours_seeds
    self._functions = {f.signature.name: f for f in graph.library.function}
    self._drawing: set[str] = set()

  def run(self) -> str | None:
    self._find_drawing()
    bodies = self._bodies()
    body = _Body(self._graph.node, is_function=False, seed=SEED_NAME)
    if not self._rewrite_nodes(body):
      return None
    placeholder = self._graph.node.add(name=SEED_NAME, op='Placeholder')
    placeholder.attr['dtype'].type = _SEED_TYPE
    placeholder.attr['shape'].shape.CopyFrom(SEED_SPEC.shape.as_proto())
    for name in sorted(self._drawing):
      # Beside the old one, which a data set may map.
      function = self._graph.library.function.add()
      function.CopyFrom(self._functions[name])
      self._rewrite_function(function, is_loop_body=name in bodies)
    return SEED_NAME

  def _find_drawing(self) -> None:
    """Finds functions that draw, directly or indirectly, and their siblings."""
    size = -1
    while size < len(self._drawing):
      size = len(self._drawing)
      for name, function in self._functions.items():
        if any(self._draws(node) for node in function.node_def):
          self._drawing.add(name)
      # Branches have one signature, and so have the two halves of a loop.
      for node in graphs.nodes(self._graph):
        if node.op in (*_BRANCHES, *_LOOPS) and self._draws(node):
          self._drawing.update(graphs.function_names(node))

  def _draws(self, node: tf.compat.v1.NodeDef) -> bool:
    if node.op in _DRAWS or node.op in _DATA_SETS:
      return True
    if node.op in self._functions:  # Called by its name.
      return node.op in self._drawing
    if node.op not in (*_CALLS, *_BRANCHES, *_LOOPS):
      return False
    return any(name in self._drawing for name in graphs.function_names(node))

  def _renamed(self, name: str) -> str:
    return name + _MARK if name in self._drawing else name

  def _bodies(self) -> set[str]:
    """Returns the functions that are the body of a loop."""
    return {node.attr['body'].func.name for node in graphs.nodes(self._graph) if node.op in _LOOPS}

  def _rewrite_function(self, function: Any, *, is_loop_body: bool) -> None:
    signature = function.signature
    taken = {argument.name for argument in signature.input_arg}
    taken |= {node.name for node in function.node_def}
    seed = SEED_NAME
    while seed in taken:
      seed += '_'
    signature.input_arg.add(name=seed, type=_SEED_TYPE)
    body = _Body(function.node_def, is_function=True, seed=seed)
    self._rewrite_nodes(body)
    if is_loop_body:
      advanced = body.add('AddV2', [seed, body.constant([0, 1])], T=_SEED_TYPE)
      output = f'{seed}_advanced'
      signature.output_arg.add(name=output, type=_SEED_TYPE)
      function.ret[output] = body.output(advanced, 'z')
    signature.name += _MARK

  def _rewrite_nodes(self, body: '_Body') -> bool:
    """Rewrites the nodes of a body; returns whether any of them draws."""
    drawing = [node for node in body.nodes if self._draws(node)]
    for node in drawing:
      if node.op in _DRAWS:
        self._rewrite_draw(node, body)
      elif node.op in _DATA_SETS:
        _reseed_data_set(node, body)
      elif node.op in self._functions:
        _append_input(node, body.child_seed())
        node.op = self._renamed(node.op)
      else:
        self._rewrite_call(node, body)
    return bool(drawing)

  def _rewrite_draw(self, node: tf.compat.v1.NodeDef, body: '_Body') -> None:
    operation, attributes, num_before = _DRAWS[node.op]
    seeds = [node.attr[name].i for name in _SEED_INPUTS if name in node.attr]
    inputs = list(node.input)
    if self._honours_seeds and any(seeds) and node.op in _SEEDED:
      operation = _SEEDED[node.op]
      attributes = {'dtype': 'dtype', 'Tshape': 'T'}
      wide = [body.constant([number], np.uint64) for number in seeds[:1]]
      wide.append(body.constant([0, seeds[1]], np.uint64))
      added = [*wide, body.constant(_PHILOX, np.int32)]
      types = {}
    else:
      if self._honours_seeds and any(seeds):
        added = [body.constant(seeds)]
      else:
        added = [body.fresh_seed()]
      types = {'Tseed': _SEED_TYPE}
    kept = {new: node.attr[old].type for new, old in attributes.items()}
    node.op = operation
    graphs.clear_attributes(node)
    for name, of in {**kept, **types}.items():
      node.attr[name].type = of
    del node.input[:]
    node.input.extend([*inputs[:num_before], *added, *inputs[num_before:]])

  def _rewrite_call(self, node: tf.compat.v1.NodeDef, body: '_Body') -> None:
    seed = body.child_seed()
    _append_input(node, seed)
    types = 'T' if node.op in _LOOPS else 'Tin'
    node.attr[types].list.type.append(_SEED_TYPE)
    # Looking up an attribute that is not there would make an empty one.
    if node.op in _LOOPS and 'output_shapes' in node.attr:
      shapes = node.attr['output_shapes'].list.shape
      if shapes:
        shapes.add().CopyFrom(SEED_SPEC.shape.as_proto())
    for attribute in node.attr.values():
      if attribute.HasField('func'):
        attribute.func.name = self._renamed(attribute.func.name)
      for function in attribute.list.func:
        function.name = self._renamed(function.name)


class _Body:
  """The nodes of a graph or function, and new ones."""

  def __init__(self, nodes: Any, *, is_function: bool, seed: str):
    self.nodes = nodes
    self._is_function = is_function
    self._seed = seed
    self._count = 0
    self._num_seeds = 0

  def output(self, node_name: str, output: str) -> str:
    return f'{node_name}:{output}:0' if self._is_function else node_name

  def add(self, op: str, inputs: Iterable[str], **types: int) -> str:
    self._count += 1
    node = self.nodes.add(name=f'{self._seed}/{op}_{self._count}', op=op)
    node.input.extend(inputs)
    for name, of in types.items():
      node.attr[name].type = of
    return node.name

  def constant(self, value: Any, dtype: Any = np.int64) -> str:
    array = np.array(value, dtype)
    of = tf.as_dtype(array.dtype).as_datatype_enum
    name = self.add('Const', [], dtype=of)
    self.nodes[-1].attr['value'].tensor.CopyFrom(tf.make_tensor_proto(array))
    return self.output(name, 'output')

  def fresh_seed(self) -> str:
    """Returns a seed that is used nowhere else in one run of this body."""
    offset = self.constant([self._num_seeds, 0])
    self._num_seeds += 1
    name = self.add('AddV2', [self._seed, offset], T=_SEED_TYPE)
    return self.output(name, 'z')

  def child_seed(self) -> str:
    """Returns a seed, far from all others, from which others may be counted."""
    shape = self.constant([2], np.int32)
    name = self.add(
      'StatelessRandomUniformFullInt',
      [shape, self.fresh_seed()],
      dtype=_SEED_TYPE,
      T=tf.int32.as_datatype_enum,
      Tseed=_SEED_TYPE,
    )
    return self.output(name, 'output')

  def scalars(self, seed: str) -> list[str]:
    """Returns the two numbers of a seed."""
    name = self.add('Unpack', [seed], T=_SEED_TYPE)
    self.nodes[-1].attr['num'].i = 2
    self.nodes[-1].attr['axis'].i = 0
    if self._is_function:
      return [f'{name}:output:0', f'{name}:output:1']
    return [name, f'{name}:1']


def _reseed_data_set(node: tf.compat.v1.NodeDef, body: _Body) -> None:
  """Gives a data set that draws a seed, unless it has one of its own."""
  place = _DATA_SETS[node.op]
  constants = {n.name: n for n in body.nodes if n.op == 'Const'}
  given = [constants.get(graphs.node_of(one)) for one in node.input[place : place + 2]]
  if any(one is None or tf.make_ndarray(one.attr['value'].tensor).any() for one in given):
    return
  for offset, scalar in enumerate(body.scalars(body.child_seed())):
    node.input[place + offset] = scalar


def _append_input(node: tf.compat.v1.NodeDef, name: str) -> None:
  """Adds an input after the others, before those that only order."""
  data, order = graphs.inputs(node)
  node.input[:] = [*data, name, *order]
