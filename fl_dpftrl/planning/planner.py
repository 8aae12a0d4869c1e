"""From a population to a configuration: simulate, find, choose, compare."""

import dataclasses
from typing import Callable, Sequence

from fl_dpftrl.planning import candidates as candidates_lib
from fl_dpftrl.planning import forecast as forecast_lib
from fl_dpftrl.planning import recommendation as recommendation_lib
from fl_dpftrl.planning import tradeoffs

MAX_COPIES = 16
"""Of the model, that noise may keep: all of it passes through each round."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What to run, and what it rests on.

  Attributes:
    forecast: of who takes part.
    best: the recommended strategy with its noise, and the others.
    settings: other report goals and numbers of rounds.
    skipped: strategies that could not be had.
    max_copies: that the noise of the recommended one was to keep.
    objective: rms or max.
  """

  forecast: forecast_lib.Forecast
  best: recommendation_lib.Recommendation
  settings: tuple[tradeoffs.Setting | tradeoffs.Missing, ...]
  skipped: tuple[candidates_lib.Skipped, ...]
  max_copies: int
  objective: str

  @property
  def assumptions(self) -> tuple[str, ...]:
    """What is taken for granted, in words."""
    count, margin = len(self.forecast.outcomes), self.forecast.margin
    planned = self.best.guarantee.schema
    seen = 'one simulation' if count == 1 else f'{count} simulations'
    return (
        'devices are reached, check in, report and drop out as the simulation'
        ' has it: rates, spreads and habits are a model, not measurements of'
        ' this population',
        f'in the run no device takes part more than {planned.participations}'
        f' times or less than {planned.min_sep} rounds apart: {seen} came to'
        f' no worse, and b has {margin.min_sep} and k'
        f' {margin.max_participations} in hand; other draws may go beyond',
        f'{planned.num_rounds} rows of noise are consumed: no round fails',
        'where the noise in the model is the same, so is its accuracy, whatever'
        ' the report goal and the number of rounds',
        *self.best.guarantee.assumptions[1:],
    )


def plan(
    simulate: forecast_lib.Simulate,
    *,
    num_rounds: int,
    seeds: Sequence[int],
    delta: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    objective: str = 'max',
    max_copies: int = MAX_COPIES,
    strategies: Sequence[str] | None = None,
    report_goals: Sequence[int] = (),
    more_rounds: Sequence[int] = (),
    num_workers: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
  """Plans a run.

  Args:
    simulate: gives simulations of it.
    num_rounds: n.
    seeds: one simulation of the planned run for each.
    delta: δ.
    noise_multiplier: of the recommended strategy as stored.
    epsilon: that is not to be exceeded; give this or noise_multiplier.
    objective: 'rms' or 'max', the loss that is made small.
    max_copies: vectors of the model's size that the noise may keep.
    strategies: mechanisms, names in matrices/ and files to choose from; None
      for all that are found in a few minutes.
    report_goals: others, to compare with.
    more_rounds: other numbers of rounds, to compare with.
    num_workers: simulations at a time, each in a process of its own where there
      are several.
    progress: told what is being done, often.

  Raises:
    StalledRound: where a round of the planned run cannot get its report goal.
    ValueError: for an argument outside its range, or where no strategy will do.
  """
  forecast = forecast_lib.forecast(
      simulate,
      num_rounds=num_rounds,
      seeds=seeds,
      report_goals=report_goals,
      more_rounds=more_rounds,
      num_workers=num_workers,
      progress=lambda share: progress(
          f'{100.0 * share:.0f} % of the simulations'
      ),
  )

  def watch(label):
    progress(label)
    return lambda steps, loss: progress(f'{label}: {steps} steps')

  planned = forecast.planned
  contenders, skipped = candidates_lib.contenders(strategies, planned)
  found = []
  for candidate in candidates_lib.find(
      contenders, forecast.schemas, planned, objective=objective, watch=watch
  ):
    is_found = isinstance(candidate, candidates_lib.Candidate)
    (found if is_found else skipped).append(candidate)
  if not found:
    raise ValueError(
        'none of the strategies will do:'
        f' {"; ".join(f"{s.label}: {s.reason}" for s in skipped)}'
    )
  best = recommendation_lib.recommend(
      found,
      forecast.schemas,
      planned,
      [outcome.schema for outcome in forecast.outcomes],
      max_copies=max_copies,
      delta=delta,
      noise_multiplier=noise_multiplier,
      epsilon=epsilon,
  )
  return Plan(
      forecast=forecast,
      best=best,
      settings=tuple(tradeoffs.settings(forecast, best, watch=watch)),
      skipped=tuple(skipped),
      max_copies=max_copies,
      objective=objective,
  )
