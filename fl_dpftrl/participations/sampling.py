"""Sampling schemes: batches of centralized training, and secret bins."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.accounting import adjacency
from fl_dpftrl.participation import registry, schemas


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic:
  """Scheme in which rounds take turns at disjoint parts of the examples.

  Round t draws its batch from part t mod num_parts.

  Attributes:
    num_rounds: n.
    num_examples: m; those beyond num_parts equal parts are left out.
    batch_size: number of examples per round; its expectation if examples are drawn
      independently.
    num_parts: number of parts.
  """

  kind: ClassVar[str]
  is_drawn: ClassVar[bool] = True
  is_secret: ClassVar[bool] = False
  gated: ClassVar[None] = None  # The server draws, and turns nobody away.
  num_rounds: int
  num_examples: int
  batch_size: float
  num_parts: int = 1

  def __post_init__(self):
    for name in ('num_rounds', 'num_examples', 'num_parts'):
      object.__setattr__(self, name, schemas.positive_integer(name, getattr(self, name)))
    self._check_batch_size()
    if self.batch_size > self.part_size:
      most = most_parts(self.num_examples, self.batch_size)
      raise ValueError(
        f'batch_size={self.batch_size} is more than the {self.part_size} examples of a part, with'
        f' num_examples={self.num_examples} and num_parts={self.num_parts}; '
        + (f'at most {most} parts are as large' if most else 'give at most all of them')
      )

  def _check_batch_size(self) -> None:
    size = schemas.positive_integer('batch_size', self.batch_size)
    object.__setattr__(self, 'batch_size', size)

  @property
  def part_size(self) -> int:
    """Number of examples per part: ⌊num_examples / num_parts⌋."""
    return self.num_examples // self.num_parts

  @property
  def turns(self) -> int:
    """Maximum number of rounds that draw from one part, and so an example: ⌈n / num_parts⌉."""
    return -(-self.num_rounds // self.num_parts)

  @property
  def schema(self) -> schemas.MinSep:
    """Participation schema, whatever was drawn: the turns of a part."""
    return schemas.MinSep(self.num_rounds, self.num_parts)

  def within(self, num_rounds: int) -> Any:
    """Returns the scheme of a run that has had so many rounds."""
    return dataclasses.replace(self, num_rounds=num_rounds)


ONE, REPLACED, OPPOSITE = 'one', 'replaced', 'opposite'
"""What neighbouring runs are told apart by; see `sampled_gaussian.epsilon`."""

Relation = tuple[float, str, str]
"""Largest change of a round's sum by one example, in clip norms; pair; adjacency in words."""

_SENTENCE = (
  'adjacency is replace-one: neighbouring runs differ in the data of one'
  ' example; two clipped updates are at most 2 clip norms apart'
)


class _Secret:
  """Scheme of secret draws. A subclass defines `relations`, by adjacency, and `assumption`."""

  kind: ClassVar[str]
  is_drawn: ClassVar[bool] = True
  is_secret: ClassVar[bool] = True
  relations: ClassVar[Mapping[str, Relation]]

  @property
  def assumption(self) -> str:
    """States in words how participation must have been drawn."""
    raise NotImplementedError

  def relation(self, adjacency_name: str) -> Relation:
    """Returns the effect of one example; raises ValueError if no bound is known."""
    if adjacency_name not in self.relations:
      raise ValueError(
        f'adjacency must be one of {", ".join(self.relations)} where participation is drawn by'
        f' {type(self).__name__}, got {adjacency_name!r}: no bound is known'
      )
    return self.relations[adjacency_name]


class Batches(_Secret, Cyclic):
  """Scheme with fresh secret samples each round.

  Attributes and errors are those of `Cyclic`; num_parts is at least the number of bands of the
  strategy. A subclass defines `how`, the sampling in words.
  """

  how: ClassVar[str]

  @property
  def sampling_probability(self) -> float:
    """q, the probability of an example in a round of its part."""
    return self.batch_size / self.part_size

  @property
  def assumption(self) -> str:
    """States in words how batches must have been drawn."""
    return self.how.format(probability=self.sampling_probability)


@registry.register
class CyclicPoisson(Batches):
  """Scheme that includes each example of a round's part independently.

  With one part this is the Poisson sampling of DP-SGD. Examples are drawn independently, so
  removing an example is the same as zeroing it out.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, algorithm 2 with
  the Poisson sampling of appendix F.3.
  """

  kind: ClassVar[str] = 'poisson'
  relations: ClassVar[Mapping[str, Relation]] = {
    adjacency.ADD_OR_REMOVE: (
      1.0,
      ONE,
      'adjacency is add-or-remove: neighbouring runs differ in one example'
      ' more or less, and the parts of the others stay the same',
    ),
    adjacency.ZERO_OUT: (
      1.0,
      ONE,
      'adjacency is zero-out: neighbouring runs differ in that the updates of one example are'
      ' zeros; as the others are drawn without regard to it, that is one example less',
    ),
    adjacency.REPLACE_ONE: (2.0, OPPOSITE, _SENTENCE),
  }
  how: ClassVar[str] = (
    'a round includes each example of its part independently with probability {probability:.6g},'
    ' drawn in secret; batches of fixed size or shuffled ones are not drawn so'
  )

  def _check_batch_size(self) -> None:
    is_bool = isinstance(self.batch_size, bool)
    if is_bool or not (math.isfinite(self.batch_size) and self.batch_size > 0.0):
      raise ValueError(f'batch_size must be positive and finite, got {self.batch_size!r}')


