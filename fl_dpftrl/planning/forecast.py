"""How a run's participation may come out: several simulations, and a margin.

The planned run is simulated with the whole population, since b depends on the
size of cohorts: without over-selection, a tenth of the devices with a tenth of
the report goal has a larger b (222 where it was 165), which understates ε.
"""

import dataclasses
import math
import statistics
from typing import Callable, Protocol, Sequence

from fl_dpftrl import participation
from fl_dpftrl.planning import nearby as nearby_lib
from fl_dpftrl.planning import trial as trial_lib
from fl_dpftrl.planning import workers
from fl_dpftrl.simulation import cohorts

_LEAST_MARGIN = 0.01  # of b

FIELDS = ('num_rounds', 'min_sep', 'max_participations', 'days')


class Simulate(Protocol):
  """Gives the simulation to run."""

  def __call__(
      self,
      *,
      seed: int,
      num_devices: int | None = None,
      report_goal: int | None = None,
  ) -> cohorts.Simulation:
    """With this seed, and these instead of what is planned."""
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
    nearby: other report goals and numbers of rounds, with the first seed.
    closer: how participations were spread with the first seed, if that is
      known.
  """

  outcomes: tuple[trial_lib.Outcome, ...]
  margin: Margin
  nearby: nearby_lib.Nearby
  closer: trial_lib.Closer | None

  @property
  def planned(self) -> participation.MinSep:
    """Worse than all that was seen: what to account for beforehand."""
    first = self.outcomes[0]
    return self._schema(first, min(o.min_sep for o in self.outcomes))

  def planned_like(self, outcome: trial_lib.Outcome) -> participation.MinSep:
    """What to account for where the first seed came to this.

    As much worse than that as the planned run is planned for.
    """
    return self._schema(outcome, outcome.min_sep)

  def _schema(
      self, outcome: trial_lib.Outcome, seen: int
  ) -> participation.MinSep:
    """With the min-sep that is enforced, but none above what was seen."""
    first = self.outcomes[0]
    lowest = min(o.min_sep for o in self.outcomes) - self.margin.min_sep
    highest = max(o.max_participations for o in self.outcomes)
    highest += self.margin.max_participations
    min_sep = max(
        1,
        min(self.margin.enforced, seen),
        outcome.min_sep - (first.min_sep - lowest),
    )
    fits = -(-outcome.num_rounds // min_sep)
    more = highest - first.max_participations
    return participation.MinSep(
        num_rounds=outcome.num_rounds,
        min_sep=min_sep,
        max_participations=min(fits, outcome.max_participations + more),
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
  for name, values in (
      ('num_rounds', [num_rounds]), ('more_rounds', more_rounds),
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
  """The planned run with each seed, then in small, then other report goals.

  Where small is full size, the first of them is the second too.
  """
  planned, every = (neighbours.num_rounds,), neighbours.checkpoints
  is_small = neighbours.scale > 1
  devices = first.population.num_devices // neighbours.scale

  def small(report_goal):
    return simulate(
        seed=seeds[0],
        num_devices=devices,
        report_goal=neighbours.small(report_goal),
    )

  tasks = [
      trial_lib.Task(
          simulation=first if seed == seeds[0] else simulate(seed=seed),
          checkpoints=planned if is_small or seed != seeds[0] else every,
          closer_at=neighbours.num_rounds if seed == seeds[0] else None,
      )
      for seed in seeds
  ]
  if is_small:
    tasks.append(trial_lib.Task(
        simulation=small(neighbours.report_goal), checkpoints=every
    ))
  tasks += [
      trial_lib.Task(simulation=small(goal), checkpoints=planned)
      for goal in neighbours.report_goals
  ]
  return tasks


def of(
    outcomes: Sequence[trial_lib.Outcome],
    *,
    enforced: int = 1,
    nearby: nearby_lib.Nearby = nearby_lib.Nearby(),
    closer: trial_lib.Closer | None = None,
) -> Forecast:
  """The forecast from simulations that were made.

  Args:
    outcomes: of one n.
    enforced: min-sep that the devices keep to in any case.
    nearby: other runs.
    closer: how participations were spread with the first seed.
  """
  return Forecast(
      outcomes=tuple(outcomes),
      margin=margin(outcomes, enforced),
      nearby=nearby,
      closer=closer,
  )


def margin(
    outcomes: Sequence[trial_lib.Outcome], enforced: int = 1
) -> Margin:
  """By how much the outcomes differ, and more: draws that were not seen.

  For b twice the difference, and 1 % at least, since few simulations may agree
  by chance; for k once, and 1 at least.
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
