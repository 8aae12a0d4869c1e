"""One round of a TFF process: the parts of state and output that depend on clients' data.

What depends on clients' data in the state of one round depends on them in the next round too.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow_federated as tff

from fl_dpftrl.runtime import flows, graph_flows

Path: TypeAlias = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Round:
  """Dependence in one round of a process.

  Attributes:
    state: paths of the tensors of the state.
    outputs: paths of the other tensors of the result of `next`.
    flow: dependence of that result; the state comes first in it, and in the argument.
    weights: dependence of the model's weights on the state; None without a model.
  """

  state: tuple[Path, ...]
  outputs: tuple[Path, ...]
  flow: flows.Flow
  weights: flows.Flow | None

  @property
  def releases(self) -> tuple[flows.Release, ...]:
    """Sums with correlated noise, of any aggregator."""
    return self.flow.releases

  def is_advanced(self, release: flows.Release) -> bool:
    """Returns whether the noise comes from the state alone, which has it advanced afterwards."""
    known = 0
    for part, start in release.starts.items():
      kind, index = start.origin or (None, -1)
      if kind != 'parameter' or index >= len(self.state):
        return False
      if self.flow.leaves[index].origin != ('noise', release.number, release.identity, part):
        return False
      known |= start.mask
    return not release.noise & ~known and bool(release.noise_of_each & release.secret)

  def tainted(self, protected: Collection[flows.Release] = ()) -> int:
    """Returns the bits that depend on clients' data in some round.

    Args:
      protected: releases whose noise hides their sums, if it does not depend on clients' data.
    """
    flow, before = self.flow, None
    tainted = sum(flow.bit(i) for i, at_clients in enumerate(flow.at_clients) if at_clients)
    hiding = {release.bit for release in protected}
    while tainted != before:
      before = tainted
      for index in range(len(self.state)):
        if flow.leaves[index].mask & tainted:
          tainted |= flow.bit(index)
      if flow.outside & tainted:
        tainted |= graph_flows.WORLD
      for release in flow.releases:
        is_hidden = release.bit in hiding and not release.noise & tainted
        if (release.total | release.noise) & tainted and not is_hidden:
          tainted |= release.bit
    return tainted

  def mixes_clients(self, release: flows.Release, tainted: int) -> bool:
    """Returns whether what a client adds to the sum depends on other clients of the round.

    Args:
      release: the sum with noise.
      tainted: the bits that depend on clients' data, as `tainted` returns them.
    """
    return any(release.total & bit and mask & tainted for bit, mask in self.flow.sent)

  def state_paths(self, bits: int, *, without_noise_of: Iterable[flows.Release] = ()) -> list[Path]:
    """Returns the tensors of the state that depend on any of the bits.

    Args:
      bits: of the argument of `next`, and of releases.
      without_noise_of: releases whose own noise state is left out.
    """
    left_out = {release.number for release in without_noise_of}
    paths = []
    for path, leaf in zip(self.state, self.flow.leaves):
      kind, number = (leaf.origin or (None, None))[:2]
      if leaf.mask & bits and not (kind == 'noise' and number in left_out):
        paths.append(path)
    return paths

  def output_paths(self, bits: int) -> list[Path]:
    """Returns the other tensors of the result that depend on any of the bits."""
    leaves = self.flow.leaves[len(self.state) :]
    return [path for path, leaf in zip(self.outputs, leaves) if leaf.mask & bits]

  def weight_paths(self, bits: int) -> list[Path]:
    """Returns the weights of the model that depend on any of the bits of the state."""
    if self.weights is None:
      return []
    # A tensor of the state has the same bit in the argument of `get_model_weights`.
    pairs = zip(self.weights.results, self.weights.leaves)
    return [('weights', *path) for path, leaf in pairs if leaf.mask & bits]


def of(process: Any) -> Round:
  """Returns the dependence in one round of a process.

  Args:
    process: has `initialize` and `next`, which takes and returns the state first; and
      `get_model_weights`, if it has a model.

  Raises:
    ValueError: for anything else.
  """
  for name in ('initialize', 'next'):
    if not isinstance(getattr(process, name, None), tff.framework.ConcreteComputation):
      raise ValueError(
        f'process must be one of TFF, whose {name} is a computation, got {type(process).__name__}'
      )
  kind = process.initialize.type_signature.result
  state = tuple(('state', *path) for path, _ in flows.paths(kind))
  flow = flows.of(process.next)
  result = process.next.type_signature.result
  outputs: Sequence[Path] = ()
  if not kind.is_assignable_from(result):
    first = result[0] if isinstance(result, tff.StructType) and len(result) else None
    if first is None or not kind.is_assignable_from(first):
      raise ValueError('process must return its state, or its state first, from next')
    outputs = flow.results[len(state) :]
  weights = getattr(process, 'get_model_weights', None)
  is_known = isinstance(weights, tff.framework.ConcreteComputation)
  return Round(state, tuple(outputs), flow, flows.of(weights) if is_known else None)
