"""Builds the TensorFlow functions of a computation's stages."""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import cancellation, execute
from tensorflow.python.eager import context as contexts
from tensorflow_federated.python.core.impl.types import type_conversions

from tff_inprocess import analysis, data_sets, evaluation, failures, imports, randomness

_Block: TypeAlias = tff.framework.ComputationBuildingBlock

# A client draws by the first two numbers; adding it up, where that draws, by the others.
CLIENT_SEED_SPEC = tf.TensorSpec([4], tf.int64)


# Of a value that a step takes: the number of its tensors, or the loose kind of its batches.
Layout: TypeAlias = tuple[int | data_sets.Kind, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
  """One TensorFlow function of a stage.

  Attributes:
    takes: names of the values that it needs.
    gives: names of the values that it computes.
    sizes: number of tensors of each value that it computes.
    function: (seed, *tensors) → tensors, a `wrap_function` of TensorFlow.
    resources: kept alive for it.
  """

  takes: tuple[str, ...]
  gives: tuple[str, ...]
  sizes: tuple[int, ...]
  function: Any
  resources: Sequence[Any]
  _by_layout: dict[Layout, 'Step'] = dataclasses.field(default_factory=dict, repr=False)
  _making: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)
  _compiled: threading.Event = dataclasses.field(default_factory=threading.Event, repr=False)

  def cutting(self, layout: Layout) -> 'Step':
    """Returns the step that cuts batches from arrays itself, where this one takes data sets."""
    with self._making:
      if layout not in self._by_layout:
        self._by_layout[layout] = self._cutting(layout)
      return self._by_layout[layout]

  def _cutting(self, layout: Layout) -> 'Step':
    remaining = iter(self.function.inputs)
    parts: list[tuple[data_sets.Kind | None, list[tf.TensorSpec]]] = []
    for one in (1, *layout):  # The seed first.
      size, kind = (one, None) if isinstance(one, int) else (1, one)
      replaced = [tf.TensorSpec(of.shape, of.dtype) for of in itertools.islice(remaining, size)]
      parts.append((kind, data_sets.specs(kind) if kind else replaced))
    graph, captured = self.function.graph.as_graph_def(), self.function.captured_inputs

    def trace(*tensors):
      given, inputs = iter(tensors), []
      for kind, specs in parts:
        own = [next(given) for _ in specs]
        inputs += own if kind is None else [data_sets.cut(kind, own[:-1], own[-1])]
      inputs += map(tf.identity, captured)
      return tf.graph_util.import_graph_def(
        graph,
        input_map={of.name: tensor for of, tensor in zip(self.function.inputs, inputs)},
        return_elements=[of.name for of in self.function.outputs],
        name='cut',
      )

    specs = [spec for _, of_part in parts for spec in of_part]
    function = tf.compat.v1.wrap_function(trace, specs)
    return Step(self.takes, self.gives, self.sizes, function, self.resources)

  def __call__(
    self,
    seed: tf.Tensor,
    values: Callable[[str], Sequence[tf.Tensor]],
    manager: cancellation.CancellationManager | None = None,
    *,
    place: str = '',
    show_errors: bool = False,
  ) -> dict[str, tuple[tf.Tensor, ...]]:
    """Returns the tensors of each value that it gives, of the values that it takes.

    The manager cancels this call; of no other call, since each that fails cancels all of one.
    """
    arguments = [tensor for name in self.takes for tensor in values(name)]
    try:
      self._compile([seed, *arguments])
      results = self._run([seed, *arguments], manager or cancellation.CancellationManager())
    except Exception as error:
      failed = failures.of_operation(error, self.function.graph, place=place, show=show_errors)
    else:
      tensors = iter(results)
      return {
        name: tuple(next(tensors) for _ in range(size))
        for name, size in zip(self.gives, self.sizes, strict=True)
      }
    # Out of the handling of an error, which would be shown as what came before.
    raise failed

  def _compile(self, arguments: Sequence[tf.Tensor]) -> None:
    """Makes TensorFlow optimise the function once; calls at the same time would each do it."""
    if self._compiled.is_set():
      return
    with self._making:
      if not self._compiled.is_set():
        cancelled = cancellation.CancellationManager()
        cancelled.start_cancel()
        with contextlib.suppress(tf.errors.CancelledError):  # Before any operation has begun.
          self._run(arguments, cancelled)
        self._compiled.set()

  def _run(
    self, arguments: Sequence[tf.Tensor], manager: cancellation.CancellationManager
  ) -> Sequence[tf.Tensor]:
    # Not by calling the function: TensorFlow has one manager for all threads there.
    context = contexts.context()
    return execute.execute_with_cancellation(
      self.function.name.decode(),
      len(self.function.outputs),
      [*arguments, *self.function.captured_inputs],
      tuple(itertools.chain(*context.function_call_options.as_attrs().items())),
      context,
      manager,
    )


