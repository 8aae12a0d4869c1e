"""Builds the TensorFlow functions of a computation's stages."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import cancellation, execute
from tensorflow.python.eager import context as contexts

from fl_dpftrl.runtime import analysis, evaluation, failures, imports, randomness

_Block: TypeAlias = tff.framework.ComputationBuildingBlock


@dataclasses.dataclass(frozen=True)
class Step:
  """One TensorFlow function of a stage.

  Attributes:
    takes: names of the values that it needs.
    gives: names of the values that it computes.
  """

  takes: tuple[str, ...]
  gives: tuple[str, ...]
  _sizes: tuple[int, ...]
  _function: Any
  _resources: Sequence[Any]

  def __call__(
    self,
    seed: tf.Tensor,
    values: Callable[[str], Sequence[tf.Tensor]],
    manager: cancellation.CancellationManager | None = None,
  ) -> dict[str, tuple[tf.Tensor, ...]]:
    """The tensors of each value that it gives.

    Args:
      seed: int64, shape [2].
      values: tensors of a value that it takes.
      manager: cancels this call; of no other call, since each that fails cancels all of one.
    """
    arguments = [tensor for name in self.takes for tensor in values(name)]
    tensors = iter(self._run([seed, *arguments], manager or cancellation.CancellationManager()))
    return {
      name: tuple(next(tensors) for _ in range(size))
      for name, size in zip(self.gives, self._sizes, strict=True)
    }

  def _run(
    self, arguments: Sequence[tf.Tensor], manager: cancellation.CancellationManager
  ) -> Sequence[tf.Tensor]:
    # Not by calling the function: TensorFlow has one manager for all threads there.
    context = contexts.context()
    try:
      return execute.execute_with_cancellation(
        self._function.name.decode(),
        len(self._function.outputs),
        [*arguments, *self._function.captured_inputs],
        tuple(itertools.chain(*context.function_call_options.as_attrs().items())),
        context,
        manager,
      )
    except tf.errors.OpError as error:
      failed = failures.plain(error)
    # Out of the handling of an error, which would be shown as what came before.
    raise failed


@dataclasses.dataclass(frozen=True)
class Stage:
  """Work of one stage, in this order; None where there is none.

  Attributes:
    server: computes what all share.
    client: for one client, computes summands and what later stages need.
    add: takes totals and one client's summands, gives totals.
    sums: that the stage ends with.
    keeps: names of what clients compute and later stages need of each.
  """

  server: Step | None
  client: Step | None
  add: Step | None
  sums: tuple[str, ...]
  keeps: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Program:
  """A computation as TensorFlow functions.

  Attributes:
    parameter: name of its argument; None where it takes none.
    named: its values.
    stages: in their order.
    results: names of the values that are its result, part by part.
    databases: names of values that clients only select from, which takes no copy.
  """

  parameter: str | None
  named: dict[str, analysis.Named]
  stages: tuple[Stage, ...]
  results: tuple[str, ...]
  databases: frozenset[str]

  @property
  def has_clients(self) -> bool:
    return any(stage.client is not None for stage in self.stages)


def tensor_specs(of: tff.Type) -> list[tf.TensorSpec]:
  """Returns the specs of the tensors of a type; a data set is a variant.

  Raises:
    UnsupportedComputationError: where it is not made of tensors and data sets.
  """
  if isinstance(of, tff.StructType):
    return [spec for _, part in tff.structure.to_elements(of) for spec in tensor_specs(part)]
  if isinstance(of, tff.SequenceType):
    return [tf.TensorSpec([], tf.variant)]
  if isinstance(of, tff.TensorType):
    return [tff.types.type_to_tf_tensor_specs(of)]
  raise analysis.unsupported(
    f'a value of type {of.compact_representation():.80}', 'use tensors, structures and data sets'
  )


def build(comp: Any) -> Program:
  """Compiles a `tff.Computation`.

  Raises:
    UnsupportedComputationError: naming the part that cannot run in process.
  """
  return _Builder(analysis.analyse(comp), comp.type_signature).program()


class _Builder:
  """Compiles one computation, last stage first: later ones say what they need."""

  def __init__(self, analysed: analysis.Analysis, of: tff.FunctionType):
    self._analysed = analysed
    self._named = dict(analysed.named)
    # A computation of nothing gives the same in each call, if it has seeds.
    self._honours_seeds = of.parameter is None
    self._wanted: set[str] = set()

  def program(self) -> Program:
    results = self._results(self._analysed.result)
    self._wanted.update(results)
    stages = [self._stage(index) for index in reversed(range(self._analysed.num_stages))]
    return Program(
      self._analysed.parameter,
      self._named,
      tuple(reversed(stages)),
      results,
      self._analysed.databases(),
    )

  def _results(self, block: _Block) -> tuple[str, ...]:
    """Names for the parts of the result that are placed, or for all of it."""
    of = block.type_signature
    if isinstance(of, tff.StructType) and tff.types.contains(
      of, lambda part: isinstance(part, tff.FederatedType)
    ):
      return tuple(
        name for part in range(len(of)) for name in self._results(analysis.element(block, part))
      )
    name = f'result of {len(self._named)}'
    inside = [self._named[n] for n in self._analysed.names_in(block)]
    self._named[name] = analysis.Named(
      name=name,
      block=block,
      member=analysis.member_of(block.type_signature),
      per_client=any(one.per_client for one in inside),
      stage=max((one.stage for one in inside), default=0),
    )
    return (name,)

  def _stage(self, index: int) -> Stage:
    sums = self._analysed.sums[index]
    keeps = tuple(self._wanted_at(index, per_client=True))
    part = analysis.part_of
    totals = [part(name, analysis.TOTAL) for name in sums]
    # The sums first: they, too, say what they need.
    add = self._step(totals, index, per_client=False, adds=sums) if sums else None
    client_gives = self._wanted_at(index, per_client=True)
    client = None
    if client_gives:
      client = self._step(client_gives, index, per_client=True)
    self._wanted.update(part(name, analysis.ZERO) for name in sums)
    server_gives = self._wanted_at(index, per_client=False)
    server = None
    if server_gives:
      server = self._step(server_gives, index, per_client=False)
    return Stage(server, client, add, sums, keeps)

  def _wanted_at(self, stage: int, *, per_client: bool) -> list[str]:
    return [
      one.name
      for one in self._named.values()
      if one.name in self._wanted
      and one.stage == stage
      and one.per_client == per_client
      and one.block is not None
    ]

  def _is_inside(self, name: str, stage: int, per_client: bool) -> bool:
    one = self._named[name]
    return one.block is not None and one.stage == stage and one.per_client == per_client

  def _step(
    self, gives: Sequence[str], stage: int, *, per_client: bool, adds: Sequence[str] = ()
  ) -> Step:
    """A function for values of a stage, or for totals of its sums."""
    inside = lambda name: not adds and self._is_inside(name, stage, per_client)
    takes = self._needed(gives, inside, adds)
    self._wanted.update(takes)
    of_takes = [tensor_specs(self._named[name].member) for name in takes]
    of_gives = [tensor_specs(self._named[name].member) for name in gives]

    resources: list[Any] = []

    def trace(seed, *tensors):
      importer = imports.Importer(
        seed, honours_seeds=self._honours_seeds, of_clients=per_client or bool(adds)
      )
      remaining = iter(tensors)
      known = {name: _nested(self._named[name].member, remaining) for name in takes}
      evaluator = evaluation.Evaluator(self._analysed, self._named, importer, known)
      if adds:
        results = [evaluator.total(name) for name in adds]
      else:
        results = [evaluator.value(name) for name in gives]
      resources.extend(importer.resources)
      return importer.cleaned([tensor for result in results for tensor in _flat(result)])

    specs = [randomness.SEED_SPEC, *(spec for of in of_takes for spec in of)]
    unnamed = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
    function = tf.compat.v1.wrap_function(trace, unnamed)
    return Step(tuple(takes), tuple(gives), tuple(map(len, of_gives)), function, resources)

  def _needed(
    self, gives: Sequence[str], inside: Callable[[str], bool], adds: Sequence[str]
  ) -> list[str]:
    """Values from without that these are computed from."""
    if adds:
      found = [
        name
        for one in adds
        for name in (
          analysis.part_of(one, analysis.TOTAL),
          analysis.part_of(one, analysis.VALUE),
          *self._analysed.names_in(analysis.element(self._named[one].block.argument, 2)),
        )
      ]
      return list(dict.fromkeys(found))
    found, seen, left = [], set(), list(reversed(gives))
    while left:
      name = left.pop()
      if name in seen:
        continue
      seen.add(name)
      if not inside(name):
        found.append(name)
        continue
      left.extend(reversed(self._sources(name)))
    return found

  def _sources(self, name: str) -> list[str]:
    one = self._named[name]
    if analysis.is_sum(one):
      report = analysis.element(one.block.argument, 4)
      return [analysis.part_of(name, analysis.TOTAL), *self._analysed.names_in(report)]
    return self._analysed.names_in(one.block)


def _nested(of: tff.Type, tensors: Iterator[tf.Tensor]) -> imports.Value:
  if isinstance(of, tff.StructType):
    return tuple(_nested(part, tensors) for _, part in tff.structure.to_elements(of))
  return next(tensors)


def _flat(value: imports.Value) -> list[tf.Tensor]:
  if isinstance(value, tuple):
    return [tensor for part in value for tensor in _flat(part)]
  return [value]
