"""Planner: simulates a population, evaluates strategies and recommends one."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from fl_dpftrl.participation.accounting import adjacencies, guarantees
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.planning import candidate_sets, forecasts, recommendation, search
from fl_dpftrl.planning.simulation import scenarios
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import json_files

TITLE = 'Plan: a prediction, not a guarantee'
MAX_COPIES = 16
"""Default limit of model copies; noise updates all of them in each round."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """Recommended configuration and its basis; `others` are plans for other report goals."""

  scenario: scenarios.Scenario
  forecast: forecasts.Forecast
  best: recommendation.Recommendation
  skipped: tuple[candidate_sets.Skipped, ...]
  max_copies: int
  objective: str
  others: tuple['Plan', ...] = ()

  @property
  def planned(self) -> separations.MinSep:
    """Schema for which ε is predicted, worse than all simulations."""
    return self.best.planned

  def to_json(self) -> json_files.Object:
    """Returns all figures; none of them is a guarantee."""
    forecast, planned, scenario = self.forecast, self.planned, self.scenario
    return {
      'population': scenario.population,
      'report_goal': scenario.report_goal,
      'num_rounds': planned.num_rounds,
      'timer_hours': scenario.timer_hours,
      'timer_rounds': scenario.timer_rounds,
      'seed': scenario.seed,
      'is_guarantee': False,
      'expected': forecast.expected,
      'range': {name: list(ends) for name, ends in forecast.range.items()},
      'simulations': [dict(vars(outcome)) for outcome in forecast.outcomes],
      'planned': planned.numbers,
      'recommended': self.best.to_json(),
      'objective': self.objective,
      'max_copies': self.max_copies,
      'alternatives': [option.to_json(planned) for option in self.best.alternatives],
      'skipped': [{'label': s.label, 'reason': s.reason} for s in self.skipped],
      'assumptions': list(self.assumptions),
      **({'report_goals': self.report_goals} if self.others else {}),
    }

  @property
  def summary(self) -> json_files.Object:
    """The recommended strategy, its noise and ε, and the participation that it is planned for."""
    best, planned, range_ = self.best, self.planned, self.forecast.range
    days = ' to '.join(dict.fromkeys(f'{end:.3g}' for end in range_['days']))
    return {
      'strategy': best.candidate.label,
      'memory_copies': best.candidate.memory_copies,
      'noise_multiplier': best.guarantee.noise_multiplier,
      'epsilon': best.guarantee.epsilon(),
      'delta': best.guarantee.delta,
      **planned.numbers,
      'days': days,
      'alternatives': len(best.alternatives),
    }

  def __repr__(self) -> str:
    return tables.at_a_prompt(TITLE, tables.table(self.summary).splitlines())

  @property
  def options(self) -> list[json_files.Object]:
    """A row for each strategy, the recommended one first: figures at the same ε."""
    best = self.best
    return [
      {
        'strategy': option.candidate.label,
        'memory_copies': option.candidate.memory_copies,
        'loss_ratio': option.loss_ratio,
        'noise_multiplier': option.guarantee.noise_multiplier,
        'epsilon': best.guarantee.epsilon(),
        'same_noise_epsilon': option.same_noise_epsilon,
      }
      for option in sorted(best.options, key=lambda option: option.candidate is not best.candidate)
    ]

  @property
  def report_goals(self) -> list[json_files.Object]:
    """A row for each report goal, with its noise in the mean relative to this plan's."""
    noise = lambda plan: plan.best.noise_in_model / plan.scenario.report_goal
    return [
      {
        'report_goal': plan.scenario.report_goal,
        'days': plan.forecast.expected['days'],
        'min_sep': plan.planned.min_sep,
        'max_participations': plan.planned.participations,
        'noise_multiplier': plan.best.guarantee.noise_multiplier,
        'epsilon': plan.best.guarantee.epsilon(),
        'noise_in_mean': noise(plan) / noise(self),
      }
      for plan in (self, *self.others)
    ]

  @property
  def assumptions(self) -> tuple[str, ...]:
    """Assumptions of the prediction, in words."""
    outcomes = self.forecast.outcomes
    planned = self.planned
    count = len(outcomes)
    seen = 'one simulation' if count == 1 else f'{count} simulations'
    margin_b = min(o.min_sep for o in outcomes) - planned.min_sep
    margin_k = planned.participations - max(o.max_participations for o in outcomes)
    is_full = planned.participations * planned.min_sep >= planned.num_rounds
    fits = ', as many as fit' if is_full else ''
    return (
      'devices are reached, check in, report and drop out as the simulation has it: rates, spreads'
      ' and habits are a model, not measurements of this population',
      f'in the run no device takes part more than {planned.participations} times or less than'
      f' {planned.min_sep} rounds apart; {seen} came to no worse, with a margin of {margin_b}'
      f' rounds on b and {margin_k} on k{fits}; other draws may go beyond',
      f'{planned.num_rounds} rows of noise are consumed: no round fails',
      'accuracy is the same if the noise in the model is the same, whatever'
      ' the report goal and the number of rounds',
      *guarantees.ASSUMPTIONS,
      *adjacencies.assumptions(self.best.guarantee.adjacency),
    )


