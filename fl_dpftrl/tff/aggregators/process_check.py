"""Check of a process for what it learns from clients beside the release of an aggregator.

A guarantee covers what the aggregator releases, where what a client adds depends on that client
alone. The check follows the clients' data through one round of a process, to a fixed point over its
state, and ends only at that release.
"""

import collections
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow_federated as tff

from fl_dpftrl.tff.aggregators import (
  bound_parameters,
  dp_query,
  expressions,
  factories,
  process_flow,
)

_PROTECTED = ('state', 'result')
_OF_NOISE = ('row_stddev',)  # A field that only a noise state has.
_METRICS = ('metrics', 'measurements')
_NONE = 'nothing in its rounds is released by the aggregator: give it as model_aggregator'
_OTHER = (
  'it must be built with the aggregator as its model_aggregator: its noise is that of another'
  ' strategy, seed, noise_multiplier, clip_norm, zeroing_norm or report_goal'
)
_NOT_ADVANCED = (
  'the noise state of the release must come from the state of the round, go into that of the next'
  ' round, and begin as the aggregator begins it'
)
_SEVERAL = (
  'the aggregator releases {} sums in a round, and replay accounts for one: give every other sum'
  ' up, or account for both by hand'
)
_MIXED = (
  "what a client adds to the aggregator's sum depends on data of other clients in the same round,"
  ' which the server sent it: clip_norm does not bound what one device changes'
)
_SENT = (
  'what the server sends to clients depends on data of other clients, or on secrets of the noise'
)
_KEEPS = (
  "may keep or tell clients' data outside of the tensors of its call: leave it out, or name it in"
  ' trusted_operations'
)
_BESIDE = "clients' data other than by the aggregator's release"
_EXPOSED = 'the seed or the buffers of the noise'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessCheck:
  """Result of `check_process`.

  Paths are joined by dots. Tensors of one list have one path.

  Attributes:
    unprotected: paths of the state and of the result that depend on clients' data other than
      through the aggregator's release.
    exposed: paths, outside of the noise's own state, that depend on its seed or buffers.
    metrics: paths of the metrics that depend on clients' data and lack the noise. No guarantee
      covers them: whoever sees them has to be trusted with clients' data.
    releases: noised sums of the aggregator in a round.
    reasons: why the aggregator's guarantee is not the process's, in phrases; empty if it is.
    trusted: operations that only `trusted_operations` let pass.
  """

  unprotected: tuple[str, ...]
  exposed: tuple[str, ...]
  metrics: tuple[str, ...]
  releases: int
  reasons: tuple[str, ...]
  trusted: tuple[str, ...] = ()

  @property
  def ok(self) -> bool:
    """True if state, result and model are protected as the aggregator's guarantee says."""
    return not self.reasons

  @property
  def reason(self) -> str | None:
    """All reasons in one line; None if there is none."""
    return '; '.join(self.reasons) or None

  def require(self) -> 'ProcessCheck':
    """Returns the check itself."""
    if self.reasons:
      raise ValueError(f'process is not protected by the aggregator: {self.reasons[0]}')
    return self

  def __str__(self) -> str:
    verdict = 'protected by the aggregator' if self.ok else f'NOT PROTECTED: {self.reason}'
    listed = {'metrics that are not private': self.metrics, 'trusted operations': self.trusted}
    lines = [f'{name}: {", ".join(of) or "none"}' for name, of in listed.items()]
    return '\n'.join([verdict, f'releases in a round: {self.releases}', *lines])


