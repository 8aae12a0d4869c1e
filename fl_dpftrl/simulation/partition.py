"""Who is in which round where training runs in one place and draws its batches.

Cohorts of a scheme of `accounting.sampling`: rounds take turns at parts of the
examples, and draw within their part. They are simulated from a seed. Draws that
are to amplify a guarantee have to be secret: those of a seed that is known, or
may be guessed, are not.
"""

import dataclasses
from typing import Iterator

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.accounting import sampling as sampling_lib
from fl_dpftrl.logs import identity
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.simulation import seeds

_BATCHES, _ORDERS = 16, 17


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
  """Cohorts of a scheme, each a pure function of the seed and the round.

  Their device_ids are the numbers of examples.

  Example i, from 0, is in part i mod num_parts; those beyond num_parts equal
  parts are in no round. A batch that is drawn costs as much as it is large; an
  order that is shuffled, as much as its part, once in a pass.

  Attributes:
    scheme: how batches are drawn.
    seed: names the draws of all rounds.
    start: UTC second at which simulated time begins.
    round_seconds: that each round takes.

  Raises:
    ValueError: for a scheme of no known kind, a negative seed, and a start or
      round_seconds that is not a whole number of at least 1.
  """

  scheme: sampling_lib.Cyclic
  seed: int
  start: int = cohorts.START
  round_seconds: int = 60

  def __post_init__(self):
    if type(self.scheme) not in sampling_lib.SCHEMES.values():
      raise ValueError(
          f'scheme must be one of {", ".join(sampling_lib.SCHEMES)}, got'
          f' {self.scheme!r}'
      )
    seeds.check_seed(self.seed)
    for name in ('start', 'round_seconds'):
      object.__setattr__(
          self, name, participation.positive_integer(name, getattr(self, name))
      )

  @property
  def num_rounds(self) -> int:
    return self.scheme.num_rounds

  def metadata(self) -> dict[str, str]:
    """For the log's file: how batches were drawn, which replay compares."""
    return identity.sampling_metadata(self.scheme)

  def rounds(self, first: int = 0) -> Iterator[cohorts.Cohort]:
    """The cohorts of all rounds, from the first one asked for on.

    Raises:
      ValueError: where that is no round of the scheme, nor the one after.
    """
    if not 0 <= first <= self.num_rounds:
      raise ValueError(
          f'first must lie in 0 to {self.num_rounds}, got {first!r}'
      )
    return self._rounds(first)

  def _rounds(self, first: int) -> Iterator[cohorts.Cohort]:
    draw = (
        self._drawn
        if isinstance(self.scheme, sampling_lib.Sampled)
        else _Shuffles(self.scheme, self.seed).batch
    )
    for t in range(first, self.num_rounds):
      part = t % self.scheme.num_parts
      started = self.start + t * self.round_seconds
      yield cohorts.Cohort(
          round=t,
          device_ids=np.sort(draw(t)) * self.scheme.num_parts + part,
          started=started,
          closed=started + self.round_seconds,
      )

  def _drawn(self, t: int) -> np.ndarray:
    """Places within the part, int64."""
    rng = seeds.generator(self.seed, _BATCHES, t)
    size = self.scheme.batch_size
    if isinstance(self.scheme, sampling_lib.CyclicPoisson):
      # Examples drawn one by one: so many, and each set of so many alike.
      size = rng.binomial(
          self.scheme.part_size, self.scheme.sampling_probability
      )
    return rng.choice(self.scheme.part_size, size, replace=False, shuffle=False)


class _Shuffles:
  """Batches of shuffled parts; keeps the order of each part for a pass."""

  def __init__(self, scheme: sampling_lib.Shuffled, seed: int):
    self._scheme = scheme
    self._seed = seed
    self._orders: dict[int, tuple[int, np.ndarray]] = {}

  def batch(self, t: int) -> np.ndarray:
    """Places within the part, int64."""
    turn, part = divmod(t, self._scheme.num_parts)
    index, step = divmod(turn, self._scheme.pass_turns)
    if isinstance(self._scheme, sampling_lib.ShuffledOnce):
      index = 0
    if self._orders.get(part, (None,))[0] != index:
      rng = seeds.generator(self._seed, _ORDERS, part, index)
      self._orders[part] = index, rng.permutation(self._scheme.part_size)
    first = step * self._scheme.batch_size
    return self._orders[part][1][first : first + self._scheme.batch_size]
