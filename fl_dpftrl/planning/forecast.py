"""Forecast of a run's participation from several simulations and a margin.

The planned run is simulated with the whole population, because b depends on the cohort size.
Without over-selection, a tenth of the devices and report goal gives a larger b (222 instead of
165), which understates ε.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

from fl_dpftrl import participation
from fl_dpftrl.planning import nearby as nearby_lib
from fl_dpftrl.planning import trial as trial_lib
from fl_dpftrl.planning import workers
from fl_dpftrl.simulation import cohorts

_LEAST_MARGIN = 0.01  # smallest margin of b, relative to b

FIELDS = ('num_rounds', 'min_sep', 'max_participations', 'days')


class Simulate(Protocol):
  """Factory of the simulation to run."""

  def __call__(
    self, *, seed: int, num_devices: int | None = None, report_goal: int | None = None
  ) -> cohorts.Simulation:
    """Returns the plan's simulation with this seed and these replacements."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Margin:
  """Reserved margin for outcomes that no simulation showed.

  Attributes:
    min_sep: amount by which the planned b is below the lowest simulated b.
    max_participations: amount by which the planned k is above the highest simulated k, if so
      many participations fit.
    enforced: min-sep that the devices enforce in any case.
  """

  min_sep: int
  max_participations: int
  enforced: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
  """Outcomes of the planned run and of runs near it.

  Attributes:
    outcomes: outcomes of the planned run, one per seed.
    margin: reserved margin.
    nearby: other report goals and numbers of rounds, with the first seed.
    closer: distribution of participations with the first seed; None if unknown.
  """

  outcomes: tuple[trial_lib.Outcome, ...]
  margin: Margin
  nearby: nearby_lib.Nearby
  closer: trial_lib.Closer | None

  @property
  def planned(self) -> participation.MinSep:
    """Schema to account for in advance, worse than all simulated outcomes."""
    first = self.outcomes[0]
    return self._schema(first, min(o.min_sep for o in self.outcomes))

  def planned_like(self, outcome: trial_lib.Outcome) -> participation.MinSep:
    """Returns the schema to account for if the first seed had this outcome.

    It is worse than the outcome by as much as in the planned run.
    """
    return self._schema(outcome, outcome.min_sep)

  def _schema(self, outcome: trial_lib.Outcome, seen: int) -> participation.MinSep:
    """Returns a schema with the enforced min-sep, but at most the one seen."""
    first = self.outcomes[0]
    lowest = min(o.min_sep for o in self.outcomes) - self.margin.min_sep
    highest = max(o.max_participations for o in self.outcomes)
    highest += self.margin.max_participations
    min_sep = max(1, min(self.margin.enforced, seen), outcome.min_sep - (first.min_sep - lowest))
    fits = -(-outcome.num_rounds // min_sep)
    more = highest - first.max_participations
    return participation.MinSep(
      num_rounds=outcome.num_rounds,
      min_sep=min_sep,
      max_participations=min(fits, outcome.max_participations + more),
    )

  @property
  def schemas(self) -> tuple[participation.MinSep, ...]:
    """All simulated schemas and the planned one, sorted by b."""
    found = {outcome.schema for outcome in self.outcomes} | {self.planned}
    key = lambda schema: (schema.min_sep, -schema.participations)
    return tuple(sorted(found, key=key))

  @property
  def expected(self) -> dict[str, float]:
    """Mean of each field over the simulations."""
    return {name: statistics.fmean(getattr(o, name) for o in self.outcomes) for name in FIELDS}

  @property
  def range(self) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each field over the simulations."""
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
  neighbours = nearby_lib.Neighbours(
    report_goal=first.server.report_goal,
    num_rounds=num_rounds,
    report_goals=tuple(report_goals),
    more_rounds=tuple(more_rounds),
  )
  tasks = _tasks(simulate, first, seeds, neighbours)
  trials = workers.run(tasks, num_workers=num_workers, progress=progress)
  of_run, of_others = trials[: len(seeds)], trials[len(seeds) :]
  outcomes = []
  for trial in of_run:
    there = [o for o in trial.outcomes if o.num_rounds == num_rounds]
    if not there:
      raise cohorts.StalledRound(trial.stalled)
    outcomes += there
  of_rounds = of_run[0] if neighbours.scale == 1 else of_others.pop(0)
  return of(
    outcomes,
    enforced=trial_lib.enforced_min_sep(first),
    nearby=nearby_lib.nearby(neighbours, outcomes[0], of_rounds, of_others),
    closer=of_run[0].closer,
  )


def _tasks(
  simulate: Simulate,
  first: cohorts.Simulation,
  seeds: Sequence[int],
  neighbours: nearby_lib.Neighbours,
) -> list[trial_lib.Task]:
  """Returns tasks: the planned run per seed, in small, then other report goals.

  If the scale is 1, the first task is also the small one.
  """
  planned, every = (neighbours.num_rounds,), neighbours.checkpoints
  is_small = neighbours.scale > 1
  devices = first.population.num_devices // neighbours.scale

  def small(report_goal):
    return simulate(seed=seeds[0], num_devices=devices, report_goal=neighbours.small(report_goal))

  tasks = [
    trial_lib.Task(
      simulation=first if seed == seeds[0] else simulate(seed=seed),
      checkpoints=planned if is_small or seed != seeds[0] else every,
      closer_at=neighbours.num_rounds if seed == seeds[0] else None,
    )
    for seed in seeds
  ]
  if is_small:
    tasks.append(trial_lib.Task(simulation=small(neighbours.report_goal), checkpoints=every))
  tasks += [
    trial_lib.Task(simulation=small(goal), checkpoints=planned) for goal in neighbours.report_goals
  ]
  return tasks


def of(
  outcomes: Sequence[trial_lib.Outcome],
  *,
  enforced: int = 1,
  nearby: nearby_lib.Nearby = nearby_lib.Nearby(),
  closer: trial_lib.Closer | None = None,
) -> Forecast:
  """Returns the forecast of finished simulations.

  Args:
    outcomes: outcomes of runs with one n.
    enforced: min-sep that the devices enforce in any case.
    nearby: outcomes of other runs.
    closer: distribution of participations with the first seed.
  """
  return Forecast(
    outcomes=tuple(outcomes), margin=margin(outcomes, enforced), nearby=nearby, closer=closer
  )


def margin(outcomes: Sequence[trial_lib.Outcome], enforced: int = 1) -> Margin:
  """Returns a margin from the spread of the outcomes.

  Few simulations may agree by chance. The margin of b is therefore twice the spread and at
  least 1 %; the margin of k is the spread and at least 1.
  """
  of_b, of_k = (
    max(values) - min(values)
    for values in zip(*((o.min_sep, o.max_participations) for o in outcomes))
  )
  lowest = min(outcome.min_sep for outcome in outcomes)
  return Margin(
    min_sep=max(math.ceil(_LEAST_MARGIN * lowest), 2 * of_b),
    max_participations=max(1, of_k),
    enforced=enforced,
  )