def check_process(
  process: Any,
  aggregator: factories.CorrelatedNoiseFactory,
  *,
  trusted_operations: Sequence[str] = (),
) -> ProcessCheck:
  """Finds what a process learns from clients beside the release of its aggregator.

  Clients' data are followed through `process.next`, tensor by tensor, into the state and out of
  it in later rounds. All that may depend on them counts, also where it happens not to. The release
  is what is computed from updates and state exactly as the aggregator does it. The graphs of
  `initialize`, `next` and `get_model_weights` may have no operations but those that keep nothing
  from call to call and tell nothing to files, other processes or Python.

  What Python does around `next` is not seen. The number of clients in a round is no data of
  theirs: zero-out adjacency does not protect it.

  Args:
    process: learning process, or another process of TFF with `initialize` and `next`.
    aggregator: the one that the process was built with.
    trusted_operations: names of other operations, such as 'PyFunc', of which you know that they
      keep and tell nothing that depends on clients' data. The guarantee then assumes it.

  Raises:
    ValueError: unless these are a process of TFF and a CorrelatedNoiseFactory.
  """
  if type(aggregator) is not factories.CorrelatedNoiseFactory:  # A class that inherits may do more.
    raise ValueError(f'aggregator must be a CorrelatedNoiseFactory, got {type(aggregator)}')
  if isinstance(trusted_operations, str) or not all(isinstance(o, str) for o in trusted_operations):
    raise ValueError(f'trusted_operations must be names in a tuple, got {trusted_operations!r:.80}')
  flow = process_flow.ProcessFlow(process)
  noise_calls = dict(_found(flow, aggregator))
  releases = {node: release for node, release in noise_calls.items() if release is not None}
  hiding = {node: release for node, release in releases.items() if release.is_advanced}
  secrets = {number for release in releases.values() for number in release.secrets}
  masks = flow.masks(hiding, secrets)
  results = zip(flow.paths, flow.next.result)
  tainted = [path for path, tensor in results if masks.of(tensor) & process_flow.CLIENTS]
  metrics = [path for path in tainted if path[0] not in _PROTECTED]
  unprotected = _grouped(path for path in tainted if path[0] in _PROTECTED)
  exposed = _grouped(_exposed(flow, masks, secrets))
  refusals = list(flow.refused(masks, hiding))
  refused = [place for operation, place in refusals if operation not in trusted_operations]
  sent = [node.inputs[0] for node in flow.next.nodes if node.kind == expressions.SENT]
  added = [tensor for release in releases.values() for tensor in release.updates]
  reasons = (
    (not releases, _OTHER if noise_calls else _NONE),
    (len(hiding) < len(releases), _NOT_ADVANCED),
    (refused, f'{_listed(refused, 1)} {_KEEPS}'),
    (len(releases) > 1, _SEVERAL.format(len(releases))),
    (unprotected, f'{_listed(unprotected)} {_depends(unprotected)} on {_BESIDE}'),
    (exposed, f'{_listed(exposed)} {_depends(exposed)} on {_EXPOSED}'),
    (masks.of(*added) & process_flow.SHARED, _MIXED),
    (masks.of(*sent), _SENT),
  )
  return ProcessCheck(
    unprotected=unprotected,
    exposed=exposed,
    metrics=_grouped(path[1:] if path[0] in _METRICS else path for path in metrics),
    releases=len(releases),
    reasons=tuple(reason for holds, reason in reasons if holds),
    trusted=tuple(dict.fromkeys(name for name, _ in refusals if name in trusted_operations)),
  )


def _found(
  flow: process_flow.ProcessFlow, aggregator: factories.CorrelatedNoiseFactory
) -> Iterator[tuple[expressions.Node, process_flow.Release | None]]:
  """Yields the calls that take and give a noise state, and the aggregator's releases of them."""
  reference = functools.cache(lambda *of: _reference(aggregator, *of))
  for node in flow.next.nodes:
    kind = None if node.graph is None else node.graph.type
    if kind is not None and _has_noise(kind.parameter) and _has_noise(kind.result):
      # A query's graph takes a sum and a noise state; the factory's own take more.
      expected_flow = reference(_packed(kind.result[0]), len(kind.parameter) == 2)
      yield node, None if expected_flow is None else _release(flow, node, expected_flow)


def _has_noise(kind: tff.Type | None) -> bool:
  return kind is not None and any(path[-1:] == _OF_NOISE for path, _ in expressions.paths(kind))


def _packed(kind: tff.Type) -> tff.Type:
  """Returns a type with containers of Python, which TensorFlow needs."""
  if not isinstance(kind, tff.StructType):
    return kind
  parts = [(name, _packed(part)) for name, part in tff.structure.to_elements(kind)]
  is_named = bool(parts) and parts[0][0] is not None
  return tff.to_type(collections.OrderedDict(parts) if is_named else [part for _, part in parts])


