"""The claim of a run, and what its log shows, with a JSON form."""

import dataclasses
import functools
from typing import Any

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import layouts, table_columns
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import per_units, separations
from fl_dpftrl.support.files import json_files


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitFacts:
  """The units of a run, such as people, and what its log shows of them.

  Attributes:
    name: a unit in words, in the singular.
    num_units: units in the table; None in a publishable statement.
    num_devices: devices in the table; None in a publishable statement.
    max_rows: most devices of one unit in one round of the log.
    cited: whether the log cites the table, from before its first round on.
    counted: confidential counts of units; None in a publishable statement.
  """

  name: str
  max_rows: int
  cited: bool
  num_units: int | None = None
  num_devices: int | None = None
  counted: participation_counts.RunCounts | None = None

  def to_json(self) -> json_files.Object:
    """Returns the facts, with the counts where they are known."""
    result = fields(self, 'name', 'max_rows', 'cited')
    if self.counted is not None:
      result |= fields(self, 'num_units', 'num_devices')
      names = ('num_devices', 'num_participations', 'separations', 'participations', 'witness')
      counts = self.counted.to_json()
      shown = {'num_devices': 'num_participating', 'num_participations': 'num_rounds_of_units'}
      result |= {shown.get(name, name): counts[name] for name in names}
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
  """The claim of a run, and what its log shows.

  Attributes:
    min_sep: b, rounds; the least separation in the log.
    layout: where the log's files have their columns.
    unused_columns: names of columns of the log that nothing read; none in a publishable statement.
    claim_in_log: whether the log's metadata state the claim.
    recorded: participation that log or folder state, whatever is claimed; None if none is.
    schema_in_log: whether they state the declared schema, as it was written before round 0.
    num_rounds_assumed: whether the number of rounds rests only on the last round.
    from_counts: whether counts were given in place of the log's rows.
    counted: confidential counts of devices; None in a publishable statement.
    units: the units that own the devices; None where each device is one of its own.
    log: name and SHA-256 of each file that was read; None in a publishable statement.
  """

  claim: run_claim.Claim
  num_rounds: int
  min_sep: int
  max_participations: int
  layout: table_columns.TableColumns = layouts.PLAIN
  unused_columns: tuple[str, ...] = ()
  claim_in_log: bool = False
  recorded: Participation | None = None
  schema_in_log: bool = False
  num_rounds_assumed: bool = False
  from_counts: bool = False
  counted: participation_counts.RunCounts | None = None
  units: UnitFacts | None = None
  log: tuple[dict[str, str], ...] | None = None

  @property
  def schema(self) -> Participation:
    """The strictest schema that every device kept to, or every unit."""
    return self._schema(self.num_rounds)

  @property
  def spent(self) -> Participation:
    """The same over all rows of noise that may follow, where the claimed run has no end."""
    planned = self.claim.participation
    return self.schema if planned is None or planned.num_rounds else self._schema(None)

  def _schema(self, num_rounds: int | None) -> Participation:
    schema = separations.MinSep(num_rounds, self.min_sep, self.max_participations)
    if self.units is None:
      return schema
    return per_units.PerUnit(schema, self.units.max_rows, self.units.name)

  @property
  def counted_units(self) -> participation_counts.RunCounts | None:
    """Counts of what is protected: devices, or the units that own them."""
    return self.counted if self.units is None else self.units.counted

  @property
  def rounds_short_of_report_goal(self) -> int | None:
    """Rounds with fewer devices than the report goal; None where batches are of any size."""
    claim = self.claim
    if self.counted is None or claim.report_goal is None or claim.is_drawn:
      return None
    return self.counted.rounds_short_of(claim.report_goal)

  @functools.cached_property
  def strategy(self) -> dict[str, str]:
    """Family of the strategy, and SHA-256 of its family and parameters."""
    return self.claim.to_json()['strategy']

  def to_json(self) -> json_files.Object:
    """Returns the facts; those that are not known, or did not occur, are left out."""
    claim, counted = self.claim, self.counted
    has_arithmetic = claim.arithmetic != arithmetics.Arithmetic()
    optional = {
      'log': self.log and list(self.log),
      'units': self.units and self.units.to_json(),
      'num_rounds_assumed': self.num_rounds_assumed or None,
      'from_counts': self.from_counts or None,
      'unused_columns': list(self.unused_columns) or None,
      'report_goal': claim.report_goal,
      'rounds_short_of_report_goal': self.rounds_short_of_report_goal,
      'clip_norm': claim.first_clip_norm,
      'adaptive_clipping': claim.adaptive_clipping and vars(claim.adaptive_clipping),
      'private_metrics': claim.private_metrics and dict(claim.private_metrics.bounds),
      'arithmetic': claim.arithmetic.kind if has_arithmetic else None,
      'num_coordinates': claim.arithmetic.num_coordinates,
      'canaries': claim.canaries and claim.canaries.number,
      'schema_in_log': self.schema_in_log or None,
      'not_private_metrics': list(claim.not_private_metrics) or None,
      'trusted_operations': list(claim.trusted_operations) or None,
    }
    counts = counted.to_json() if counted else {}
    return {
      'num_rounds': self.num_rounds,
      **{name: counts.pop(name) for name in ('num_devices', 'num_participations') if counts},
      **fields(self, 'min_sep', 'max_participations'),
      'noise_multiplier': claim.noise_multiplier,
      'strategy': self.strategy,
      **counts,
      **{name: value for name, value in optional.items() if value is not None},
    }


def fields(record: Any, *names: str) -> json_files.Object:
  """Returns the named fields of a record."""
  return {name: getattr(record, name) for name in names}
