"""Steps, values and data sets as plain objects that travel to other machines.

A compiled step travels as its graph: names of values differ from one reading of a
computation to the next, and the receiver need not compile it again.
"""

import contextlib
import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tff_inprocess import data_sets, graphs, programs


@dataclasses.dataclass(frozen=True)
class SentStep:
  """A compiled step as bytes.

  Attributes:
    takes, gives, sizes: as of `programs.Step`.
    graph: serialised GraphDef.
    inputs, outputs: names of its tensors, the seed first.
  """

  takes: tuple[str, ...]
  gives: tuple[str, ...]
  sizes: tuple[int, ...]
  graph: bytes
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]

  def step(self) -> programs.Step:
    """Returns the step, to be run in this process."""
    graph = tf.compat.v1.GraphDef.FromString(self.graph)
    nodes = {node.name: node for node in graph.node}
    specs = []
    for name in self.inputs:
      attributes = nodes[graphs.node_of(name)].attr
      specs.append(tf.TensorSpec(attributes['shape'].shape, attributes['dtype'].type))

    def trace(*tensors):
      return tf.graph_util.import_graph_def(
        graph, input_map=dict(zip(self.inputs, tensors)), return_elements=self.outputs, name='sent'
      )

    function = tf.compat.v1.wrap_function(trace, specs)
    return programs.Step(self.takes, self.gives, self.sizes, function, ())


def calls_python(step: programs.Step) -> bool:
  """Returns whether a step calls Python functions, which stay in their process."""
  nodes = graphs.nodes(step.function.graph.as_graph_def())
  return any(node.op in graphs.CALLS for node in nodes)


def sent_step(step: programs.Step) -> SentStep:
  """Returns a step as it travels."""
  if calls_python(step):
    raise ValueError(
      "clients' work with tf.py_function or tf.numpy_function stays in its process: write it in"
      ' TensorFlow, or train without other machines'
    )
  return SentStep(
    takes=step.takes,
    gives=step.gives,
    sizes=step.sizes,
    graph=step.function.graph.as_graph_def().SerializeToString(),
    inputs=tuple(tensor.name for tensor in step.function.inputs),
    outputs=tuple(tensor.name for tensor in step.function.outputs),
  )


@dataclasses.dataclass(frozen=True)
class SentDataSet:
  """A data set as the serialised graph that makes it."""

  graph: bytes

  def tensor(self) -> tf.Tensor:
    """Returns the data set as a variant."""
    graph = tf.compat.v1.GraphDef.FromString(self.graph)
    (result,) = (node for node in graph.node if node.op == '_Retval')
    name = result.input[0] if ':' in result.input[0] else f'{result.input[0]}:0'
    graph.node.remove(result)
    make = lambda: tf.graph_util.import_graph_def(graph, return_elements=[name], name='sent')
    return tf.compat.v1.wrap_function(make, [])()[0]


@dataclasses.dataclass(frozen=True)
class SentZeros:
  """A tensor whose bits are all zero, as the total of an empty block mostly is."""

  shape: tuple[int, ...]
  dtype: str

  def tensor(self) -> tf.Tensor:
    """Returns the tensor."""
    return tf.zeros(self.shape, self.dtype)


Sent: TypeAlias = np.ndarray | SentDataSet | SentZeros


def sent_tensors(tensors: Sequence[tf.Tensor]) -> tuple[Sent, ...]:
  """Returns tensors, of which some may be data sets, as they travel."""
  return tuple(
    _sent_data_set(one) if one.dtype == tf.variant else np.asarray(one) for one in tensors
  )


def sent_totals(parts: Mapping[str, Sequence[tf.Tensor]]) -> dict[str, Sequence[Sent]]:
  """Returns totals of an empty block as they travel: zeros by only their shapes."""
  return {name: tuple(map(_sent_total, sent_tensors(of))) for name, of in parts.items()}


def _sent_total(one: Sent) -> Sent:
  if not isinstance(one, np.ndarray) or one.dtype.kind not in 'biuf':
    return one
  if one.reshape(-1).view(np.uint8).any():  # Of -0.0 too.
    return one
  return SentZeros(one.shape, one.dtype.name)


def tensors(parts: Sequence[Sent]) -> tuple[tf.Tensor, ...]:
  """Returns the tensors that were sent; an array may share its memory with them."""
  # Nobody writes to an array that was received.
  return tuple(
    data_sets.unchanging(one) if isinstance(one, np.ndarray) else one.tensor() for one in parts
  )


def sent(parts: Mapping[str, Sequence[tf.Tensor]]) -> dict[str, Sequence[Sent]]:
  """Returns the tensors of values as they travel, by name."""
  return {name: sent_tensors(tensors_of) for name, tensors_of in parts.items()}


def received(parts: Mapping[str, Sequence[Sent]]) -> dict[str, Sequence[tf.Tensor]]:
  """Returns the tensors of values that were sent, by name."""
  return {name: tensors(sent_of) for name, sent_of in parts.items()}


def _sent_data_set(variant: tf.Tensor) -> SentDataSet:
  with contextlib.suppress(tf.errors.OpError):
    graph = tf.raw_ops.DatasetToGraphV2(
      input_dataset=variant, external_state_policy=2, strip_device_assignment=True
    )
    return SentDataSet(graph.numpy())
  # Out of the handling of an error, whose words may quote the data.
  raise ValueError(
    'a client has a data set that stays in its process, such as one of a Python generator: give'
    ' tff_inprocess.Later(function, arguments), which makes it where it is used'
  )


def portable_error(error: BaseException) -> BaseException:
  """Returns an error as it travels: without its traceback, of its own type where that can be."""
  try:
    copy = pickle.loads(pickle.dumps(error))
  except Exception:
    copy = None
  if type(copy) is type(error) and str(copy) == str(error):
    return copy
  return RuntimeError(f'{type(error).__name__}: {error}')
