"""Evaluates expressions of a computation to tensors of a graph."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from tff_inprocess import analysis, imports, sequences

_Block: TypeAlias = tff.framework.ComputationBuildingBlock
_Bound: TypeAlias = dict[str, Any]  # Values of names within an expression.


class Evaluator:
  """Evaluates expressions to tensors of the graph that is being built.

  Values are tensors in nested tuples; functions are Python functions of them.
  """

  def __init__(
    self,
    analysed: analysis.Analysis,
    named: dict[str, analysis.Named],
    importer: imports.Importer,
    known: dict[str, imports.Value],
  ):
    self._analysed, self._named = analysed, named
    self.importer = importer
    self._known = known

  def value(self, name: str) -> imports.Value:
    """A named value."""
    if name not in self._known:
      one = self._named[name]
      if analysis.is_sum(one):
        total = self._known[analysis.part_of(name, analysis.TOTAL)]
        self._known[name] = self._function_of(name, analysis.REPORT)(total)
      else:
        self._known[name] = self._evaluate(one.block, {})
    return self._known[name]

  def with_summand(self, name: str, summand: imports.Value) -> imports.Value:
    """The total of a sum over a block of clients, with one more summand."""
    block = self._known[analysis.part_of(name, analysis.BLOCK)]
    return self._function_of(name, analysis.ACCUMULATE)((block, summand))

  def with_block(self, name: str) -> imports.Value:
    """The total of a sum, with the total of one more block of clients."""
    parts = (analysis.TOTAL, analysis.BLOCK)
    totals = tuple(self._known[analysis.part_of(name, part)] for part in parts)
    return self._function_of(name, analysis.MERGE)(totals)

  def _function_of(self, name: str, index: int) -> Callable[[imports.Value], imports.Value]:
    """A function of a sum, by its place among the arguments."""
    return self._evaluate(analysis.element(self._named[name].block.argument, index), {})

  def _evaluate(self, block: _Block, bound: _Bound) -> Any:
    framework = tff.framework
    if isinstance(block, framework.Reference):
      if block.name in bound:
        return bound[block.name]
      if block.name == self._analysed.parameter:
        return self._argument((), block.type_signature)
      return self.value(block.name)
    if isinstance(block, framework.Selection):
      return self._selected(block, bound)
    if isinstance(block, framework.Struct):
      return tuple(self._evaluate(part, bound) for part in block.children())
    if isinstance(block, framework.CompiledComputation):
      return lambda argument: self.importer.call(block, argument)
    if isinstance(block, framework.Lambda):
      names = [block.parameter_name] if block.parameter_name is not None else []
      return lambda argument: self._evaluate(block.result, bound | dict.fromkeys(names, argument))
    if isinstance(block, framework.Block):
      bound = dict(bound)
      for name, local in block.locals:
        bound[name] = self._evaluate(local, bound)
      return self._evaluate(block.result, bound)
    if isinstance(block, framework.Literal):
      return tf.constant(block.value, block.type_signature.dtype)
    if isinstance(block, framework.Call):
      return self._called(block, bound)
    raise analysis.unsupported(f'{block.compact_representation():.80}', analysis.WRITE_OTHERWISE)

  def _called(self, block: tff.framework.Call, bound: _Bound) -> Any:
    function = block.function
    if not isinstance(function, tff.framework.Intrinsic):
      argument = block.argument and self._evaluate(block.argument, bound)
      return self._evaluate(function, bound)(argument)
    if function.uri in analysis.MAPS:
      mapped = self._evaluate(analysis.element(block.argument, 0), bound)
      return mapped(self._evaluate(analysis.element(block.argument, 1), bound))
    if function.uri in analysis.EVALS:
      return self._evaluate(block.argument, bound)(None)
    if function.uri in analysis.COPIES:
      return self._evaluate(block.argument, bound)
    if function.uri in analysis.SEQUENCES:
      return self._sequence(function.uri, block, bound)
    raise analysis.unsupported(f'the operation {function.uri}', analysis.WRITE_OTHERWISE)

  def _sequence(self, uri: str, block: tff.framework.Call, bound: _Bound) -> imports.Value:
    """The result of an operation on each element of a data set."""
    of = block.argument.type_signature
    if uri == analysis.SEQUENCE_SUM:
      return sequences.summed(self._evaluate(block.argument, bound), of)
    parts = [analysis.element(block.argument, index) for index in range(len(of))]
    value = functools.partial(self._evaluate, bound=bound)
    seed = self.importer.new_seed()
    if uri == analysis.SEQUENCE_REDUCE:
      data_set = sequences.elements(value(parts[0]), of[0])
      return sequences.reduced(self._each(parts[2], bound), data_set, value(parts[1]), seed)
    result = analysis.member_of(block.type_signature)
    if uri == analysis.SEQUENCE_MAP:
      data_set = sequences.elements(value(parts[1]), of[1])
      return sequences.mapped(self._each(parts[0], bound), data_set, result, seed)
    keys, database, select = value(parts[0]), value(parts[2]), self._each(parts[3], bound)
    data_set = tf.data.Dataset.from_tensor_slices(keys)
    return sequences.mapped(lambda own, key: select(own, (database, key)), data_set, result, seed)

  def _each(self, block: _Block, bound: _Bound) -> sequences.Function:
    """A function for the elements of a data set, in a graph of its own."""

    def call(seed: tf.Tensor, argument: imports.Value) -> imports.Value:
      importer = self.importer.within(seed)
      inside = Evaluator(self._analysed, self._named, importer, dict(self._known))
      result = inside._evaluate(block, bound)(argument)
      return tf.nest.pack_sequence_as(result, importer.cleaned(tf.nest.flatten(result)))

    return call

  def _selected(self, block: tff.framework.Selection, bound: _Bound) -> Any:
    source, path = analysis.selected(block)
    if (
      isinstance(source, tff.framework.Reference)
      and source.name == self._analysed.parameter
      and source.name not in bound
    ):
      return self._argument(tuple(path), block.type_signature)
    value = self._evaluate(source, bound)
    for index in path:
      value = value[index]
    return value

  def _argument(self, path: tuple[int, ...], of: tff.Type) -> imports.Value:
    """A part of the computation's argument."""
    name = analysis.input_name(self._analysed.parameter, path)
    if name in self._known:
      return self._known[name]
    parts = tff.structure.to_elements(of)
    return tuple(self._argument((*path, index), part) for index, (_, part) in enumerate(parts))
