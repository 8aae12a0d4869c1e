"""Matrix products by oneDNN, for clients that train at the same time.

TensorFlow on x86 has two kernels for a product of float32 matrices: Eigen's, and one
that calls oneDNN's sgemm, which is faster. Switched on as a whole, oneDNN replaces
other operations too, and some of those corrupt memory where two clients run them at
once (see memory.py). The product keeps nothing from call to call, so it alone is used.
"""

import functools
import itertools

import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from fl_dpftrl.runtime import memory

_PRODUCT, _REPLACEMENT = 'MatMul', '_MklMatMul'
_LABEL = 'MklNameChangeOp'
_FLOAT = tf.float32.as_datatype_enum


def rewrite(graph: tf.compat.v1.GraphDef) -> None:
  """Replaces the products of float32 matrices of a graph and its functions, in place.

  It leaves them where TensorFlow has no such kernel, has a GPU, or uses oneDNN for
  everything anyway.
  """
  kept = _attributes()
  if kept is None:
    return
  for node in itertools.chain(graph.node, *(f.node_def for f in graph.library.function)):
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
