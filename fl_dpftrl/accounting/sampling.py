"""How the examples of a round are drawn, where training can draw them."""

import dataclasses
import math
import operator
from typing import ClassVar, Mapping

from fl_dpftrl import participation
from fl_dpftrl.accounting import adjacency


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic:
  """Rounds take turns at parts of the examples, and draw within their part.

  Round t draws of part t mod num_parts.

  Attributes:
    num_rounds: n.
    num_examples: m; those beyond num_parts equal parts are left out.
    batch_size: examples in a round; in expectation, where they are drawn one by
      one.
    num_parts: parts.

  Raises:
    ValueError: where an attribute is not a whole number of at least 1 (the
      batch size of `CyclicPoisson`: a positive number), or a batch is larger
      than a part.
  """

  num_rounds: int
  num_examples: int
  batch_size: float
  num_parts: int = 1

  def __post_init__(self):
    for name in ('num_rounds', 'num_examples', 'num_parts'):
      object.__setattr__(self, name, _count(name, getattr(self, name)))
    self._check_batch_size()
    if self.batch_size > self.part_size:
      most = most_parts(self.num_examples, self.batch_size)
      raise ValueError(
          f'batch_size={self.batch_size} is more than the {self.part_size}'
          f' examples of a part, with num_examples={self.num_examples} and'
          f' num_parts={self.num_parts}; '
          + (
              f'at most {most} parts are as large' if most
              else 'give at most all of them'
          )
      )

  def _check_batch_size(self) -> None:
    size = _count('batch_size', self.batch_size)
    object.__setattr__(self, 'batch_size', size)

  @property
  def part_size(self) -> int:
    """Examples of a part: ⌊num_examples / num_parts⌋."""
    return self.num_examples // self.num_parts

  @property
  def turns(self) -> int:
    """The most rounds that draw of one part: ⌈n / num_parts⌉."""
    return -(-self.num_rounds // self.num_parts)


@dataclasses.dataclass(frozen=True)
class Relation:
  """What an example does to a sampled round, for one adjacency.

  Attributes:
    factor: the most that it moves the sum of a round, in clip norms.
    replaced: whether the bound is that for a replaced example.
    sentence: the relation in words.
  """

  factor: float
  replaced: bool
  sentence: str


_REPLACED = Relation(
    2.0,
    True,
    'adjacency is replace-one: neighbouring runs differ in the data of one'
    ' example; two clipped updates are at most 2 clip norms apart',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled(Cyclic):
  """Every round draws anew and in secret, which amplifies the guarantee.

  Attributes and errors as of `Cyclic`; num_parts is at least the bands of the
  strategy. A subclass says what is known by `relations`, and `how` it draws.
  """

  relations: ClassVar[Mapping[str, Relation]]
  how: ClassVar[str]

  @property
  def sampling_probability(self) -> float:
    """q, of an example in a round of its part."""
    return self.batch_size / self.part_size

  @property
  def compositions(self) -> int:
    """The most rounds in which an example may be drawn: ⌈n / num_parts⌉."""
    return self.turns

  def relation(self, adjacency_name: str) -> Relation:
    """What is known of an adjacency.

    Raises:
      ValueError: where no bound is.
    """
    if adjacency_name not in self.relations:
      raise ValueError(
          f'adjacency must be one of {", ".join(self.relations)} where batches'
          f' are drawn as by {type(self).__name__}, got {adjacency_name!r}: no'
          ' bound is known'
      )
    return self.relations[adjacency_name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(Sampled):
  """A round includes each example of its part independently.

  With one part this is the Poisson sampling of DP-SGD. What others do does not
  depend on an example, so that one example less is one zeroed out.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
  algorithm 2 with the Poisson sampling of appendix F.3.
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
          'adjacency is zero-out: neighbouring runs differ in that the updates'
          ' of one example are zeros; as the others are drawn without regard to'
          ' it, that is one example less',
      ),
      adjacency.REPLACE_ONE: _REPLACED,
  }
  how: ClassVar[str] = (
      'a round includes each example of its part independently with probability'
      ' {probability:.6g}, drawn in secret; batches of fixed size or shuffled'
      ' ones are not drawn so'
  )

  def _check_batch_size(self) -> None:
    if not (math.isfinite(self.batch_size) and self.batch_size > 0.0):
      raise ValueError(
          f'batch_size must be positive and finite, got {self.batch_size!r}'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicFixedSize(Sampled):
  """A round draws batch_size examples of its part, each set equally likely.

  Where one example is not drawn another is, so that zeroing one out moves a sum
  by as much as replacing it.
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
      'a round draws a fixed number of examples of its part without'
      ' replacement, {probability:.6g} of them, every set with the same chance'
      ' and in secret; shuffled batches are not drawn so'
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffled(Cyclic):
  """The turns of a part go through it in shuffled order, anew in each pass.

  A pass is ⌊part_size / batch_size⌋ turns and leaves out what remains. Given
  the orders, the rounds of an example are known, so that an ordinary account
  with `schema` holds for each of them, and for their mixture. Poisson's ε does
  not; no amplified bound for batches of many shuffled examples is known here.
  """

  @property
  def pass_turns(self) -> int:
    """Turns of a part in which an example takes part at most once."""
    return self.part_size // self.batch_size

  @property
  def schema(self) -> participation.MinSep:
    """Once in a pass; last in one and first in the next, at the closest."""
    return participation.MinSep(
        num_rounds=self.num_rounds,
        min_sep=self.num_parts,
        max_participations=-(-self.turns // self.pass_turns),
    )

  @property
  def assumption(self) -> str:
    return (
        f'each example is in one of {self.num_parts} parts, the rounds take'
        f' turns at them, and a pass of {self.pass_turns} turns has it in at most'
        ' one batch; the order does not depend on the data, and need not'
        ' be secret: shuffling amplifies nothing here'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledOnce(Shuffled):
  """Every pass repeats the order of the first: a fixed separation."""

  @property
  def schema(self) -> participation.FixedSeparation:
    """Every pass_turns turns of a part, exactly."""
    return participation.FixedSeparation(
        num_rounds=self.num_rounds,
        min_sep=self.num_parts * self.pass_turns,
        max_participations=-(-self.turns // self.pass_turns),
    )


SCHEMES = {
    'poisson': CyclicPoisson,
    'fixed_size': CyclicFixedSize,
    'shuffled': Shuffled,
    'shuffled_once': ShuffledOnce,
}


def name(scheme: Cyclic) -> str:
  """The name of a scheme's kind."""
  return next(n for n, cls in SCHEMES.items() if type(scheme) is cls)


def most_parts(num_examples: int, batch_size: float) -> int:
  """The most parts that are each at least as large as a batch."""
  return int(num_examples // math.ceil(batch_size))


def _count(name: str, value: object) -> int:
  try:
    integer = operator.index(value)
  except TypeError:
    integer = 0
  if isinstance(value, bool) or integer < 1:
    raise ValueError(
        f'{name} must be a whole number of at least 1, got {value!r}'
    )
  return integer
