"""Cuts a computation into stages: at the server, at each client, sums.

A TFF computation in call-dominant form is a list of named values, each the result
of one call. Every name gets a placement and a stage: values at stage s follow from
the computation's argument and from sums of stages before s. So all of one stage's
work at the server, of one client, and of one sum can be one TensorFlow graph each.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow_federated as tff

# Separates the name of a sum from that of a part of it; in no name of TFF's.
_PART = '/'
VALUE, ZERO, BLOCK, TOTAL = 'value', 'zero', 'block', 'total'
SELECT, SEQUENCE_MAP = 'federated_select', 'sequence_map'
SEQUENCE_REDUCE, SEQUENCE_SUM = 'sequence_reduce', 'sequence_sum'
SEQUENCES = (SELECT, SEQUENCE_MAP, SEQUENCE_REDUCE, SEQUENCE_SUM)
_WRITE_A_FUNCTION = 'call every function inside the computation'
WRITE_OTHERWISE = 'write it with federated_map and federated_aggregate'

_Block: TypeAlias = tff.framework.ComputationBuildingBlock
_SUM = tff.framework.FEDERATED_AGGREGATE.uri
MAPS = (
  tff.framework.FEDERATED_MAP.uri,
  tff.framework.FEDERATED_MAP_ALL_EQUAL.uri,
  tff.framework.FEDERATED_APPLY.uri,
)
EVALS = (tff.framework.FEDERATED_EVAL_AT_CLIENTS.uri, tff.framework.FEDERATED_EVAL_AT_SERVER.uri)
COPIES = (
  tff.framework.FEDERATED_BROADCAST.uri,
  tff.framework.FEDERATED_VALUE_AT_CLIENTS.uri,
  tff.framework.FEDERATED_VALUE_AT_SERVER.uri,
  tff.framework.FEDERATED_ZIP_AT_CLIENTS.uri,
  tff.framework.FEDERATED_ZIP_AT_SERVER.uri,
)


# Arguments of a sum.
_SUMMAND, _ZERO, ACCUMULATE, MERGE, REPORT = range(5)


class UnsupportedComputationError(NotImplementedError):
  """A computation that cannot run in this process; the message says why."""


def unsupported(part: str, instead: str) -> UnsupportedComputationError:
  """Returns the error for a part that cannot run, with what to write instead of it."""
  return UnsupportedComputationError(f'{part} cannot run in this process; {instead}')


def part_of(name: str, part: str) -> str:
  """Names a sum's part: VALUE (summand), ZERO, BLOCK (of some clients), or TOTAL (of all)."""
  return f'{name}{_PART}{part}'


@dataclasses.dataclass(frozen=True)
class Named:
  """A value of a computation.

  Attributes:
    name: name that is unique in the computation.
    block: expression that computes it; None for a part of the argument.
    member: type of the value, without placement.
    per_client: whether each client has its own value; else all share one.
    stage: least number of sums, one after another, that come before it.
  """

  name: str
  block: Any
  member: tff.Type
  per_client: bool
  stage: int


@dataclasses.dataclass(frozen=True)
class Analysis:
  """A computation as named values.

  Attributes:
    parameter: name of its argument; None if it takes none.
    named: all values by name, in an order in which they can be computed.
    sums: names of the sums of each stage; a sum of stage s has parts VALUE, ZERO
      and BLOCK of stage s, and is itself of stage s + 1.
    result: refers to the values that are its result.
  """

  parameter: str | None
  named: dict[str, Named]
  sums: tuple[tuple[str, ...], ...]
  result: _Block

  @property
  def num_stages(self) -> int:
    return len(self.sums)

  def names_in(self, block: _Block) -> list[str]:
    """Returns the named values that an expression refers to, each once."""
    return list(dict.fromkeys(_names_in(block, self.parameter, self.named)))

  def databases(self) -> frozenset[str]:
    """Returns the values that clients select from, and use for nothing else."""
    selected, used = set(), set()
    for one in self.named.values():
      if one.per_client and one.block is not None:
        if is_select(one):
          selected.update(self.names_in(element(one.block.argument, 2)))
          used.update(self.names_in(element(one.block.argument, 0)))
        else:
          used.update(self.names_in(one.block))
    return frozenset(selected - used)


