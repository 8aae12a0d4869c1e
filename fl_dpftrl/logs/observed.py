"""What a participation log says happened."""

import dataclasses

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.logs import counts as counts_lib
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import tally as tally_lib

_LISTED = 10


@dataclasses.dataclass(frozen=True, eq=False)
class ObservedParticipation:
  """What happened in the rounds of one log.

  Attributes:
    num_rounds: n, rows of noise consumed.
    cohorts: for each round with participants, how many.
    separations: for each difference between successive rounds of a device that
      occurred, how often.
    participations: for each number of rounds that a device took part in, how
      many devices.
    witness: an example of min_sep; None where no device took part twice.
    newcomers: for each round with devices that were in none before, how many.
  """

  num_rounds: int
  cohorts: counts_lib.Counts
  separations: counts_lib.Counts
  participations: counts_lib.Counts
  witness: tally_lib.Witness | None
  newcomers: counts_lib.Counts

  @classmethod
  def of(
      cls, log: log_lib.Log, tally: tally_lib.LogTally
  ) -> 'ObservedParticipation':
    """Raises LogError where the log has no rows."""
    if not tally.cohorts.total:
      raise log_lib.LogError(f'{log.shards[0].path}: the log is empty')
    fields = {
        field.name: getattr(tally, field.name)
        for field in dataclasses.fields(tally)
    }
    return cls(log.num_rounds, **fields)

  @property
  def num_devices(self) -> int:
    return self.participations.total

  @property
  def num_participations(self) -> int:
    return self.cohorts.total

  @property
  def min_sep(self) -> int:
    """b, the least difference between two rounds of one device, else n."""
    values = self.separations.values
    return int(values[0]) if values.size else self.num_rounds

  @property
  def max_participations(self) -> int:
    """k, the most rounds of one device."""
    return int(self.participations.values[-1])

  @property
  def schema(self) -> participation.MinSep:
    """The strictest that every device kept to."""
    return participation.MinSep(
        num_rounds=self.num_rounds,
        min_sep=self.min_sep,
        max_participations=self.max_participations,
    )

  @property
  def rounds_without_participants(self) -> int:
    return self.num_rounds - self.cohorts.values.size

  def first_gaps(self) -> list[tuple[int, int]]:
    """The first few runs of rounds without participants: first and last."""
    present = np.concatenate([[-1], self.cohorts.values, [self.num_rounds]])
    before = np.flatnonzero(np.diff(present) > 1)[:_LISTED]
    return [
        (int(present[i]) + 1, int(present[i + 1]) - 1) for i in before
    ]

  def rounds_short_of(self, report_goal: int) -> int:
    """Rounds with fewer devices than the goal, those with none included."""
    enough = (self.cohorts.counts >= report_goal).sum()
    return self.num_rounds - int(enough)

  def keeps_to(self, schema: participation.MinSep) -> bool:
    """Whether every device kept to a schema of the same rounds.

    Raises:
      ValueError: where the schema is for other rounds, or for a fixed
        separation, to which a log cannot be held by min_sep alone.
    """
    if schema.num_rounds != self.num_rounds:
      raise ValueError(
          f'declared is for {schema.num_rounds} rounds, but the log has'
          f' {self.num_rounds}'
      )
    if isinstance(schema, participation.FixedSeparation):
      raise ValueError('declared must be a MinSep, got a FixedSeparation')
    apart = self.witness is None or self.min_sep >= schema.min_sep
    return apart and self.max_participations <= schema.participations

  def warnings(self) -> list[str]:
    """What a reader should know, in lines."""
    missing = self.rounds_without_participants
    if not missing:
      return []
    first, last = self.first_gaps()[0]
    return [
        f'{missing} of {self.num_rounds} rounds have no participants, the first'
        f' of them {first}'
        + (f' to {last}' if last > first else '')
        + '; if rows are missing from the log, every figure is too small'
    ]
