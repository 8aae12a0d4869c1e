"""How a run's participation may come out: several simulations, and a margin.

Each simulation is of the whole population. A tenth of the devices with a tenth
of the report goal would take a tenth of the time, but rounds wait for the
slowest of their reports, and would be shorter: b comes out too large, 222 where
it is 165, and ε too small.
"""

import dataclasses
import statistics
from typing import Callable, Protocol, Sequence

from fl_dpftrl import participation
from fl_dpftrl.planning import trial as trial_lib
from fl_dpftrl.planning import workers
from fl_dpftrl.simulation import cohorts

FIELDS = ('num_rounds', 'min_sep', 'max_participations', 'days')


class Simulate(Protocol):
  """Gives the simulation to run."""

  def __call__(
      self, *, seed: int, report_goal: int | None = None
  ) -> cohorts.Simulation:
    """With this seed, and this report goal instead of the planned one."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Margin:
  """What is kept in hand for draws that were not simulated.

  Attributes:
    min_sep: by which b is planned below the lowest seen.
    max_participations: by which k is planned above the highest seen.
    enforced: min-sep that the devices keep to in any case.
  """

  min_sep: int
  max_participations: int
  enforced: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
  """What simulations came to, and others near them.

  Attributes:
    outcomes: of the run that is planned, one for each seed.
    margin: in hand.
    more_goals: other report goals, with the first seed alone.
    more_rounds: other numbers of rounds, likewise.
    stalled: report goals or numbers of rounds that were not reached, as pairs
      of a field of `Outcome` and a value, with the reason.
    closer: how participations were spread with the first seed.
  """

  outcomes: tuple[trial_lib.Outcome, ...]
  margin: Margin
  more_goals: tuple[trial_lib.Outcome, ...]
  more_rounds: tuple[trial_lib.Outcome, ...]
  stalled: dict[tuple[str, int], str]
  closer: trial_lib.Closer

  @property
  def planned(self) -> participation.MinSep:
    """Worse than all that was seen: what to account for beforehand."""
    lowest = min(o.min_sep for o in self.outcomes)
    highest = max(o.max_participations for o in self.outcomes)
    return self._schema(
        self.outcomes[0].num_rounds,
        lowest,
        lowest - self.margin.min_sep,
        highest + self.margin.max_participations,
    )

  def planned_like(self, outcome: trial_lib.Outcome) -> participation.MinSep:
    """What to account for where the first seed came to this.

    As much worse as the planned run is than what the first seed came to.
    """
    first, planned = self.outcomes[0], self.planned
    more = planned.max_participations - first.max_participations
    return self._schema(
        outcome.num_rounds,
        outcome.min_sep,
        outcome.min_sep - (first.min_sep - planned.min_sep),
        outcome.max_participations + more,
    )

  def _schema(
      self, num_rounds: int, seen: int, min_sep: int, max_participations: int
  ) -> participation.MinSep:
    """With the min-sep that is enforced, but none above what was seen."""
    min_sep = max(1, min(self.margin.enforced, seen), min_sep)
    fits = -(-num_rounds // min_sep)
    return participation.MinSep(
        num_rounds=num_rounds,
        min_sep=min_sep,
        max_participations=min(fits, max_participations),
    )

  @property
  def schemas(self) -> tuple[participation.MinSep, ...]:
    """All that was seen and what is planned, by b."""
    found = {outcome.schema for outcome in self.outcomes} | {self.planned}
    key = lambda schema: (schema.min_sep, -schema.participations)
    return tuple(sorted(found, key=key))

  @property
  def expected(self) -> dict[str, float]:
    """The mean of each field."""
    return {
        name: statistics.fmean(getattr(o, name) for o in self.outcomes)
        for name in FIELDS
    }

  @property
  def range(self) -> dict[str, tuple[float, float]]:
    """The lowest and highest of each field."""
    found = {}
    for name in FIELDS:
      values = [getattr(outcome, name) for outcome in self.outcomes]
      found[name] = min(values), max(values)
    return found


def forecast(
    simulate: Simulate,
    *,
    num_rounds: int,
    seeds: Sequence[int],
    report_goals: Sequence[int] = (),
    more_rounds: Sequence[int] = (),
    num_workers: int = 1,
    progress: Callable[[float], None] = lambda share: None,
) -> Forecast:
  """Simulates the planned run with each seed, and others with the first.

  Args:
    simulate: gives simulations.
    num_rounds: n of the planned run.
    seeds: different ones, at least one.
    report_goals: others than the planned.
    more_rounds: other numbers of rounds.
    num_workers: processes at a time; of no influence on what comes out.
    progress: told how much of all is done, of 1, now and then.

  Raises:
    StalledRound: where the planned run does not get to its end with some seed.
    ValueError: for arguments outside their ranges.
  """
  if not seeds:
    raise ValueError('seeds must be at least one, got none')
  participation.positive_integer('num_rounds', num_rounds)
  for other in more_rounds:
    participation.positive_integer('more_rounds', other)
  checkpoints = tuple(sorted({num_rounds, *more_rounds}))
  first, *rest = seeds
  of_first = simulate(seed=first)
  tasks = [
      trial_lib.Task(
          simulation=of_first, checkpoints=checkpoints, closer_at=num_rounds
      ),
      *(
          trial_lib.Task(
              simulation=simulate(seed=seed), checkpoints=(num_rounds,)
          )
          for seed in rest
      ),
      *(
          trial_lib.Task(
              simulation=simulate(seed=first, report_goal=goal),
              checkpoints=(num_rounds,),
          )
          for goal in report_goals
      ),
  ]
  trials = workers.run(tasks, num_workers=num_workers, progress=progress)
  of_run, of_goals = trials[: len(seeds)], trials[len(seeds) :]
  outcomes = []
  for trial in of_run:
    there = [o for o in trial.outcomes if o.num_rounds == num_rounds]
    if not there:
      raise cohorts.StalledRound(trial.stalled)
    outcomes += there
  stalled = {}
  for goal, trial in zip(report_goals, of_goals):
    if trial.stalled is not None:
      stalled['report_goal', goal] = trial.stalled
  for rounds in checkpoints[len(of_run[0].outcomes) :]:
    stalled['num_rounds', rounds] = of_run[0].stalled
  return Forecast(
      outcomes=tuple(outcomes),
      margin=margin(outcomes, trial_lib.enforced_min_sep(of_first)),
      more_goals=tuple(o for trial in of_goals for o in trial.outcomes),
      more_rounds=tuple(
          o for o in of_run[0].outcomes if o.num_rounds != num_rounds
      ),
      stalled=stalled,
      closer=of_run[0].closer,
  )


def margin(
    outcomes: Sequence[trial_lib.Outcome], enforced: int = 1
) -> Margin:
  """As much again as the outcomes differ among themselves, and at least 1."""
  spreads = []
  for name in ('min_sep', 'max_participations'):
    values = [getattr(outcome, name) for outcome in outcomes]
    spreads.append(max(1, max(values) - min(values)))
  return Margin(
      min_sep=spreads[0], max_participations=spreads[1], enforced=enforced
  )
