"""Check of a process for what it learns from clients beside the release of an aggregator.

A guarantee covers what the aggregator releases, where what a client adds depends on that client
alone. The check follows the clients' data through one round of a process, to a fixed point over its
state, and ends only at that release.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import Any

from fl_dpftrl.aggregators import factory
from fl_dpftrl.runtime import rounds

# Most paths that a message lists.
_SHOWN = 3
_METRICS = ('metrics', 'measurements')
_NONE = 'nothing in its rounds is released by the aggregator: give it as model_aggregator'
_OTHER = (
  'it must be built with the aggregator as its model_aggregator: its noise is that of another'
  ' strategy, seed, noise_multiplier, clip_norm, zeroing_norm or report_goal'
)
_NOT_ADVANCED = (
  'the noise state of the release must come from the state of the round, and go into that of the'
  ' next round'
)
_SEVERAL = (
  'the aggregator releases {} sums in a round, and replay accounts for one: give every other sum'
  ' up, or account for both by hand'
)
_MIXED = (
  "what a client adds to the aggregator's sum depends on data of other clients in the same round,"
  ' which the server sent it: clip_norm does not bound what one device changes'
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
  """

  unprotected: tuple[str, ...]
  exposed: tuple[str, ...]
  metrics: tuple[str, ...]
  releases: int
  reasons: tuple[str, ...]

  @property
  def ok(self) -> bool:
    """True if state, result and model are protected as the aggregator's guarantee says."""
    return not self.reasons

  @property
  def reason(self) -> str | None:
    """All reasons in one line; None if there is none."""
    return '; '.join(self.reasons) or None

  def require(self) -> 'ProcessCheck':
    """Returns the check itself.

    Raises:
      ValueError: with the first reason, unless the process is protected.
    """
    if self.reasons:
      raise ValueError(f'process is not protected by the aggregator: {self.reasons[0]}')
    return self

  def __str__(self) -> str:
    verdict = 'protected by the aggregator' if self.ok else f'NOT PROTECTED: {self.reason}'
    metrics = ', '.join(self.metrics) or 'none'
    return (
      f'{verdict}\nreleases in a round: {self.releases}\nmetrics that are not private: {metrics}'
    )


def check_process(process: Any, aggregator: factory.CorrelatedNoiseFactory) -> ProcessCheck:
  """Finds what a process learns from clients beside the release of its aggregator.

  Clients' data are followed through `process.next`, tensor by tensor, into the state and out of
  it in later rounds. All that may depend on them counts, also where it happens not to. Nothing is
  run. What Python does around `next` is not seen. The number of clients in a round is no data of
  theirs: zero-out adjacency does not protect it.

  Args:
    process: learning process, or another process of TFF with `initialize` and `next`.
    aggregator: the one that the process was built with.

  Raises:
    ValueError: unless these are a process of TFF and a CorrelatedNoiseFactory.
  """
  if not isinstance(aggregator, factory.CorrelatedNoiseFactory):
    raise ValueError(f'aggregator must be a CorrelatedNoiseFactory, got {type(aggregator)}')
  one = rounds.of(process)
  own = [release for release in one.releases if release.identity == aggregator.release_identity]
  advanced = [release for release in own if one.is_advanced(release)]
  tainted = one.tainted(advanced)
  secret = functools.reduce(operator.or_, (release.secret for release in own), 0)
  state = one.state_paths(tainted)
  outputs = one.output_paths(tainted)
  unprotected = _grouped(state + [path for path in outputs if path[0] == 'result'])
  exposed = _grouped(
    one.state_paths(secret, without_noise_of=own)
    + one.output_paths(secret)
    + one.weight_paths(secret)
  )
  reasons = []
  if not own:
    reasons.append(_NONE if not one.releases else _OTHER)
  elif len(advanced) < len(own):
    reasons.append(_NOT_ADVANCED)
  releases = sum(release.times for release in own)
  if releases > 1:
    reasons.append(_SEVERAL.format(releases))
  if unprotected:
    reasons.append(f'{_listed(unprotected)} on {_BESIDE}')
  if exposed:
    reasons.append(f'{_listed(exposed)} on {_EXPOSED}')
  if any(one.mixes_clients(release, tainted) for release in own):
    reasons.append(_MIXED)
  return ProcessCheck(
    unprotected=unprotected,
    exposed=exposed,
    metrics=_grouped(
      path[1:] if path[0] in _METRICS else path for path in outputs if path[0] != 'result'
    ),
    releases=releases,
    reasons=tuple(reasons),
  )


def _grouped(paths: Iterable[rounds.Path]) -> tuple[str, ...]:
  """Returns paths joined by dots, one for all tensors of a list."""

  def shortened(path: rounds.Path) -> str:
    while len(path) > 1 and path[-1].isdigit():
      path = path[:-1]
    return '.'.join(path)

  return tuple(dict.fromkeys(map(shortened, paths)))


def _listed(paths: tuple[str, ...]) -> str:
  """Returns the first few paths, as the subject of a phrase."""
  more = f' and {len(paths) - _SHOWN} more' if len(paths) > _SHOWN else ''
  return f'{", ".join(paths[:_SHOWN])}{more} {"depends" if len(paths) == 1 else "depend"}'