def _reference(
  aggregator: factories.CorrelatedNoiseFactory, value_type: tff.Type, is_query: bool
) -> process_flow.ProcessFlow | None:
  """Returns the aggregator's own process for updates of a type; None if it has none."""
  try:
    if not is_query:
      return process_flow.ProcessFlow(aggregator.created(value_type))
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    query = dp_query.CorrelatedNoiseQuery(aggregator, specs)
    query_process = tff.aggregators.DifferentiallyPrivateFactory(query).create(value_type)
    return process_flow.ProcessFlow(query_process)
  except ValueError:
    return None  # Not a type of updates.


def _release(
  flow: process_flow.ProcessFlow, node: expressions.Node, reference: process_flow.ProcessFlow
) -> process_flow.Release | None:
  """Returns the release of a call whose result is computed as the reference's is, if it is."""
  same: dict[Any, Any] = {}
  result = reference.next.result[reference.num_state]
  if not expressions.match(result, expressions.Tensor(node, result.number), same):
    return None
  # Metrics of other names may be computed alike.
  graphs: list[Any] = [node.graph, result.node.graph]
  called, expected = (list(expressions.paths(graph.type.result)) for graph in graphs)
  if called != expected:
    return None
  (end,) = [path for path in reference.paths[: reference.num_state] if path[-1:] == _OF_NOISE]
  updates, noise, public = (list[expressions.Tensor]() for _ in range(3))
  secret_outputs, secrets, begins, is_advanced = set[int](), set[int](), dict[Any, Any](), True
  for i, (argument, at_clients) in enumerate(zip(reference.arguments(), reference.at_clients)):
    if argument not in same:
      continue
    tensor, path = same[argument], reference.paths[i]
    if at_clients or path[: len(end) - 1] != end[:-1]:
      (updates if at_clients else public).append(tensor)
      continue
    noise.append(tensor)
    next_tensor = expressions.Tensor(node, reference.next.result[i].number)
    is_state = tensor in flow.arguments()[: flow.num_state]
    is_advanced &= (
      is_state
      and flow.next.result[tensor.number] == next_tensor
      and expressions.match(reference.start.result[i], flow.start.result[tensor.number], begins)
    )
    if path[len(end) - 1] in bound_parameters.SECRET:
      secret_outputs.add(next_tensor.number)
      secrets |= {tensor.number} if is_state else set()
  return process_flow.Release(updates, noise, public, secret_outputs, secrets, is_advanced)


def _exposed(
  flow: process_flow.ProcessFlow, masks: process_flow.Masks, secrets: Collection[int]
) -> Iterator[expressions.Path]:
  """Yields the paths, outside of the noise's own, of what follows from secrets of the noise."""
  begins = process_flow.Masks({flow.start.result[i]: process_flow.SECRET for i in secrets})
  for tensor_masks, results in ((begins, flow.start.result), (masks, flow.next.result)):
    for i, (path, tensor) in enumerate(zip(flow.paths, results)):
      if i not in secrets and tensor_masks.of(tensor) & process_flow.SECRET:
        yield path
  if flow.weights is not None:
    state_tensors = [expressions.Tensor(flow.weights.parameter, i) for i in range(flow.num_state)]
    shown = process_flow.Masks(dict(zip(state_tensors, map(masks.of, flow.next.result))))
    for path, tensor in zip(flow.weights.paths, flow.weights.result):
      if shown.of(tensor) & process_flow.SECRET:
        yield ('weights', *path)


def _grouped(paths: Iterable[expressions.Path]) -> tuple[str, ...]:
  """Returns paths joined by dots, one for all tensors of a list."""

  def shortened(path: expressions.Path) -> str:
    while len(path) > 1 and path[-1].isdigit():
      path = path[:-1]
    return '.'.join(path)

  return tuple(dict.fromkeys(map(shortened, paths)))


def _listed(names: Sequence[str], shown: int = 3) -> str:
  """Returns the first few names."""
  more = f' and {len(names) - shown} more' if len(names) > shown else ''
  return f'{", ".join(names[:shown])}{more}'


def _depends(names: Sequence[str]) -> str:
  return 'depends' if len(names) == 1 else 'depend'
