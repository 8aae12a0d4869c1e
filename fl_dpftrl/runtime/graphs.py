"""Parts of serialised TensorFlow graphs."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf


def node_of(tensor: str) -> str:
  """Returns the node of an input, which may be one that only orders."""
  return tensor.lstrip('^').split(':')[0]


def nodes(graph: tf.compat.v1.GraphDef) -> Iterator[Any]:
  """Yields the nodes of a graph, and those of its functions."""
  return itertools.chain(graph.node, *(f.node_def for f in graph.library.function))


def inputs(node: Any) -> tuple[list[str], list[str]]:
  """Returns the inputs of a node: those that it computes with, and those that only order."""
  orders = lambda one: one.startswith('^')
  return list(itertools.filterfalse(orders, node.input)), list(filter(orders, node.input))


def function_names(node: Any) -> list[str]:
  """Returns the names of the functions that are attributes of a node."""
  names = []
  for attribute in node.attr.values():
    if attribute.HasField('func'):
      names.append(attribute.func.name)
    names.extend(function.name for function in attribute.list.func)
  return names


def clear_attributes(node: Any) -> None:
  """Removes the attributes that an operation has; those that begin with _ stay."""
  for name in [name for name in node.attr if not name.startswith('_')]:
    del node.attr[name]


def needed(
  graph: tf.compat.v1.GraphDef, wanted: Iterable[str], given: Iterable[str] = ()
) -> set[str]:
  """Returns the nodes that wanted ones need, themselves included; given ones need none."""
  by_name = {node.name: node for node in graph.node}
  known, left = set(given) & by_name.keys(), list(wanted)
  while left:
    name = left.pop()
    if name not in known:
      known.add(name)
      left.extend(map(node_of, by_name[name].input))
  return known
