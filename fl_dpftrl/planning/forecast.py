"""Forecast of a run's participation from several simulations and a margin.

The planned run is simulated with the whole population, because b depends on the cohort size.
Without over-selection, a tenth of the devices and report goal gives a larger b (222 instead of
165), which understates ε.

Runs near the planned one are simulated at reduced size: they are only for comparison. Report
goals and devices are scaled down together. Rounds of small cohorts are shorter if they wait for
their slowest report, and b comes out larger. The results are therefore corrected: b is lowered, k
raised and days changed by the difference between the planned run at full and at reduced size.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.planning import simulating
from fl_dpftrl.simulation import cohorts

# Factory of the plan's simulation: called with the keyword seed, and num_devices and report_goal
# where they replace the plan's.
Simulate = Callable[..., cohorts.Simulation]

_LEAST_MARGIN = 0.01  # smallest margin of b, relative to b

FIELDS = ('num_rounds', 'min_sep', 'max_participations', 'days')

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

  outcomes: tuple[simulating.Outcome, ...] = ()
  stalled: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)
  scale: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
  """Outcomes of the planned run and of runs near it.

  Attributes:
    outcomes: outcomes of the planned run, one per seed.
    enforced: min-sep that the devices enforce in any case.
    nearby: other report goals and numbers of rounds, with the first seed.
    closer: distribution of participations with the first seed; None if unknown.
  """

  outcomes: tuple[simulating.Outcome, ...]
  enforced: int = 1
  nearby: Nearby = Nearby()
  closer: simulating.Closer | None = None

  @property
  def planned(self) -> participation.MinSep:
    """Schema to account for in advance, worse than all simulated outcomes.

    Few simulations may agree by chance. The planned b is therefore below the lowest by twice the
    spread of the outcomes, and by at least 1 %; the planned k is above the highest by the spread,
    and by at least 1, if so many participations fit.
    """
    return self._schema(self.outcomes[0], min(o.min_sep for o in self.outcomes))

  def planned_like(self, outcome: simulating.Outcome) -> participation.MinSep:
    """Returns the schema to account for if the first seed had this outcome.

    It is worse than the outcome by as much as in the planned run.
    """
    return self._schema(outcome, outcome.min_sep)

  def _schema(self, outcome: simulating.Outcome, seen: int) -> participation.MinSep:
    """Returns a schema with the enforced min-sep, but at most the one seen."""
    first = self.outcomes[0]
    lowest_b, highest_b = self.range['min_sep']
    lowest_k, highest_k = self.range['max_participations']
    margin_b = max(math.ceil(_LEAST_MARGIN * lowest_b), 2 * (highest_b - lowest_b))
    less = first.min_sep - (lowest_b - margin_b)
    more = highest_k + max(1, highest_k - lowest_k) - first.max_participations
    min_sep = max(1, min(self.enforced, seen), outcome.min_sep - less)
    fits = -(-outcome.num_rounds // min_sep)
    return participation.MinSep(
      num_rounds=outcome.num_rounds,
      min_sep=min_sep,
      max_participations=min(fits, outcome.max_participations + more),
    )

  @property
  def schemas(self) -> tuple[participation.MinSep, ...]:
    """All simulated schemas and the planned one, sorted by b."""
    distinct = {outcome.schema for outcome in self.outcomes} | {self.planned}
    key = lambda schema: (schema.min_sep, -schema.participations)
    return tuple(sorted(distinct, key=key))

  @property
  def expected(self) -> dict[str, float]:
    """Mean of each field over the simulations."""
    return {name: statistics.fmean(getattr(o, name) for o in self.outcomes) for name in FIELDS}

  @property
  def range(self) -> dict[str, tuple[Any, Any]]:
    """Lowest and highest value of each field over the simulations."""
    values = {name: [getattr(outcome, name) for outcome in self.outcomes] for name in FIELDS}
    return {name: (min(seen), max(seen)) for name, seen in values.items()}


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
  """Simulates the planned run with each seed, and other runs with the first.

  Args:
    simulate: factory of simulations.
    num_rounds: n of the planned run.
    seeds: distinct seeds, at least one.
    report_goals: other report goals.
    more_rounds: other numbers of rounds.
    num_workers: number of parallel processes; the results do not depend on it.
    progress: called from time to time with the completed fraction.

  Raises:
    StalledRound: if the planned run does not finish with some seed.
    ValueError: if an argument is out of range.
  """
  if not seeds:
    raise ValueError('seeds must be at least one, got none')
  for name, values in (
    ('num_rounds', [num_rounds]),
    ('more_rounds', more_rounds),
    ('report_goals', report_goals),
  ):
    for value in values:
      participation.positive_integer(name, value)
  first = simulate(seed=seeds[0])
  neighbours = Neighbours(
    report_goal=first.server.report_goal,
    num_rounds=num_rounds,
    report_goals=tuple(report_goals),
    more_rounds=tuple(more_rounds),
  )
  tasks = _tasks(simulate, first, seeds, neighbours)
  trials = simulating.run_all(tasks, num_workers=num_workers, progress=progress)
  of_run, of_others = trials[: len(seeds)], trials[len(seeds) :]
  outcomes = []
  for trial in of_run:
    there = [o for o in trial.outcomes if o.num_rounds == num_rounds]
    if not there:
      raise cohorts.StalledRound(trial.stalled)
    outcomes += there
  of_rounds = of_run[0] if neighbours.scale == 1 else of_others.pop(0)
  return Forecast(
    outcomes=tuple(outcomes),
    enforced=simulating.enforced_min_sep(first),
    nearby=corrected(neighbours, outcomes[0], of_rounds, of_others),
    closer=of_run[0].closer,
  )


def _tasks(
  simulate: Simulate, first: cohorts.Simulation, seeds: Sequence[int], neighbours: Neighbours
) -> list[simulating.Task]:
  """Returns tasks: the planned run per seed, in small, then other report goals.

  If the scale is 1, the first task is also the small one.
  """
  planned, every = (neighbours.num_rounds,), neighbours.checkpoints
  is_small = neighbours.scale > 1
  devices = first.population.num_devices // neighbours.scale

  def small(report_goal):
    return simulate(seed=seeds[0], num_devices=devices, report_goal=neighbours.small(report_goal))

  tasks = [
    simulating.Task(
      simulation=first if seed == seeds[0] else simulate(seed=seed),
      checkpoints=planned if is_small or seed != seeds[0] else every,
      closer_at=neighbours.num_rounds if seed == seeds[0] else None,
    )
    for seed in seeds
  ]
  if is_small:
    tasks.append(simulating.Task(simulation=small(neighbours.report_goal), checkpoints=every))
  tasks += [
    simulating.Task(simulation=small(goal), checkpoints=planned) for goal in neighbours.report_goals
  ]
  return tasks


def corrected(
  neighbours: Neighbours,
  planned: simulating.Outcome,
  of_rounds: simulating.Trial,
  of_goals: Sequence[simulating.Trial],
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

  for goal, one in zip(neighbours.report_goals, of_goals, strict=True):
    outcome = one.outcomes[0] if one.outcomes else None
    add('report_goal', goal, outcome, one.stalled)
  for rounds in neighbours.more_rounds:
    add('num_rounds', rounds, by_rounds.get(rounds), of_rounds.stalled)
  return Nearby(outcomes=tuple(outcomes), stalled=stalled, scale=neighbours.scale)


def _set_right(
  outcome: simulating.Outcome, small: simulating.Outcome, planned: simulating.Outcome
) -> simulating.Outcome:
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
