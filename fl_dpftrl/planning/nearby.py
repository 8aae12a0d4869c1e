"""Runs near the planned one, simulated at reduced size and corrected.

These runs are only for comparison, so report goals and devices are scaled down together. Rounds
of small cohorts are shorter if they wait for their slowest report, and b comes out larger. The
results are therefore corrected: b is lowered, k raised and days changed by the difference
between the planned run at full and at reduced size.
"""

import dataclasses
import math
from collections.abc import Sequence

from fl_dpftrl.planning import trial as trial_lib

_MOST = 4_000_000  # maximum participations per simulation
_FEWEST = 50  # minimum devices per cohort


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbours:
  """Other report goals and numbers of rounds.

  Attributes:
    report_goal: report goal of the planned run.
    num_rounds: number of rounds of the planned run.
    report_goals: other report goals, with the planned number of rounds.
    more_rounds: other numbers of rounds, with the planned report goal.
  """

  report_goal: int
  num_rounds: int
  report_goals: Sequence[int] = ()
  more_rounds: Sequence[int] = ()

  @property
  def checkpoints(self) -> tuple[int, ...]:
    return tuple(sorted({self.num_rounds, *self.more_rounds}))

  @property
  def scale(self) -> int:
    """Divisor of the numbers of devices and of the report goals."""
    if not (self.report_goals or self.more_rounds):
      return 1
    goals = (self.report_goal, *self.report_goals)
    most = max(max(goals) * self.num_rounds, self.report_goal * self.checkpoints[-1])
    return max(1, min(most // _MOST, min(goals) // _FEWEST))

  def small(self, report_goal: int) -> int:
    """Returns a report goal at the reduced size."""
    return max(1, round(report_goal / self.scale))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nearby:
  """Outcomes of the runs near the planned one.

  Attributes:
    outcomes: outcomes corrected to full size.
    stalled: report goals or numbers of rounds that were not reached, as pairs of an `Outcome`
      field and a value, with the reason.
    scale: divisor of devices and report goals in the simulations.
  """

  outcomes: tuple[trial_lib.Outcome, ...] = ()
  stalled: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)
  scale: int = 1


def nearby(
  neighbours: Neighbours,
  planned: trial_lib.Outcome,
  of_rounds: trial_lib.Trial,
  of_goals: Sequence[trial_lib.Trial],
) -> Nearby:
  """Corrects the outcomes of simulations at reduced size.

  Args:
    neighbours: runs that were simulated.
    planned: outcome of the planned run at full size.
    of_rounds: planned run at reduced size, with its checkpoints.
    of_goals: one trial at reduced size per other report goal.
  """
  by_rounds = {o.num_rounds: o for o in of_rounds.outcomes}
  small = by_rounds.pop(neighbours.num_rounds, None)
  outcomes, stalled = [], {}

  def add(name, value, outcome, reason):
    if small is None or outcome is None:
      stalled[name, value] = reason or of_rounds.stalled
      return
    right = _set_right(outcome, small, planned)
    outcomes.append(dataclasses.replace(right, **{name: value}))

  for goal, trial in zip(neighbours.report_goals, of_goals, strict=True):
    outcome = trial.outcomes[0] if trial.outcomes else None
    add('report_goal', goal, outcome, trial.stalled)
  for rounds in neighbours.more_rounds:
    add('num_rounds', rounds, by_rounds.get(rounds), of_rounds.stalled)
  return Nearby(outcomes=tuple(outcomes), stalled=stalled, scale=neighbours.scale)


def _set_right(
  outcome: trial_lib.Outcome, small: trial_lib.Outcome, planned: trial_lib.Outcome
) -> trial_lib.Outcome:
  """Corrects an outcome; b never becomes larger, nor k smaller."""
  lower = min(1.0, planned.min_sep / small.min_sep)
  more = max(1.0, planned.max_participations / small.max_participations)
  return dataclasses.replace(
    outcome,
    report_goal=planned.report_goal,
    min_sep=max(1, math.floor(outcome.min_sep * lower)),
    max_participations=math.ceil(outcome.max_participations * more),
    days=outcome.days * (planned.days / small.days),
  )
