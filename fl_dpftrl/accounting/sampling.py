"""How the examples of a round are drawn, where training can draw them."""

import dataclasses
import math
import operator


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson:
  """Rounds take turns at parts of the examples, and draw within their part.

  Round t includes each example of part t mod num_parts independently with
  sampling_probability. With one part this is the Poisson sampling of DP-SGD.

  Attributes:
    num_rounds: n.
    num_examples: m; those beyond num_parts equal parts are left out.
    batch_size: examples in a round, in expectation.
    num_parts: at least the bands of the strategy.

  Raises:
    ValueError: where an attribute is not a whole number of at least 1 (the
      batch size: a positive number), or a batch is larger than a part.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
  algorithm 2 with the Poisson sampling of appendix F.3.
  """

  num_rounds: int
  num_examples: int
  batch_size: float
  num_parts: int = 1

  def __post_init__(self):
    for name in ('num_rounds', 'num_examples', 'num_parts'):
      value = getattr(self, name)
      try:
        integer = operator.index(value)
      except TypeError:
        integer = 0
      if isinstance(value, bool) or integer < 1:
        raise ValueError(
            f'{name} must be a whole number of at least 1, got {value!r}'
        )
      object.__setattr__(self, name, integer)
    if not (math.isfinite(self.batch_size) and self.batch_size > 0.0):
      raise ValueError(
          f'batch_size must be positive and finite, got {self.batch_size!r}'
      )
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

  @property
  def part_size(self) -> int:
    """Examples of a part: ⌊num_examples / num_parts⌋."""
    return self.num_examples // self.num_parts

  @property
  def sampling_probability(self) -> float:
    """q, of an example in a round of its part."""
    return self.batch_size / self.part_size

  @property
  def compositions(self) -> int:
    """The most rounds in which an example may be drawn: ⌈n / num_parts⌉."""
    return -(-self.num_rounds // self.num_parts)


def most_parts(num_examples: int, batch_size: float) -> int:
  """The most parts that are each at least as large as a batch."""
  return int(num_examples // math.ceil(batch_size))
