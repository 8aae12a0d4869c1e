"""Trade-off of larger report goals and more rounds at the same model noise.

A report goal f times as large allows f times the noise on the sum. The recommended mechanism is
optimised for each setting.
"""

import dataclasses

from fl_dpftrl import json_files, participation
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.comparison import sweep
from fl_dpftrl.planning import candidates as candidates_lib
from fl_dpftrl.planning import forecast as forecast_lib
from fl_dpftrl.planning import recommendation as recommendation_lib
from fl_dpftrl.planning import trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Alternative setting of a run.

  Attributes:
    report_goal: number of devices per cohort.
    num_rounds: n.
    days: predicted duration in days.
    schema: planned schema; see `Forecast.planned_like`.
    noise_multiplier: noise multiplier with the planned noise in the mean of the updates, summed
      over the rounds.
    epsilon: ε at that noise multiplier.
  """

  report_goal: int
  num_rounds: int
  days: float
  schema: participation.MinSep
  noise_multiplier: float
  epsilon: float

  def to_json(self) -> json_files.Object:
    """Returns the fields, with those of the schema beside them."""
    return {
      'report_goal': self.report_goal,
      'num_rounds': self.num_rounds,
      'days': self.days,
      'min_sep': self.schema.min_sep,
      'max_participations': self.schema.participations,
      'noise_multiplier': self.noise_multiplier,
      'epsilon': self.epsilon,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
  """Setting without a result, and the reason."""

  report_goal: int
  num_rounds: int
  reason: str

  def to_json(self) -> json_files.Object:
    """Returns the fields."""
    return dict(vars(self))


def settings(
  forecast: forecast_lib.Forecast,
  best: recommendation_lib.Recommendation,
  *,
  watch: candidates_lib.Watch = lambda label: lambda steps, loss: None,
) -> list[Setting | Missing]:
  """Returns the planned run and all others that were simulated.

  Args:
    forecast: forecast with the other runs.
    best: recommendation for the planned run.
    watch: progress callback; see `candidates`.
  """
  planned = forecast.outcomes[0]
  found: list[Setting | Missing] = [
    Setting(
      report_goal=planned.report_goal,
      num_rounds=planned.num_rounds,
      days=forecast.expected['days'],
      schema=best.guarantee.schema,
      noise_multiplier=best.guarantee.noise_multiplier,
      epsilon=best.guarantee.epsilon,
    )
  ]
  for outcome in forecast.nearby.outcomes:
    found.append(_setting(outcome, forecast, best, watch))
  for (name, value), reason in forecast.nearby.stalled.items():
    own = {'report_goal': planned.report_goal, 'num_rounds': planned.num_rounds}
    found.append(Missing(**{**own, name: value}, reason=reason))
  key = lambda setting: (setting.num_rounds, setting.report_goal)
  return sorted(found, key=key)


def _setting(
  outcome: trial.Outcome,
  forecast: forecast_lib.Forecast,
  best: recommendation_lib.Recommendation,
  watch: candidates_lib.Watch,
) -> Setting | Missing:
  candidate, schema = best.candidate, forecast.planned_like(outcome)
  try:
    if candidates_lib.too_slow(candidate, schema):
      raise ValueError(
        f'optimising {candidate.label} for n={schema.num_rounds} and b={schema.min_sep} takes many'
        ' minutes'
      )
    progress = watch(
      f'{candidate.label} for a report goal of {outcome.report_goal} and {outcome.num_rounds}'
      ' rounds'
    )
    strategy = candidate.contender.find(schema, objective=candidate.objective, progress=progress)
    found = candidates_lib.measure(
      candidate.contender, strategy, [schema], objective=candidate.objective
    )
  except sweep.BEYOND as e:
    return Missing(
      report_goal=outcome.report_goal, num_rounds=outcome.num_rounds, reason=sweep.one_line(e)
    )
  share = outcome.report_goal / forecast.outcomes[0].report_goal
  noise = best.noise_in_model * share
  multiplier = noise / found.error(schema)
  effective = multiplier / found.files[schema].sensitivity.value
  return Setting(
    report_goal=outcome.report_goal,
    num_rounds=outcome.num_rounds,
    days=outcome.days,
    schema=schema,
    noise_multiplier=multiplier,
    epsilon=gaussian.epsilon(effective, best.guarantee.delta),
  )
