"""Computations with clients, cut at their sums."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow_federated as tff

from fl_dpftrl.learning import workers


class SplitContext(tff.framework.SyncContext):
  """Runs parts of the clients' work elsewhere, and all else at the server.

  Parts are added up in their order. Computations with clients may have sums that
  do not follow from each other, as rounds of learning processes do.

  Args:
    server: runs what has no clients.
    num_parts: of the clients, at most.
    run_parts: (computation, arguments) → its result for each of them.
  """

  def __init__(
    self,
    server: tff.framework.SyncContext,
    num_parts: int,
    run_parts: Callable[[Any, Sequence[Any]], list[Any]],
  ):
    self._server, self._num_parts = server, num_parts
    self._run_parts = run_parts
    # By identity: to compare computations is to serialise their graphs.
    self._forms: dict[int, tuple[Any, tff.framework.MergeableCompForm]] = {}

  def invoke(self, comp: Any, arg: Any) -> Any:
    of = comp.type_signature.parameter
    count = max(map(len, _clients(arg, of)), default=0)
    if not count:
      return self._server.invoke(comp, arg)
    if any(_clients_in(comp.type_signature.result)):
      raise ValueError(
        'a computation that is cut at its sums must have its result at the'
        f' server, got {comp.type_signature.result}'
      )
    form = self._form(comp)
    num_parts = min(self._num_parts, count)
    bounds = [count * i // num_parts for i in range(num_parts + 1)]
    sums = self._run_parts(
      form.up_to_merge, [_only(arg, of, slice(*part)) for part in zip(bounds, bounds[1:])]
    )
    pair = tff.structure.Struct.unnamed
    total = functools.reduce(lambda a, b: self._server.invoke(form.merge, pair(a, b)), sums)
    return self._server.invoke(form.after_merge, pair(_only(arg, of, slice(0)), total))

  def _form(self, comp: Any) -> tff.framework.MergeableCompForm:
    if id(comp) not in self._forms:
      # Only plain sums are cut.
      form = tff.backends.native.compile_to_mergeable_comp_form(workers.with_plain_sums(comp))
      self._forms[id(comp)] = comp, form
    return self._forms[id(comp)][1]


def _clients(value: Any, of: tff.Type | None) -> Iterator[Sequence[Any]]:
  """Yields the values that are placed at clients, one element per client."""
  if isinstance(of, tff.StructType):
    elements = tff.structure.from_container(value)
    for element, (_, type_of) in zip(elements, tff.structure.to_elements(of)):
      yield from _clients(element, type_of)
  elif _is_clients(of):
    yield value


def _clients_in(of: tff.Type) -> Iterator[bool]:
  """Yields for each value whether it is placed at clients."""
  if isinstance(of, tff.StructType):
    for _, type_of in tff.structure.to_elements(of):
      yield from _clients_in(type_of)
  else:
    yield isinstance(of, tff.FederatedType) and of.placement is tff.CLIENTS


def _only(value: Any, of: tff.Type, part: slice) -> Any:
  """The value for these clients."""
  if isinstance(of, tff.StructType):
    elements = tff.structure.from_container(value)
    return tff.structure.Struct(
      [
        (name, _only(element, type_of, part))
        for element, (name, type_of) in zip(elements, tff.structure.to_elements(of))
      ]
    )
  return value[part] if _is_clients(of) else value


def _is_clients(of: tff.Type | None) -> bool:
  return isinstance(of, tff.FederatedType) and of.placement is tff.CLIENTS and not of.all_equal