def analyse(comp: Any) -> Analysis:
  """Names the values of a `tff.Computation` and assigns them to stages.

  Secure sums become sums whose bounds are checked, as in TFF's own tests.
  """
  if not isinstance(comp, tff.framework.ConcreteComputation):
    raise unsupported(
      f'a computation of class {type(comp).__name__}',
      'make it with tff.federated_computation or tff.tensorflow.computation',
    )
  block = comp.to_building_block()
  if _has_secure_sums(block):
    block = tff.backends.test.replace_secure_intrinsics_with_bodies(comp).to_building_block()
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
  parameter, local_values, result = _calls_of(tff.framework.to_call_dominant(block))
  named: dict[str, Named] = {}
  if parameter is not None:
    for one in _inputs(*parameter):
      named[one.name] = one
  name_of_argument = parameter and parameter[0]
  for name, value in local_values:
    for one in _named(name, value, name_of_argument, named):
      named[one.name] = one
  num_stages = 1 + max((one.stage for one in named.values()), default=0)
  sums: list[list[str]] = [[] for _ in range(num_stages)]
  for one in named.values():
    if is_sum(one):
      sums[one.stage - 1].append(one.name)
  return Analysis(name_of_argument, named, tuple(map(tuple, sums)), result)


def _has_secure_sums(block: _Block) -> bool:
  if isinstance(block, tff.framework.Intrinsic):
    return 'secure' in block.uri
  return any(map(_has_secure_sums, block.children()))


def is_sum(one: Named) -> bool:
  """Returns whether a value is a sum over clients."""
  return _is_call_of(_SUM, one)


def is_select(one: Named) -> bool:
  """Returns whether a value is what clients select from a database."""
  return _is_call_of(SELECT, one)


def _is_call_of(uri: str, one: Named) -> bool:
  return (
    isinstance(one.block, tff.framework.Call)
    and isinstance(one.block.function, tff.framework.Intrinsic)
    and one.block.function.uri == uri
  )


def element(block: _Block, index: int) -> _Block:
  """Returns one element of an expression of a structure."""
  if isinstance(block, tff.framework.Struct):
    return block[index]
  return tff.framework.Selection(block, index=index)


def selected(block: _Block) -> tuple[_Block, list[int]]:
  """Returns the expression that another selects a part of, and the path to the part."""
  path: list[int] = []
  while isinstance(block, tff.framework.Selection):
    path.insert(0, block.as_index())
    block = block.source
  return block, path


def member_of(of: tff.Type) -> tff.Type:
  """Returns a type without the placements in it."""
  if isinstance(of, tff.FederatedType):
    return of.member
  if isinstance(of, tff.StructType):
    return tff.StructType(
      [
        (name, member_of(part)) if name else member_of(part)
        for name, part in tff.structure.to_elements(of)
      ]
    )
  return of


def is_per_client(of: tff.Type) -> bool:
  return isinstance(of, tff.FederatedType) and of.placement is tff.CLIENTS and not of.all_equal


def input_name(parameter: str | None, path: Sequence[int]) -> str:
  return _PART.join([str(parameter), *map(str, path)])


def _calls_of(block: _Block) -> tuple[Any, Sequence[Any], _Block]:
  """((name, type) of the argument, (name, call) of each value, result)."""
  if isinstance(block, tff.framework.CompiledComputation):
    # Plain TensorFlow: one call of itself.
    of = block.type_signature.parameter
    argument = None if of is None else tff.framework.Reference('argument', of)
    call = tff.framework.Call(block, argument)
    result = tff.framework.Reference('result', call.type_signature)
    return of and ('argument', of), [('result', call)], result
  if not isinstance(block, tff.framework.Lambda):
    raise unsupported(f'a computation of type {block.type_signature!s:.80}', _WRITE_A_FUNCTION)
  parameter = None
  if block.parameter_name is not None:
    parameter = block.parameter_name, block.parameter_type
  body = block.result
  if isinstance(body, tff.framework.Block):
    return parameter, body.locals, body.result
  return parameter, [], body


