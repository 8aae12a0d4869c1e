"""Simulated batches of centralized training, and secret bins.

The cohorts follow a scheme of `participations.sampling`: rounds take turns at parts of the examples
and draw within their part. They are simulated from a seed. Draws that amplify a guarantee must
be secret, so a known or guessable seed does not amplify.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np

from fl_dpftrl import checks
from fl_dpftrl.participation import schemas
from fl_dpftrl.participations import cyclic, sampling
from fl_dpftrl.simulation import cohorts, seeds

_BATCHES, _ORDERS, _BINS = 16, 17, 18
_ROUND_SECONDS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
  """Cohorts of a sampling scheme, each a pure function of seed and round.

  The device_ids of the cohorts are the numbers of examples, from 0. Example i is in part i mod
  num_parts, and those beyond num_parts equal parts are in no round. The cost of a sampled batch is
  proportional to its size, that of a shuffled order to its part, once per pass.

  Attributes:
    num_devices: for secret bins: devices, each of which takes part in all rounds of its bin.
  """

  scheme: sampling.Scheme
  seed: int
  num_devices: int | None = None

  def __post_init__(self):
    if type(self.scheme) not in sampling.SCHEMES.values():
      raise ValueError(f'scheme must be one of {", ".join(sampling.SCHEMES)}, got {self.scheme!r}')
    checks.whole(0, math.inf, seed=self.seed)
    if (self.num_devices is None) == isinstance(self.scheme, sampling.SecretBins):
      raise ValueError('num_devices goes with secret bins, and they need it')
    if self.num_devices is not None:
      number = checks.whole(num_devices=self.num_devices)
      object.__setattr__(self, 'num_devices', number)

  @property
  def num_rounds(self) -> int:
    return self.scheme.num_rounds

  def rounds(self, first: int = 0) -> Iterator[schemas.Cohort]:
    """Yields the cohorts of all rounds, starting with `first`."""
    if not 0 <= first <= self.num_rounds:
      raise ValueError(f'first must lie in 0 to {self.num_rounds}, got {first!r}')
    return self._rounds(first)

  def _rounds(self, first: int) -> Iterator[schemas.Cohort]:
    draw = self._drawer()
    for t in range(first, self.num_rounds):
      started = cohorts.START + t * _ROUND_SECONDS
      yield schemas.Cohort(t, draw(t), started, started + _ROUND_SECONDS)

  def _drawer(self) -> Callable[[int], np.ndarray]:
    """Returns the function from a round to its cohort, int64."""
    scheme = self.scheme
    if isinstance(scheme, sampling.SecretBins):
      bins = seeds.generator(self.seed, _BINS).integers(scheme.num_bins, size=self.num_devices)
      order = np.argsort(bins, kind='stable')
      ends = np.cumsum(np.bincount(bins, minlength=scheme.num_bins))
      members = np.split(order, ends[:-1])
      return lambda t: members[t % scheme.num_bins]
    draw: Callable[[int], np.ndarray] = functools.partial(self._drawn, scheme)
    if isinstance(scheme, sampling.Shuffled):
      draw = _Shuffles(scheme, self.seed).batch
    return lambda t: np.sort(draw(t)) * scheme.num_parts + t % scheme.num_parts

  def _drawn(self, scheme: cyclic.Cyclic, t: int) -> np.ndarray:
    """Returns indices within the part, int64."""
    rng = seeds.generator(self.seed, _BATCHES, t)
    size = int(scheme.batch_size)
    if isinstance(scheme, sampling.CyclicPoisson):
      # A binomial size, then a uniform subset: independent draws of examples.
      size = rng.binomial(scheme.part_size, scheme.sampling_probability)
    return rng.choice(scheme.part_size, size, replace=False, shuffle=False)


class _Shuffles:
  """Batches of shuffled parts; the order of each part is kept for a pass."""

  def __init__(self, scheme: sampling.Shuffled, seed: int):
    self._scheme = scheme
    self._seed = seed
    self._orders: dict[int, tuple[int, np.ndarray]] = {}

  def batch(self, t: int) -> np.ndarray:
    """Returns indices within the part, int64."""
    turn, part = divmod(t, self._scheme.num_parts)
    index, step = divmod(turn, self._scheme.pass_turns)
    if isinstance(self._scheme, sampling.ShuffledOnce):
      index = 0
    if self._orders.get(part, (None,))[0] != index:
      rng = seeds.generator(self._seed, _ORDERS, part, index)
      self._orders[part] = index, rng.permutation(self._scheme.part_size)
    first = step * self._scheme.batch_size
    return self._orders[part][1][first : first + self._scheme.batch_size]
