"""Rewritten graphs that take less time: reductions as loops, and products by oneDNN.

TensorFlow optimises the function of a reduction of a data set anew each time that the
reduction runs, once for each client, which takes longer than to train a small one. The body
of a loop is optimised once, with the graph that it is in.

TensorFlow on x86 has two kernels for a product of float32 matrices: Eigen's, and one
that calls oneDNN's sgemm, which is faster. Switched on as a whole, oneDNN replaces
other operations too, and some of those corrupt memory where two clients run them at
once (see memory.py). The product keeps nothing from call to call, so only it is used.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from tff_inprocess import graphs, memory

_REDUCTION = 'ReduceDataset'
_OUTPUTS, _LOOP_OUTPUTS = 'components', 'output'
_VARIANT = tf.variant.as_datatype_enum
_RESOURCE = tf.resource.as_datatype_enum

_PRODUCT, _REPLACEMENT = 'MatMul', '_MklMatMul'
_LABEL = 'MklNameChangeOp'
_FLOAT = tf.float32.as_datatype_enum


def rewrite(graph: tf.compat.v1.GraphDef) -> None:
  """Rewrites a graph and its functions, in place."""
  _rewrite_reductions(graph)
  rewrite_products(graph)


def _rewrite_reductions(graph: tf.compat.v1.GraphDef) -> None:
  """Replaces all reductions of a graph and its functions, in place."""
  functions = {f.signature.name: f for f in graph.library.function}
  made: set[str] = set()
  for node in list(graph.node):
    if node.op == _REDUCTION:
      _replace(node, graph.node, functions, graph.library, made, False)
  for function in list(functions.values()):
    changed = set()
    for node in list(function.node_def):
      if node.op == _REDUCTION:
        changed.add(node.name)
        _replace(node, function.node_def, functions, graph.library, made, True)
    if changed:
      _rename_outputs(function, changed)


def _replace(
  node: tf.compat.v1.NodeDef,
  nodes: Any,
  functions: dict[str, Any],
  library: Any,
  made: set[str],
  is_function: bool,
) -> None:
  """Makes a loop of one reduction, under its name."""
  output = lambda name, of: f'{name}:{of}:0' if is_function else name
  states = list(node.attr['Tstate'].list.type)
  others = list(node.attr['Targuments'].list.type)
  function = functions[node.attr['f'].func.name]
  arguments = [argument.type for argument in function.signature.input_arg]
  elements = arguments[len(states) : len(arguments) - len(others)]
  (data_set, *inputs), control = graphs.inputs(node)
  prefix = f'{node.name}/loop'
  iterator = nodes.add(name=f'{prefix}/iterator', op='AnonymousIteratorV3')
  iterator.input.extend(control)
  handle = output(iterator.name, 'handle')
  _set_elements(iterator, elements)
  start = nodes.add(name=f'{prefix}/start', op='MakeIterator')
  start.input.extend([data_set, handle])
  first = nodes.add(name=f'{prefix}/first', op='IteratorGetNextAsOptional')
  first.input.extend([handle, f'^{start.name}'])
  _set_elements(first, elements)
  first_output = output(first.name, 'optional')
  types = [*states, _VARIANT, _RESOURCE, *others]
  names = _loop_functions(node, function, states, elements, others)
  for one in names:
    if one.signature.name not in made:
      made.add(one.signature.name)
      library.function.add().CopyFrom(one)
  shapes = list(node.attr['output_shapes'].list.shape)
  del node.input[:]
  node.input.extend(
    [*inputs[: len(states)], first_output, handle, *inputs[len(states) :], *control]
  )
  node.op = 'While'
  graphs.clear_attributes(node)
  node.attr['T'].list.type.extend(types)
  condition, body = names
  node.attr['cond'].func.name = condition.signature.name
  node.attr['body'].func.name = body.signature.name
  for shape in shapes:
    node.attr['output_shapes'].list.shape.add().CopyFrom(shape)
  for _ in types[len(shapes) :]:
    node.attr['output_shapes'].list.shape.add(unknown_rank=True)
  # Steps of a reduction come one after another; resources make that felt.
  node.attr['parallel_iterations'].i = 1 if _RESOURCE in others else 10
  node.attr['_lower_using_switch_merge'].b = True


def _loop_functions(
  node: tf.compat.v1.NodeDef,
  function: Any,
  states: Sequence[int],
  elements: Sequence[int],
  others: Sequence[int],
) -> tuple[Any, Any]:
  """The condition and the body."""
  name = function.signature.name
  condition, body = (
    _signature(f'{name}__{part}', states, others) for part in ('loop_condition', 'loop_body')
  )
  has_value = condition.node_def.add(name='has_value', op='OptionalHasValue')
  has_value.input.append('optional')
  condition.signature.output_arg.add(name='go_on', type=tf.bool.as_datatype_enum)
  condition.ret['go_on'] = 'has_value:has_value:0'

  element = body.node_def.add(name='element', op='OptionalGetValue')
  element.input.append('optional')
  _set_elements(element, elements)
  step = body.node_def.add(name='step', op='StatefulPartitionedCall')
  step.input.extend(f'state{i}' for i in range(len(states)))
  step.input.extend(f'element:components:{i}' for i in range(len(elements)))
  step.input.extend(f'other{i}' for i in range(len(others)))
  step.attr['f'].func.CopyFrom(node.attr['f'].func)
  step.attr['Tin'].list.type.extend([*states, *elements, *others])
  step.attr['Tout'].list.type.extend(states)
  following = body.node_def.add(name='next', op='IteratorGetNextAsOptional')
  following.input.append('iterator')
  _set_elements(following, elements)
  results = [f'step:output:{i}' for i in range(len(states))]
  results += ['next:optional:0', 'iterator']
  results += [f'other{i}' for i in range(len(others))]
  for index, (argument, result) in enumerate(zip(body.signature.input_arg, results, strict=True)):
    output = f'result{index}'
    body.signature.output_arg.add(name=output, type=argument.type)
    body.ret[output] = result
  body.signature.is_stateful = True
  return condition, body


def _signature(name: str, states: Sequence[int], others: Sequence[int]) -> Any:
  library = tf.compat.v1.GraphDef().library
  function = library.function.add()
  function.signature.name = name
  add = function.signature.input_arg.add
  for index, of in enumerate(states):
    add(name=f'state{index}', type=of)
  add(name='optional', type=_VARIANT)
  add(name='iterator', type=_RESOURCE)
  for index, of in enumerate(others):
    add(name=f'other{index}', type=of)
  return function


def _set_elements(node: tf.compat.v1.NodeDef, types: Sequence[int]) -> None:
  node.attr['output_types'].list.type.extend(types)
  for _ in types:
    node.attr['output_shapes'].list.shape.add(unknown_rank=True)


def _rename_outputs(function: Any, names: set[str]) -> None:
  """Loops give by another name what reductions gave."""

  def renamed(tensor_name: str) -> str:
    node, *rest = tensor_name.split(':')
    if node in names and rest and rest[0] == _OUTPUTS:
      rest[0] = _LOOP_OUTPUTS
    return ':'.join([node, *rest])

  for node in function.node_def:
    node.input[:] = [renamed(one) for one in node.input]
  for output in function.ret:
    function.ret[output] = renamed(function.ret[output])


def rewrite_products(graph: tf.compat.v1.GraphDef) -> None:
  """Replaces the products of float32 matrices of a graph and its functions, in place.

  It leaves them where TensorFlow has no such kernel, has a GPU, or uses oneDNN for
  everything anyway.
  """
  kept = _attributes()
  if kept is None:
    return
  for node in graphs.nodes(graph):
    if node.op == _PRODUCT and node.attr['T'].type == _FLOAT:
      node.op = _REPLACEMENT
      for name in [name for name in node.attr if name not in kept]:
        del node.attr[name]
      node.attr['_kernel'].s = _LABEL.encode()


@functools.cache
def _attributes() -> frozenset[str] | None:
  """Returns the replacement's attributes; None if it is not to be used."""
  definition = op_def_registry.get(_REPLACEMENT)
  if definition is None or memory.uses_one_dnn():
    return None
  if tf.config.list_physical_devices('GPU') or not any(
    kernel.label == _LABEL
    and any(
      constraint.name == 'T' and _FLOAT in constraint.allowed_values.list.type
      for constraint in kernel.constraint
    )
    for kernel in kernels.get_registered_kernels_for_op(_REPLACEMENT).kernel
  ):
    return None
  return frozenset(attribute.name for attribute in definition.attr)
