"""Participation: cohorts of rounds, and schemas of the rounds of one device.

Only this module defines min-sep: two participations i < j of one device satisfy ``j - i >=
min_sep``.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

LAST_ROW = 2**20
"""Rows of noise of a stream without an end, if no other number is stated."""


@dataclasses.dataclass(frozen=True, eq=False)
class Schema:
  """Numbers of (k, b)-min-sep participation: at most k rounds, at least b apart.

  `dpftrl.MinSep` is the participation of these numbers, and describes each.

  Attributes:
    num_rounds, min_sep, max_participations: n, b and k.

  Source: Choquette-Choo et al. 2023 (BandMF), section 2, "b-min-sep".
  """

  name: ClassVar[str] = 'MinSep'
  separation: ClassVar[str] = 'min'
  apart: ClassVar[str] = 'at least'
  num_rounds: Any  # An int, or None.
  min_sep: int = 1
  max_participations: int | None = None

  def __post_init__(self):
    has_numbers_only = self.separation == Schema.separation and not self.is_own
    if self.num_rounds is None and not (has_numbers_only and self.max_participations):
      raise ValueError(
        'num_rounds=None is for a MinSep with max_participations, else give a number'
      )
    for name in ('num_rounds', 'max_participations', 'min_sep'):
      if getattr(self, name) is not None or name == 'min_sep':
        checks.keep(self, checks.whole, name)

  def __eq__(self, other: object) -> bool:
    """Returns True for the same numbers and patterns, also of a participation of them."""
    return isinstance(other, Schema) and self._identity == other._identity

  def __hash__(self) -> int:
    return hash(self._identity)

  @property
  def _identity(self) -> tuple[Any, ...]:
    pattern: Any = type(self) if self.is_own else self.separation
    return pattern, self.num_rounds, self.min_sep, self.max_participations

  @property
  def num_rows(self) -> int:
    """Rows of noise that a run may use up."""
    return LAST_ROW if self.num_rounds is None else self.num_rounds

  @property
  def assumption(self) -> str:
    """The allowed patterns in words."""
    extent = 'any number of' if self.num_rounds is None else self.num_rounds
    if self.participations == 1:
      return f'no device takes part twice in {extent} rounds'
    return (
      f'every device takes part in at most {self.participations} of {extent} rounds,'
      f' {self.apart} {self.min_sep} apart'
    )

  @property
  def participations(self) -> int:
    """Maximum number of rounds of one device: min(k, ⌈n / b⌉)."""
    fits = -(-self.num_rows // self.min_sep)
    if self.max_participations is None:
      return fits
    return min(fits, self.max_participations)

  @property
  def numbers(self) -> dict[str, Any]:
    """n, b and k by name, with k limited to what fits."""
    k = self.participations
    return {'num_rounds': self.num_rounds, 'min_sep': self.min_sep, 'max_participations': k}

  def allows(self, rounds: np.ndarray) -> bool:
    """Returns whether one device may take part in these rounds, in order.

    A participation that allows some rounds must allow the first ones of them.
    """
    return len(rounds) <= self.participations and bool((np.diff(rounds) >= self.min_sep).all())

  @property
  def is_own(self) -> bool:
    """True for a participation from outside, which allows less than its min-sep schema."""
    return type(self).allows is not Schema.allows

  def as_min_sep(self) -> 'Schema':
    """Returns the min-sep schema of the same numbers, which allows all its patterns."""
    return Schema(self.num_rounds, self.min_sep, self.max_participations)

  def plain(self) -> 'Schema':
    """Returns these numbers alone, which allow all that it allows."""
    kind = Fixed if self.separation == Fixed.separation else Schema
    return kind(self.num_rounds, self.min_sep, self.max_participations)


class Fixed(Schema):
  """Numbers of (k, b)-participation: at most k rounds, each exactly b after the last.

  The allowed patterns are a subset of those of `Schema`.

  Source: Choquette-Choo et al. 2023 (multi-epoch matrix factorisation).
  """

  name: ClassVar[str] = 'FixedSeparation'
  separation: ClassVar[str] = 'fixed'
  apart: ClassVar[str] = 'exactly'


def check(schema: Any) -> None:
  """Raises ValueError unless a value is a schema."""
  if not isinstance(schema, Schema):
    got = messages.quoted(schema)
    raise ValueError(f'schema must be a MinSep or a FixedSeparation, got {got}')


class Cohort(NamedTuple):
  """Devices whose updates form a round's sum.

  Attributes:
    round: index of the round, from 0.
    device_ids: shape [cohort size], in the order of the devices' numbers.
    started: UTC second at which the server began to choose devices.
    closed: UTC second at which the last device of the cohort reported; also the timestamp of
      the round in the log.
  """

  round: int
  device_ids: np.ndarray
  started: int
  closed: int


class Limited(Protocol):
  """A mechanism that may have a last round, as every `mechanisms.base.Strategy` says."""

  @property
  def family(self) -> str: ...

  @property
  def max_rounds(self) -> int | None: ...


def check_num_rounds(strategy: Limited, num_rounds: int) -> None:
  """Raises ValueError unless the strategy can run for num_rounds rounds."""
  if num_rounds is None:
    most = 'any number' if strategy.max_rounds is None else f'at most {strategy.max_rounds}'
    raise ValueError(
      f'num_rounds=None must be a number of rounds; this {strategy.family} strategy runs {most}'
    )
  checks.whole(num_rounds=num_rounds)
  if strategy.max_rounds is not None and num_rounds > strategy.max_rounds:
    raise ValueError(
      f'num_rounds={num_rounds} is beyond the {strategy.max_rounds} rounds'
      f' that this {strategy.family} strategy was made for'
    )