@registry.register
class CyclicFixedSize(Batches):
  """Scheme that draws batch_size examples of a part uniformly at random.

  If one example is not drawn, another one is. Zeroing out an example can thus change a sum by
  as much as replacing it.
  """

  kind: ClassVar[str] = 'fixed_size'
  relations: ClassVar[Mapping[str, Relation]] = {
    adjacency.ZERO_OUT: (
      2.0,
      REPLACED,
      'adjacency is zero-out: neighbouring runs differ in that the updates'
      ' of one example are zeros; since another example is in the batches'
      ' without it, 2 clip norms away, it is accounted as replace-one',
    ),
    adjacency.REPLACE_ONE: (2.0, REPLACED, _SENTENCE),
  }
  how: ClassVar[str] = (
    'a round draws a fixed number of examples of its part without replacement, {probability:.6g} of'
    ' them, every set with the same chance and in secret; shuffled batches are not drawn so'
  )


@registry.register
class Shuffled(Cyclic):
  """Scheme that goes through each part in a new shuffled order in each pass.

  A pass has ⌊part_size / batch_size⌋ turns and leaves out the remaining examples. Given the
  orders, the rounds of every example are known. A guarantee under `schema` thus holds for every
  order, and so for their mixture. The ε of Poisson sampling does not hold, and no amplified
  bound for batches of many shuffled examples is known here.
  """

  kind: ClassVar[str] = 'shuffled'

  @property
  def pass_turns(self) -> int:
    """Number of turns of one pass; an example is in at most one of them."""
    return int(self.part_size // self.batch_size)

  @property
  def schema(self) -> schemas.MinSep:
    """Participation schema: one round per pass, the closest across two passes."""
    return schemas.MinSep(
      num_rounds=self.num_rounds,
      min_sep=self.num_parts,
      max_participations=-(-self.turns // self.pass_turns),
    )

  @property
  def assumption(self) -> str:
    """States in words how batches must have been drawn."""
    return (
      f'each example is in one of {self.num_parts} parts, the rounds take turns at them, and a pass'
      f' of {self.pass_turns} turns has it in at most one batch; the order does not depend on the'
      ' data, and need not be secret: shuffling amplifies nothing here'
    )


@registry.register
class ShuffledOnce(Shuffled):
  """Scheme that repeats the order of the first pass: a fixed separation."""

  kind: ClassVar[str] = 'shuffled_once'

  @property
  def schema(self) -> schemas.FixedSeparation:
    """Participation schema: every pass_turns turns of a part, exactly."""
    return schemas.FixedSeparation(
      num_rounds=self.num_rounds,
      min_sep=self.num_parts * self.pass_turns,
      max_participations=-(-self.turns // self.pass_turns),
    )


@registry.register
@dataclasses.dataclass(frozen=True)
class SecretBins(_Secret):
  """Scheme in which each device draws a secret bin once, uniformly, and keeps it.

  A device of bin i takes part only in rounds t with t mod num_bins = i; it may stay away from any
  of them. C may be any strategy.

  Attributes:
    num_rounds: n.
    num_bins: b, at most n and 4096.
  """

  kind: ClassVar[str] = 'bins'
  num_rounds: int
  num_bins: int

  relations: ClassVar[Mapping[str, Relation]] = {
    adjacency.ZERO_OUT: (
      1.0,
      ONE,
      'adjacency is zero-out: neighbouring runs differ in that the updates of one device are zeros,'
      ' and the rounds of all others stay the same',
    )
  }

  def __post_init__(self):
    for name in ('num_rounds', 'num_bins'):
      object.__setattr__(self, name, schemas.positive_integer(name, getattr(self, name)))
    most = min(self.num_rounds, MOST_BINS)
    if self.num_bins > most:
      raise ValueError(
        f'num_bins={self.num_bins} is more than {most}: num_rounds={self.num_rounds}, and at most'
        f' {MOST_BINS} bins'
      )

  @property
  def schema(self) -> schemas.MinSep:
    """Participation schema of a device whose bin is known."""
    return schemas.MinSep(self.num_rounds, self.num_bins)

  gated = schema

  def within(self, num_rounds: int) -> 'SecretBins':
    """Returns the scheme of a run that has had so many rounds, at least one for each bin."""
    return dataclasses.replace(self, num_rounds=max(num_rounds, self.num_bins))

  @property
  def assumption(self) -> str:
    """States in words how bins must have been drawn."""
    return (
      f'each device drew one of {self.num_bins} bins, uniformly and in secret, independently of all'
      ' data, all other devices and all that anybody saw, kept it, and took part in no round t but'
      f' those with t mod {self.num_bins} equal to its bin; a timer, or the rounds in which devices'
      ' happen to be available, are no such bins'
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


MOST_BINS = 4096  # a matrix of bins by bins is needed

Sampled = Batches | SecretBins
Scheme = Sampled | Shuffled

BATCHES: dict[str, type[Batches | Shuffled]] = {
  cls.kind: cls for cls in (CyclicPoisson, CyclicFixedSize, Shuffled, ShuffledOnce)
}
SCHEMES: dict[str, type[Scheme]] = {**BATCHES, SecretBins.kind: SecretBins}


def most_parts(num_examples: int, batch_size: float) -> int:
  """Returns the maximum number of parts that are at least as large as a batch."""
  return int(num_examples // math.ceil(batch_size))