def _inputs(parameter: str, of: tff.Type, path: tuple[int, ...] = ()) -> Iterator[Named]:
  """Yields a named value for each argument part that is placed or a tensor."""
  if isinstance(of, tff.StructType):
    for index, (_, part) in enumerate(tff.structure.to_elements(of)):
      yield from _inputs(parameter, part, (*path, index))
    return
  if isinstance(of, tff.FunctionType):
    raise unsupported(f'an argument that is a function, {of!s:.80},', _WRITE_A_FUNCTION)
  yield Named(
    name=input_name(parameter, path),
    block=None,
    member=member_of(of),
    per_client=is_per_client(of),
    stage=0,
  )


def _named(
  name: str, block: _Block, parameter: str | None, known: dict[str, Named]
) -> Iterator[Named]:
  """Yields the value of a call; for a sum, its parts come first."""
  of = block.type_signature
  from_names = [known[n] for n in _names_in(block, parameter, known)]
  stage = max((one.stage for one in from_names), default=0)
  here = functools.partial(Named, stage=stage)
  if not isinstance(block, tff.framework.Call):
    per_client = any(one.per_client for one in from_names)
    yield here(name, block, member_of(of), per_client)
    return
  function = block.function
  if not isinstance(function, tff.framework.Intrinsic):
    if not isinstance(function, tff.framework.CompiledComputation):
      raise unsupported(f'a call of {function.compact_representation():.80}', _WRITE_A_FUNCTION)
    yield here(name, block, member_of(of), False)
    return
  uri = function.uri
  if uri == _SUM:
    summands, zero = element(block.argument, _SUMMAND), element(block.argument, _ZERO)
    yield here(part_of(name, VALUE), summands, member_of(summands.type_signature), True)
    total = member_of(element(block.argument, ACCUMULATE).type_signature.parameter[0])
    yield here(part_of(name, ZERO), zero, member_of(zero.type_signature), False)
    yield here(part_of(name, BLOCK), None, total, False)
    yield Named(part_of(name, TOTAL), None, total, False, stage + 1)
    yield Named(name, block, member_of(of), False, stage + 1)
    return
  if uri not in (*MAPS, *EVALS, *COPIES, *SEQUENCES):
    raise unsupported(f'the operation {uri}', WRITE_OTHERWISE)
  # Clients that all start from the same may yet draw different random numbers.
  per_client = is_per_client(of) and uri not in (
    tff.framework.FEDERATED_BROADCAST.uri,
    tff.framework.FEDERATED_VALUE_AT_CLIENTS.uri,
  )
  yield here(name, block, member_of(of), per_client)


def _names_in(
  block: _Block | None, parameter: str | None, known: dict[str, Named]
) -> Iterator[str]:
  """Yields names of the argument parts and values that an expression uses."""
  if block is None:
    return
  source, path = selected(block)
  if isinstance(source, tff.framework.Reference):
    if source.name == parameter:
      yield from _inputs_at(parameter, path, known)
    elif source.name in known:  # Others are bound within the expression.
      yield source.name
    return
  for child in block.children():
    yield from _names_in(child, parameter, known)


def _inputs_at(
  parameter: str | None, path: Sequence[int], known: dict[str, Named]
) -> Iterator[str]:
  """Yields a known argument part, else its known parts, else one around it."""
  for length in range(len(path) + 1):
    whole = input_name(parameter, path[:length])
    if whole in known:
      yield whole
      return
  prefix = input_name(parameter, path) + _PART
  yield from (name for name in known if name.startswith(prefix))
