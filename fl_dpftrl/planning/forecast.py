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
from collections.abc import Callable, Mapping, Sequence
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
class Forecast:
  """Outcomes of the planned run and of runs near it.

  Attributes:
    outcomes: outcomes of the planned run, one per seed.
    enforced: min-sep that the devices enforce in any case.
    nearby: outcomes with other report goals and numbers of rounds, by these two, with the first
      seed and corrected to full size; or the reason why there is none.
    scale: divisor of devices and report goals in the simulations of those.
    closer: distribution of participations with the first seed; None if unknown.
  """

  outcomes: tuple[simulating.Outcome, ...]
  enforced: int = 1
  nearby: Mapping[tuple[int, int], simulating.Outcome | str] = dataclasses.field(
    default_factory=dict
  )
  scale: int = 1
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
  goal, planned, every = first.server.report_goal, (num_rounds,), sorted({num_rounds, *more_rounds})
  goals = [other for other in report_goals if other != goal]
  scale = _scale([goal, *goals], num_rounds, every[-1]) if goals or more_rounds else 1

  def task(report_goal: int) -> simulating.Task:
    """Returns the task of a report goal with the first seed, at the reduced size."""
    return simulating.Task(
      simulation=simulate(
        seed=seeds[0],
        num_devices=first.population.num_devices // scale,
        report_goal=max(1, round(report_goal / scale)),
      ),
      checkpoints=every if report_goal == goal else planned,
    )

  tasks = [
    simulating.Task(
      simulation=first, checkpoints=every if scale == 1 else planned, closer_at=num_rounds
    ),
    *(simulating.Task(simulation=simulate(seed=s), checkpoints=planned) for s in seeds[1:]),
  ]
  small_goals = [goal, *goals] if scale > 1 else goals
  tasks += [task(report_goal) for report_goal in small_goals]
  trials = simulating.run_all(tasks, num_workers=num_workers, progress=progress)
  for trial in trials[: len(seeds)]:
    if num_rounds not in trial.outcomes:
      raise cohorts.StalledRound(trial.stalled)
  outcomes = tuple(trial.outcomes[num_rounds] for trial in trials[: len(seeds)])
  of_goal = {goal: trials[0], **dict(zip(small_goals, trials[len(seeds) :]))}
  others = [*((other, num_rounds) for other in goals), *((goal, rounds) for rounds in more_rounds)]
  return Forecast(
    outcomes=outcomes,
    enforced=simulating.enforced_min_sep(first),
    nearby=corrected(outcomes[0], of_goal, others),
    scale=scale,
    closer=trials[0].closer,
  )


def _scale(goals: Sequence[int], num_rounds: int, most_rounds: int) -> int:
  """Returns a divisor of the numbers of devices and of the report goals, the planned one first."""
  most = max(max(goals) * num_rounds, goals[0] * most_rounds)
  return max(1, min(most // _MOST, min(goals) // _FEWEST))


def corrected(
  planned: simulating.Outcome,
  of_goal: Mapping[int, simulating.Trial],
  others: Sequence[tuple[int, int]],
) -> dict[tuple[int, int], simulating.Outcome | str]:
  """Corrects the outcomes of simulations at reduced size: b never rises, nor does k fall.

  Args:
    planned: outcome of the planned run at full size.
    of_goal: one trial at reduced size per report goal, the planned one among them.
    others: report goals with numbers of rounds.
  """
  own = of_goal[planned.report_goal]
  small = own.outcomes.get(planned.num_rounds)
  results: dict[tuple[int, int], simulating.Outcome | str] = {}
  for goal, rounds in others:
    outcome = of_goal[goal].outcomes.get(rounds)
    if small is None or outcome is None:
      results[goal, rounds] = of_goal[goal].stalled or own.stalled or ''
      continue
    lower = min(1.0, planned.min_sep / small.min_sep)
    more = max(1.0, planned.max_participations / small.max_participations)
    results[goal, rounds] = dataclasses.replace(
      outcome,
      report_goal=goal,
      min_sep=max(1, math.floor(outcome.min_sep * lower)),
      max_participations=math.ceil(outcome.max_participations * more),
      days=outcome.days * (planned.days / small.days),
    )
  return results
