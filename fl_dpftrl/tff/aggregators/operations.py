"""Operations of TensorFlow by which nothing enters or leaves a call but its tensors.

The list allows, it does not forbid. An operation passes if it is TensorFlow's own and TensorFlow
calls it stateless, or if its state ends with the call: a variable, table, data set or iterator that
the call makes, or random numbers without a seed. All others are refused: Python functions, files,
prints, queues, stages, names that other calls know, and operations of other libraries.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from fl_dpftrl.tff.aggregators import by_engine
from tff_inprocess import graphs


def _set(names: str) -> frozenset[str]:
  return frozenset(names.split())


# Outputs follow only from inputs, if the functions are pure; messages are looked at by `quotes`.
_PURE = _set('Assert Case CheckNumerics CheckNumericsV2 If StatefulPartitionedCall While')
# The runtime gives what has a name a new one in each call.
_MAKERS = _set(
  'VarHandleOp HashTableV2 MutableHashTableV2 MutableHashTableOfTensorsV2 MutableDenseHashTableV2'
  ' AnonymousHashTable AnonymousMutableHashTable AnonymousMutableHashTableOfTensors'
  ' AnonymousMutableDenseHashTable IteratorV2 OneShotIterator AnonymousIterator AnonymousIteratorV2'
  ' AnonymousIteratorV3 AnonymousMemoryCache AnonymousRandomSeedGenerator AnonymousSeedGenerator'
  ' DummyMemoryCache DummySeedGenerator StackV2 TensorArrayV3'
)
# Of operations that take a handle of those.
_USERS = re.compile(
  r'(Assign|AssignAdd|AssignSub|Read)VariableOp|VarIsInitializedOp|VariableShape|DestroyResourceOp'
  r'|DisableCopyOnRead|Resource(Apply|SparseApply|Scatter|Gather|StridedSliceAssign|CountUpTo)\w*'
  r'|Rng\w+|Stateful(Uniform|StandardNormal|TruncatedNormal|RandomBinomial)\w*'
  r'|InitializeTable(V2|FromDataset)|LookupTable\w+V2|MakeIterator|IteratorGetNext\w*'
  r'|Delete(Iterator|MemoryCache|(Random)?SeedGenerator)|(Shuffle\w*|Random)DatasetV[23]'
  r'|TensorArray\w+(V3|WithShape)|Stack(Push|Pop|Close)V2'
)
_DATA_SETS = _set(
  'DatasetToSingleElement GroupByReducerDataset RandomDataset RangeDataset ReduceDataset'
  ' SparseTensorSliceDataset TensorDataset TensorSliceDataset'
)
# With a seed of its own, an operation goes on from call to call where the last call stopped.
_RANDOM = _set(
  'AllCandidateSampler CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2'
  ' CudnnRNNV3 LogUniformCandidateSampler Multinomial NonDeterministicInts'
  ' ParameterizedTruncatedNormal RandomCrop RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle'
  ' RandomStandardNormal RandomUniform RandomUniformInt SampleDistortedBoundingBox'
  ' SampleDistortedBoundingBoxV2 StatelessRandomGetAlg TruncatedNormal UniformCandidateSampler'
)
# Arguments that name files, machines, memory, graphs, Python functions, TPUs' tables. TensorFlow
# calls some operations that have them stateless, such as ReadFile, PyFuncStateless, BatchFunction.
_OUTWARD = _set(
  'address chunk_file container debug_ops_spec debug_urls descriptor_source device_ordinal filename'
  ' filenames graph_def memory_region_name new_vocab_file old_vocab_file path shared_name'
  ' table_name token'
)
_NAMES = frozenset(['container', 'shared_name'])
# Operation → (its input that names a file, the only name that it may have): none, for a cache in
# memory, and the system's random numbers.
_FILES = {
  'CacheDataset': (1, b''),
  'CacheDatasetV2': (1, b''),
  'TextLineDataset': (0, b'/dev/urandom'),
}
# The rest of those that TensorFlow calls stateless: they read files, count, write into inputs, ask
# where inputs lie, end the process, follow addresses or unset memory, or need TPUs or GPUs.
_NOT_PURE = re.compile(
  r'Abort|(Experimental)?(BytesProduced|Latency)StatsDataset|CheckPinned|Convert\w+SparseCore\w+'
  r'|DatasetFingerprint|Decode(Jxl|WebP)|I?R?FFTND|(Index|Weighted)FlatMapDataset|Inplace\w+'
  r'|Kmeans\w+|MatchingFiles|Snapshot\w+Reader|TensorMapStackKeys|XlaSparseDenseMatmul\w*'
)
_HANDLE = tf.resource.as_datatype_enum


def refused(graph: tf.compat.v1.GraphDef, *, with_data: bool) -> Iterator[tuple[str, str]]:
  """Yields (operation, place) of all not allowed; of_data: random draws may depend on inputs."""
  functions = {function.signature.name for function in graph.library.function}
  for nodes in (graph.node, *(f.node_def for f in graph.library.function)):
    by_name = {node.name: node for node in nodes}
    for node in nodes:
      # Functions that are elsewhere, or that a caller chooses, cannot be read.
      is_whole = functions.issuperset(graphs.function_names(node)) and not any(
        attribute.placeholder for attribute in node.attr.values()
      )
      is_followed = node.op in functions or by_engine.identity(node) is not None
      if not (is_whole and (is_followed or _is_allowed(node, by_name, with_data))):
        yield node.op, f'{node.name}{" with a seed" if node.op in _RANDOM else ""}'


def quotes(graph: tf.compat.v1.GraphDef) -> Iterator[tuple[str, str]]:
  """Yields (operation, place) of assertions whose message has words that are computed."""
  for nodes in (graph.node, *(f.node_def for f in graph.library.function)):
    constants = {node.name for node in nodes if node.op == 'Const'}
    for node in nodes:
      if node.op == 'Assert':
        printed = zip(node.attr['T'].list.type, node.input[1:])
        words = [name for kind, name in printed if kind == tf.string.as_datatype_enum]
        if not constants.issuperset(map(graphs.node_of, words)):
          yield node.op, node.name


def is_pure(operation: str) -> bool:
  """Returns whether outputs are a function of inputs, if functions that are called are pure."""
  definition = op_def_registry.get(operation)
  return operation in _PURE or (definition is not None and not definition.is_stateful)


@functools.cache
def _arguments(operation: str) -> tuple[bool, frozenset[str]]:
  """Returns whether an operation takes a handle, and the names of its arguments."""
  inputs, attributes = (getattr(op_def_registry.get(operation), of) for of in ('input_arg', 'attr'))
  names = frozenset(argument.name for argument in (*inputs, *attributes))
  return any(argument.type == _HANDLE for argument in inputs), names


def _is_allowed(node: Any, by_name: dict[str, Any], with_data: bool) -> bool:
  operation = node.op
  if not hasattr(tf.raw_ops, operation):
    return False  # Not TensorFlow's own.
  takes_handle, names = _arguments(operation)
  if names & _OUTWARD and not (operation in _MAKERS and names & _OUTWARD <= _NAMES):
    if operation not in _FILES:
      return False
    index, name = _FILES[operation]
    source = by_name.get(graphs.node_of(node.input[index]))
    if source is None or source.op != 'Const':
      return False
    return tf.make_ndarray(source.attr['value'].tensor).tolist() == name
  if operation == 'Const':
    return node.attr['dtype'].type != _HANDLE
  if operation in _RANDOM:
    return not (with_data and any(node.attr[name].i for name in ('seed', 'seed2') if name in names))
  if takes_handle:
    return _USERS.fullmatch(operation) is not None
  is_allowed = is_pure(operation) or operation in _MAKERS or operation in _DATA_SETS
  return is_allowed and not _NOT_PURE.fullmatch(operation)
