"""Runs beside the planned one, simulated in small and set right by it.

They are for comparison, so fewer devices will do, with report goals in
proportion. Rounds of small cohorts are shorter, where they wait for the slowest
of their reports, and b comes out larger: it is lowered, k raised and days
changed as the planned run differs between its two simulations.
"""

import dataclasses
import math
from typing import Sequence

from fl_dpftrl.planning import trial as trial_lib

_MOST = 4_000_000  # participations of one simulation
_FEWEST = 50  # devices of a cohort


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbours:
  """Other report goals and numbers of rounds.

  Attributes:
    report_goal: of the planned run.
    num_rounds: of the planned run.
    report_goals: others, with as many rounds.
    more_rounds: others, with the same report goal.
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
    """By which devices and report goals are divided."""
    if not (self.report_goals or self.more_rounds):
      return 1
    goals = (self.report_goal, *self.report_goals)
    most = max(
        max(goals) * self.num_rounds, self.report_goal * self.checkpoints[-1]
    )
    return max(1, min(most // _MOST, min(goals) // _FEWEST))

  def small(self, report_goal: int) -> int:
    """A report goal in the simulations."""
    return max(1, round(report_goal / self.scale))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nearby:
  """What became of them.

  Attributes:
    outcomes: as they would be at full size.
    stalled: report goals or numbers of rounds that were not reached, as pairs
      of a field of `Outcome` and a value, with the reason.
    scale: by which devices and report goals were divided in the simulations.
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
  """Sets right what small simulations came to.

  Args:
    neighbours: that were simulated.
    planned: what the planned run came to at full size.
    of_rounds: the planned run in small, with its checkpoints.
    of_goals: a trial in small for each other report goal.
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
  return Nearby(
      outcomes=tuple(outcomes), stalled=stalled, scale=neighbours.scale
  )


def _set_right(
    outcome: trial_lib.Outcome,
    small: trial_lib.Outcome,
    planned: trial_lib.Outcome,
) -> trial_lib.Outcome:
  """Never to a larger b or a smaller k."""
  lower = min(1.0, planned.min_sep / small.min_sep)
  more = max(1.0, planned.max_participations / small.max_participations)
  return dataclasses.replace(
      outcome,
      report_goal=planned.report_goal,
      min_sep=max(1, math.floor(outcome.min_sep * lower)),
      max_participations=math.ceil(outcome.max_participations * more),
      days=outcome.days * (planned.days / small.days),
  )
