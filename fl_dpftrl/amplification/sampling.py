"""Sampling schemes for the batches of centralized training."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from fl_dpftrl.accounting import adjacency
from fl_dpftrl.participation import schemas


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
    """Maximum number of rounds that draw from one part: ⌈n / num_parts⌉."""
    return -(-self.num_rounds // self.num_parts)


@dataclasses.dataclass(frozen=True)
class Relation:
  """Effect of one example on a sampled round under one adjacency."""

  factor: float  # largest change of a round's sum, in clip norms
  replaced: bool  # True if the bound for a replaced example applies
  sentence: str  # adjacency in words


_REPLACED = Relation(
  2.0,
  True,
  'adjacency is replace-one: neighbouring runs differ in the data of one'
  ' example; two clipped updates are at most 2 clip norms apart',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled(Cyclic):
  """Scheme with fresh secret samples each round, which amplifies privacy.

  Attributes and errors are those of `Cyclic`; num_parts is at least the number of bands of the
  strategy. A subclass defines `relations`, the adjacencies with a known bound, and `how`, the
  sampling in words.
  """

  relations: ClassVar[Mapping[str, Relation]]
  how: ClassVar[str]

  @property
  def sampling_probability(self) -> float:
    """q, the probability of an example in a round of its part."""
    return self.batch_size / self.part_size

  @property
  def compositions(self) -> int:
    """Maximum number of rounds that may draw an example: ⌈n / num_parts⌉."""
    return self.turns

  @property
  def assumption(self) -> str:
    """States in words how batches must have been drawn."""
    return self.how.format(probability=self.sampling_probability)

  def relation(self, adjacency_name: str) -> Relation:
    """Returns the effect of one example; raises ValueError if no bound is known."""
    if adjacency_name not in self.relations:
      raise ValueError(
        f'adjacency must be one of {", ".join(self.relations)} where batches are drawn by'
        f' {type(self).__name__}, got {adjacency_name!r}: no bound is known'
      )
    return self.relations[adjacency_name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(Sampled):
  """Scheme that includes each example of a round's part independently.

  With one part this is the Poisson sampling of DP-SGD. Examples are drawn independently, so
  removing an example is the same as zeroing it out.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, algorithm 2 with
  the Poisson sampling of appendix F.3.
  """

  relations: ClassVar[Mapping[str, Relation]] = {
    adjacency.ADD_OR_REMOVE: Relation(
      1.0,
      False,
      'adjacency is add-or-remove: neighbouring runs differ in one example'
      ' more or less, and the parts of the others stay the same',
    ),
    adjacency.ZERO_OUT: Relation(
      1.0,
      False,
      'adjacency is zero-out: neighbouring runs differ in that the updates of one example are'
      ' zeros; as the others are drawn without regard to it, that is one example less',
    ),
    adjacency.REPLACE_ONE: _REPLACED,
  }
  how: ClassVar[str] = (
    'a round includes each example of its part independently with probability {probability:.6g},'
    ' drawn in secret; batches of fixed size or shuffled ones are not drawn so'
  )

  def _check_batch_size(self) -> None:
    if not (math.isfinite(self.batch_size) and self.batch_size > 0.0):
      raise ValueError(f'batch_size must be positive and finite, got {self.batch_size!r}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicFixedSize(Sampled):
  """Scheme that draws batch_size examples of a part uniformly at random.

  If one example is not drawn, another one is. Zeroing out an example can thus change a sum by
  as much as replacing it.
  """

  relations: ClassVar[Mapping[str, Relation]] = {
    adjacency.ZERO_OUT: Relation(
      2.0,
      True,
      'adjacency is zero-out: neighbouring runs differ in that the updates'
      ' of one example are zeros; since another example is in the batches'
      ' without it, 2 clip norms away, it is accounted as replace-one',
    ),
    adjacency.REPLACE_ONE: _REPLACED,
  }
  how: ClassVar[str] = (
    'a round draws a fixed number of examples of its part without replacement, {probability:.6g} of'
    ' them, every set with the same chance and in secret; shuffled batches are not drawn so'
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffled(Cyclic):
  """Scheme that goes through each part in a new shuffled order in each pass.

  A pass has ⌊part_size / batch_size⌋ turns and leaves out the remaining examples. Given the
  orders, the rounds of every example are known. A guarantee under `schema` thus holds for every
  order, and so for their mixture. The ε of Poisson sampling does not hold, and no amplified
  bound for batches of many shuffled examples is known here.
  """

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledOnce(Shuffled):
  """Scheme that repeats the order of the first pass: a fixed separation."""

  @property
  def schema(self) -> schemas.FixedSeparation:
    """Participation schema: every pass_turns turns of a part, exactly."""
    return schemas.FixedSeparation(
      num_rounds=self.num_rounds,
      min_sep=self.num_parts * self.pass_turns,
      max_participations=-(-self.turns // self.pass_turns),
    )


Scheme = Sampled | Shuffled

SCHEMES: dict[str, type[Scheme]] = {
  'poisson': CyclicPoisson,
  'fixed_size': CyclicFixedSize,
  'shuffled': Shuffled,
  'shuffled_once': ShuffledOnce,
}


def name(scheme: Cyclic) -> str:
  """Returns the name of a scheme's class in SCHEMES."""
  return next(n for n, cls in SCHEMES.items() if type(scheme) is cls)


def most_parts(num_examples: int, batch_size: float) -> int:
  """Returns the maximum number of parts that are at least as large as a batch."""
  return int(num_examples // math.ceil(batch_size))


def to_json(scheme: Cyclic) -> dict[str, Any]:
  """Returns the name of a scheme's class and its attributes."""
  size = scheme.batch_size
  size = int(size) if size == int(size) else size
  return {'sampling': name(scheme), **dataclasses.asdict(scheme), 'batch_size': size}


def from_json(document: Mapping[str, Any]) -> Scheme:
  """Returns the scheme of `to_json`; ValueError, KeyError or TypeError for anything else."""
  values = dict(document)
  return SCHEMES[values.pop('sampling')](**values)
