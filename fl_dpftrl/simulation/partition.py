"""Simulated batches of centralized training, and secret bins.

The cohorts follow a scheme of `participations.sampling`: rounds take turns at parts of the examples
and draw within their part. They are simulated from a seed. Draws that amplify a guarantee must
be secret, so a known or guessable seed does not amplify.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

from fl_dpftrl import checks
from fl_dpftrl.participation import schemas
from fl_dpftrl.participations import sampling
from fl_dpftrl.simulation import cohorts, seeds

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
    if (self.num_devices is None) == (self.scheme.unit == 'device'):
      raise ValueError('num_devices goes with secret bins, and they need it')
    if self.num_devices is not None:
      checks.keep(self, checks.whole, 'num_devices')

  @property
  def num_rounds(self) -> int:
    return self.scheme.num_rounds

  def rounds(self, first: int = 0) -> Iterator[schemas.Cohort]:
    """Yields the cohorts of all rounds, starting with `first`."""
    if not 0 <= first <= self.num_rounds:
      raise ValueError(f'first must lie in 0 to {self.num_rounds}, got {first!r}')
    return self._rounds(first)

  def _rounds(self, first: int) -> Iterator[schemas.Cohort]:
    draw = self.scheme.drawer(functools.partial(seeds.generator, self.seed), self.num_devices)
    for t in range(first, self.num_rounds):
      started = cohorts.START + t * _ROUND_SECONDS
      yield schemas.Cohort(t, draw(t), started, started + _ROUND_SECONDS)
