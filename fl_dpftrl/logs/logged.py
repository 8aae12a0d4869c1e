"""Participation as observed in a log."""

import dataclasses
from typing import NamedTuple

import numpy as np

from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation import counts, schemas

_LISTED = 10


class Witness(NamedTuple):
  """Two participations of one device that are as close as any in the log."""

  device_id: str | int
  first_round: int
  second_round: int

  @property
  def order(self) -> tuple:
    """Sort key: the closest pair first, then by device and round."""
    return (self.second_round - self.first_round, *self)


@dataclasses.dataclass(frozen=True, eq=False)
class LogTally:
  """Counts of one log.

  Attributes:
    cohorts: number of devices, by round; rounds without any are left out.
    separations: number of occurrences, by the difference between successive rounds of a device.
    participations: number of devices, by how many rounds each took part in.
    witness: an example of the least separation; None if no device took part twice.
    newcomers: number of devices that take part for the first time, by round.
  """

  cohorts: counts.Counts = counts.Counts()
  separations: counts.Counts = counts.Counts()
  participations: counts.Counts = counts.Counts()
  witness: Witness | None = None
  newcomers: counts.Counts = counts.Counts()

  def __add__(self, other: 'LogTally') -> 'LogTally':
    witnesses = [w for w in (self.witness, other.witness) if w is not None]
    return LogTally(
      self.cohorts + other.cohorts,
      self.separations + other.separations,
      self.participations + other.participations,
      min(witnesses, key=lambda w: w.order, default=None),
      self.newcomers + other.newcomers,
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LoggedParticipation(LogTally):
  """Counts of a whole log with its number of rounds.

  Attributes:
    num_rounds: n, rows of noise consumed.
  """

  num_rounds: int

  @classmethod
  def of(cls, log: log_lib.Log, tally: LogTally) -> 'LoggedParticipation':
    """Combines a log with its counts; raises LogError if it has no rows."""
    if not tally.cohorts.total:
      raise refusals.LogError(f'{log.shards[0].path}: the log is empty')
    return cls(num_rounds=log.num_rounds, **vars(tally))

  @property
  def num_devices(self) -> int:
    return self.participations.total

  @property
  def num_participations(self) -> int:
    return self.cohorts.total

  @property
  def min_sep(self) -> int:
    """b, the least difference between two rounds of one device; n if none."""
    values = self.separations.values
    return int(values[0]) if values.size else self.num_rounds

  @property
  def max_participations(self) -> int:
    """k, the largest number of rounds of any device."""
    return int(self.participations.values[-1])

  @property
  def schema(self) -> schemas.MinSep:
    """The strictest schema that every device kept to."""
    return schemas.MinSep(
      num_rounds=self.num_rounds, min_sep=self.min_sep, max_participations=self.max_participations
    )

  @property
  def rounds_without_participants(self) -> int:
    return self.num_rounds - self.cohorts.values.size

  def first_gaps(self) -> list[tuple[int, int]]:
    """First and last round of the first few gaps without participants."""
    present = np.concatenate([[-1], self.cohorts.values, [self.num_rounds]])
    before = np.flatnonzero(np.diff(present) > 1)[:_LISTED]
    return [(int(present[i]) + 1, int(present[i + 1]) - 1) for i in before]

  def rounds_short_of(self, report_goal: int) -> int:
    """Counts rounds with fewer devices than the goal, empty ones included."""
    enough = (self.cohorts.counts >= report_goal).sum()
    return self.num_rounds - int(enough)

  def keeps_to(self, schema: schemas.MinSep) -> bool:
    """Returns whether every device kept to a schema for the same rounds.

    Raises:
      ValueError: if the schema is for other rounds, or for a fixed separation, which min_sep
        alone cannot confirm.
    """
    if schema.num_rounds != self.num_rounds:
      raise ValueError(
        f'declared is for {schema.num_rounds} rounds, but the log has {self.num_rounds}'
      )
    if isinstance(schema, schemas.FixedSeparation):
      raise ValueError('declared must be a MinSep, got a FixedSeparation')
    apart = self.witness is None or self.min_sep >= schema.min_sep
    return apart and self.max_participations <= schema.participations

  def warnings(self) -> list[str]:
    """Warnings about the log for a reader, one line each."""
    missing = self.rounds_without_participants
    if not missing:
      return []
    first, last = self.first_gaps()[0]
    return [
      f'{missing} of {self.num_rounds} rounds have no participants, the first of them {first}'
      + (f' to {last}' if last > first else '')
      + ('; if rounds begin at 1, give --first_round=1' if (missing, last) == (1, 0) else '')
      + '; if rows are missing from the log, every figure is too small'
    ]