def plan(
  scenario: scenarios.Scenario,
  *,
  num_rounds: int,
  seeds: Sequence[int] | None = None,
  delta: float,
  noise_multiplier: float | None = None,
  epsilon: float | None = None,
  objective: str = 'max',
  max_copies: int = MAX_COPIES,
  strategies: Sequence[str] | None = None,
  report_goals: Sequence[int] = (),
  progress: Callable[[str], None] = lambda text: None,
) -> Plan:
  """Plans a run.

  Args:
    scenario: population, timer and server of the run.
    num_rounds: n.
    seeds: seeds; the planned run is simulated once per seed. None for three seeds from that of
      the scenario on.
    delta: δ.
    noise_multiplier: std(Z) / clip norm of the recommended strategy as stored.
    epsilon: upper limit of ε; give exactly one of this and noise_multiplier.
    objective: 'rms' or 'max', the loss to minimise.
    max_copies: maximum number of model-sized vectors that the noise may store.
    strategies: mechanisms, names in matrices/ and files to choose from; None for all that can
      be evaluated in a few minutes.
    report_goals: other report goals to plan for, with the recommended strategy at the same ε.
    progress: called often with a description of the current step.

  Raises:
    StalledRound: if a round of the planned run cannot meet its report goal.
    ValueError: if an argument is out of range, or no strategy is suitable.
  """
  if scenario.loss_budget is not None or scenario.max_participations is not None:
    raise ValueError('scenario: a run without an end has no rounds to plan for; compare by horizon')
  seeds = range(scenario.seed, scenario.seed + 3) if seeds is None else seeds
  forecast = forecasts.forecast(
    lambda seed: scenario.simulation(seed=seed),
    num_rounds=num_rounds,
    seeds=seeds,
    progress=lambda share: progress(f'{100.0 * share:.0f} % of the simulations'),
  )

  planned = forecast.planned
  origins, skipped = search.named(strategies, planned)
  tried = search.find(
    origins, forecast.schemas, planned, objective=objective, watch=candidate_sets.watched(progress)
  )
  evaluated = [c for c in tried if isinstance(c, search.Evaluated)]
  skipped += [c for c in tried if isinstance(c, candidate_sets.Skipped)]
  if not evaluated:
    raise ValueError(
      f'none of the strategies is suitable: {"; ".join(f"{s.label}: {s.reason}" for s in skipped)}'
    )
  best = recommendation.recommend(
    evaluated,
    forecast.schemas,
    planned,
    [outcome.schema for outcome in forecast.outcomes],
    max_copies=max_copies,
    delta=delta,
    noise_multiplier=noise_multiplier,
    epsilon=epsilon,
  )
  others = tuple(
    plan(
      _with_report_goal(scenario, goal),
      num_rounds=num_rounds,
      seeds=seeds,
      delta=delta,
      epsilon=best.guarantee.epsilon(),
      objective=objective,
      max_copies=max_copies,
      strategies=[best.candidate.label],
      progress=progress,
    )
    for goal in report_goals
  )
  return Plan(
    scenario=scenario,
    forecast=forecast,
    best=best,
    skipped=tuple(skipped),
    max_copies=max_copies,
    objective=objective,
    others=others,
  )


def _with_report_goal(scenario: scenarios.Scenario, goal: int) -> scenarios.Scenario:
  """Returns a scenario with another report goal, and as many more devices chosen per round."""
  chosen = scenario.clients_per_round
  if chosen is not None:
    chosen = math.ceil(chosen * goal / scenario.report_goal)
  return dataclasses.replace(scenario, report_goal=goal, clients_per_round=chosen)