@dataclasses.dataclass(frozen=True)
class Stage:
  """Work of one stage, in this order; None where there is none.

  Attributes:
    server: computes what all share.
    client: for one client, takes the totals of its block so far and gives them with
      its summands, beside what later stages need of it.
    merge: takes first the totals so far, then those of the blocks that come next, both in the
      order of sums; gives the totals of both, by the names of the latter.
    sums: that the stage ends with.
    keeps: names of what clients compute and later stages need of each.
  """

  server: Step | None
  client: Step | None
  merge: Step | None
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
  """Returns the specs of the tensors of a type; a data set is a variant."""
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
  """Compiles a `tff.Computation`."""
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
    """Compiles a stage, last step first."""
    sums = self._analysed.sums[index]
    keeps = tuple(self._wanted_at(index, per_client=True))
    part = analysis.part_of
    merge = self._merging_step(sums) if sums else None
    self._wanted.update(part(name, analysis.VALUE) for name in sums)
    gives = self._wanted_at(index, per_client=True)
    client = self._client_step(gives, index, sums, keeps) if gives else None
    self._wanted.update(part(name, analysis.ZERO) for name in sums)
    gives = self._wanted_at(index, per_client=False)
    server = self._server_step(gives, index) if gives else None
    return Stage(server, client, merge, sums, keeps)

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

  def _server_step(self, gives: Sequence[str], stage: int) -> Step:
    """A function for what all share at a stage."""
    takes = self._needed(gives, stage, per_client=False)

    def compute(seed, known):
      evaluator = self._evaluator(seed, known, of_clients=False)
      return [evaluator.value(name) for name in gives], [evaluator]

    return self._step(takes, gives, compute, randomness.SEED_SPEC)

  def _client_step(
    self, values: Sequence[str], stage: int, sums: Sequence[str], keeps: Sequence[str]
  ) -> Step:
    """A function for one client, which adds its summands to the totals of its block."""
    part = analysis.part_of
    blocks = [part(name, analysis.BLOCK) for name in sums]
    adding = [name for one in sums for name in self._names_in_function(one, analysis.ACCUMULATE)]
    takes = [*blocks, *self._needed([*values, *adding], stage, per_client=True)]

    def compute(seed, known):
      # In this order, by which the parts of a client's work have their random numbers.
      client = self._evaluator(seed[:2], known, of_clients=True)
      computed = {name: client.value(name) for name in values}
      adder = self._evaluator(seed[2:], known, of_clients=True)
      totals = [adder.with_summand(name, computed[part(name, analysis.VALUE)]) for name in sums]
      return [*totals, *(computed[name] for name in keeps)], [client, adder]

    return self._step(takes, [*blocks, *keeps], compute, CLIENT_SEED_SPEC)

  def _merging_step(self, sums: Sequence[str]) -> Step:
    """A function for the totals of all blocks so far, and of one more."""
    part = analysis.part_of
    totals = [part(name, analysis.TOTAL) for name in sums]
    blocks = [part(name, analysis.BLOCK) for name in sums]
    others = [name for one in sums for name in self._names_in_function(one, analysis.MERGE)]

    def compute(seed, known):
      evaluator = self._evaluator(seed, known, of_clients=True)
      return [evaluator.with_block(name) for name in sums], [evaluator]

    takes = list(dict.fromkeys([*totals, *blocks, *others]))
    return self._step(takes, blocks, compute, randomness.SEED_SPEC)

  def _evaluator(
    self, seed: tf.Tensor, known: dict[str, Any], *, of_clients: bool
  ) -> evaluation.Evaluator:
    importer = imports.Importer(seed, honours_seeds=self._honours_seeds, of_clients=of_clients)
    return evaluation.Evaluator(self._analysed, self._named, importer, known)

  def _step(
    self,
    takes: Sequence[str],
    gives: Sequence[str],
    compute: Callable[..., tuple[Sequence[imports.Value], Sequence[evaluation.Evaluator]]],
    seed: tf.TensorSpec,
  ) -> Step:
    """Compiles a function (seed, known values) → (values to give, what evaluated them)."""
    self._wanted.update(takes)
    of_takes = [tensor_specs(self._named[name].member) for name in takes]
    of_gives = [tensor_specs(self._named[name].member) for name in gives]
    resources: list[Any] = []

    def trace(seed, *tensors):
      remaining = iter(tensors)
      known = {name: _nested(self._named[name].member, remaining) for name in takes}
      results, evaluators = compute(seed, known)
      flat = [tensor for result in results for tensor in _flat(result)]
      for one in reversed(evaluators):
        resources.extend(one.importer.resources)
        flat = one.importer.cleaned(flat)
      return flat

    specs = [seed, *(spec for of in of_takes for spec in of)]
    unnamed = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
    function = tf.compat.v1.wrap_function(trace, unnamed)
    return Step(tuple(takes), tuple(gives), tuple(map(len, of_gives)), function, resources)

  def _needed(self, gives: Sequence[str], stage: int, *, per_client: bool) -> list[str]:
    """Values from without that these are computed from."""
    outside, seen, left = [], set(), list(reversed(gives))
    while left:
      name = left.pop()
      if name in seen:
        continue
      seen.add(name)
      if not self._is_inside(name, stage, per_client):
        outside.append(name)
        continue
      left.extend(reversed(self._sources(name)))
    return outside

  def _names_in_function(self, of_sum: str, index: int) -> list[str]:
    """Values that a function of a sum refers to beside its arguments."""
    return self._analysed.names_in(analysis.element(self._named[of_sum].block.argument, index))

  def _sources(self, name: str) -> list[str]:
    one = self._named[name]
    if analysis.is_sum(one):
      report = analysis.element(one.block.argument, analysis.REPORT)
      return [analysis.part_of(name, analysis.TOTAL), *self._analysed.names_in(report)]
    return self._analysed.names_in(one.block)


def _nested(of: tff.Type, tensors: Iterator[tf.Tensor]) -> imports.Value:
  if isinstance(of, tff.StructType):
    return tuple(_nested(part, tensors) for _, part in tff.structure.to_elements(of))
  if isinstance(of, tff.SequenceType):
    return data_sets.lean(next(tensors), type_conversions.type_to_tf_structure(of.element))
  return next(tensors)


def _flat(value: imports.Value) -> list[tf.Tensor]:
  if isinstance(value, tuple):
    return [tensor for part in value for tensor in _flat(part)]
  return [value]
