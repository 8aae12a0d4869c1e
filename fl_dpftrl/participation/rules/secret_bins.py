"""Secret bins: each device draws once the rounds that it may take part in."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, schemas
from fl_dpftrl.participation import drawn, gates, log_checks, registry
from fl_dpftrl.participation.accounting import adjacencies, guarantees
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.support import checks

_SHARES = (1, 2, 3, 4, 8, 16, 32)  # of the bins: min-seps, or numbers of bands, to choose among
MOST_BINS = 4096  # a matrix of bins by bins is needed


@registry.register
@dataclasses.dataclass(frozen=True)
class SecretBins(drawn.Secret):
  """Scheme in which each device draws a secret bin once, uniformly, and keeps it.

  A device of bin i takes part only in rounds t with t mod num_bins = i; it may stay away from any
  of them. C may be any strategy.

  Attributes:
    num_rounds: n.
    num_bins: b, at most n and 4096.
  """

  kind: ClassVar[str] = 'bins'
  unit: ClassVar[str] = 'device'
  num_rounds: int
  num_bins: int

  relations: ClassVar[Mapping[str, drawn.Relation]] = {
    adjacencies.ZERO_OUT: (
      1.0,
      adjacencies.ONE,
      'what a device sends is protected (zero-out adjacency): the run is compared with the same run'
      ' in which all updates of one device are zeros, and the rounds of all others stay the same',
    )
  }

  def __post_init__(self):
    checks.keep(self, checks.whole, 'num_rounds', 'num_bins')
    most = min(self.num_rounds, MOST_BINS)
    if self.num_bins > most:
      raise ValueError(
        f'num_bins={self.num_bins} is more than {most}: num_rounds={self.num_rounds}, and at most'
        f' {MOST_BINS} bins'
      )

  @property
  def schema(self) -> schemas.Schema:
    """Participation schema of a device whose bin is known."""
    return schemas.Schema(self.num_rounds, self.num_bins)

  gated = schema

  def gate(self, strategy: base.Strategy) -> gates.MinSepGate:
    return gates.MinSepGate(self.schema, in_bins=True)

  def problems(self, size: str | None, *, is_fixed: bool = False) -> drawn.Problems:
    """Returns a number of bands each, or a min-sep where the size is not that."""
    numbers = sorted({-(-self.num_bins // share) for share in _SHARES})
    if size != 'num_bands':
      return [(schemas.Schema(self.num_rounds, min_sep), {}) for min_sep in numbers]
    once = schemas.Schema(self.num_rounds, max_participations=1)
    return [(once, {})] if is_fixed else [(once, {size: bands}) for bands in numbers]

  def within(self, num_rounds: int) -> 'SecretBins':
    """Returns the scheme of a run that has had so many rounds, at least one for each bin."""
    return dataclasses.replace(self, num_rounds=max(num_rounds, self.num_bins))

  @property
  def assumption(self) -> str:
    """States in words how bins must have been drawn."""
    return (
      f'each device drew one of {self.num_bins} bins, uniformly and in secret, independently of all'
      ' data, all other devices and all that anybody saw, kept it, and took part only in the round'
      f" of its bin's number, from 0, and every {self.num_bins} rounds after it; a timer, or the"
      ' rounds in which devices happen to be available, are no such bins'
    )

  def bins(self, device_ids: Sequence[str] | Sequence[int] | np.ndarray, key: bytes) -> np.ndarray:
    """Returns the bin of each device, by a key of 16 to 64 bytes that is secret for ever."""
    if not isinstance(key, bytes) or not 16 <= len(key) <= 64:
      raise ValueError('key must have 16 to 64 bytes')
    ids = np.asarray(device_ids)
    if ids.ndim != 1 or not (ids.dtype.kind in 'iu' or all(isinstance(i, str) for i in ids)):
      raise ValueError('device_ids must be text or whole numbers')
    hashes = (hashlib.blake2b(str(i).encode(), key=key, digest_size=16) for i in ids)
    return np.array([int.from_bytes(h.digest(), 'big') % self.num_bins for h in hashes], np.int64)

  def drawer(
    self, generator: drawn.Generator, num_devices: int | None
  ) -> Callable[[int], np.ndarray]:
    """Returns the function from a round to all devices of its bin."""
    bins = generator(drawn.BINS).integers(self.num_bins, size=num_devices)
    ends = np.cumsum(np.bincount(bins, minlength=self.num_bins))
    members = np.split(np.argsort(bins, kind='stable'), ends[:-1])
    return lambda t: members[t % self.num_bins]

  @property
  def conditions(self) -> tuple[str, ...]:
    return (
      self.assumption,
      'no device takes the place of another: no round closes at a report goal or fails below one,'
      ' every update of a member of the bin is summed, every round is released or lost for a reason'
      ' that has nothing to do with who takes part, and the divisor is a constant',
      'strategy and noise multiplier are fixed before the run; in a round of its bin a device adds'
      ' one update, clipped to the clip norm, or nothing',
      'who took part, and how many in which round, is secret for ever: log, counts, failures and'
      ' what devices store',
      'bins serve only this run, as guarantees of runs that share them do not add up',
      guarantees.NOISE,
    )

  def guarantee(
    self, strategy: base.Strategy, noise_multiplier: float, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    from fl_dpftrl.participation import bins

    return bins.proven(strategy, self, noise_multiplier, terms)

  def least_noise(
    self, strategy: base.Strategy, epsilon: float | None, rho: float | None, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    from fl_dpftrl.participation import bins

    epsilon = drawn.target(epsilon, rho)
    start: Any = self.guarantee(strategy, 1e30, terms)
    return bins.calibrated(start, epsilon)

  def refutations(self, counts: participation_counts.RunCounts) -> list[str]:
    return log_checks.bins(counts, self.num_bins)
