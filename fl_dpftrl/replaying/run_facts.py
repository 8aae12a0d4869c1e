"""The claim of a run, and what its log shows, with a JSON form."""

import dataclasses
import functools
from typing import Any

from fl_dpftrl import claims
from fl_dpftrl.accounting import arithmetics
from fl_dpftrl.files import json_files
from fl_dpftrl.logs import layouts
from fl_dpftrl.participation import participation_counts, schemas


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
  """The claim of a run, and what its log shows.

  Attributes:
    min_sep: b, rounds; the least separation in the log.
    layout: where the log's files have their columns.
    claim_in_log: whether the log's metadata state the claim.
    schema_in_log: whether they state the declared schema, as it was written before round 0.
    charged: numbers, from 1, of the runs that its loss budget counted as earlier runs.
    num_rounds_assumed: whether the number of rounds rests on the last round alone.
    from_counts: whether counts were given in place of the log's rows.
    counted: confidential counts; None in a publishable statement.
    log: name and SHA-256 of each file that was read; None in a publishable statement.
  """

  claim: claims.Claim
  num_rounds: int
  min_sep: int
  max_participations: int
  layout: layouts.Layout = layouts.PLAIN
  claim_in_log: bool = False
  schema_in_log: bool = False
  charged: tuple[int, ...] = ()
  num_rounds_assumed: bool = False
  from_counts: bool = False
  counted: participation_counts.RunCounts | None = None
  log: tuple[dict[str, str], ...] | None = None

  @property
  def schema(self) -> schemas.MinSep:
    """The strictest schema that every device kept to."""
    return schemas.MinSep(**fields(self, 'num_rounds', 'min_sep', 'max_participations'))

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
      'num_rounds_assumed': self.num_rounds_assumed or None,
      'from_counts': self.from_counts or None,
      'report_goal': claim.report_goal,
      'rounds_short_of_report_goal': self.rounds_short_of_report_goal,
      'clip_norm': claim.first_clip_norm,
      'adaptive_clipping': claim.adaptive_clipping and vars(claim.adaptive_clipping),
      'private_metrics': claim.private_metrics and dict(claim.private_metrics.bounds),
      'arithmetic': claim.arithmetic.kind if has_arithmetic else None,
      'num_coordinates': claim.arithmetic.num_coordinates,
      'schema_in_log': self.schema_in_log or None,
      'charged_runs': list(self.charged) or None,
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
