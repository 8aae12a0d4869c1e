"""Text output of the `plan` command."""

from collections.abc import Sequence

from fl_dpftrl import tables
from fl_dpftrl.files import json_files
from fl_dpftrl.planning import planner
from fl_dpftrl.text import messages, rounding


def text(plan: planner.Plan, others: Sequence[planner.Plan] = (), output: str | None = None) -> str:
  """Returns the recommendation, its alternatives and its assumptions as text."""
  count = len(plan.forecast.outcomes)
  hint = 'add --output=FILE.json to write the strategy file'
  if output is not None:
    hint = f'written: {messages.one_line(output)}'
  blocks = (
    _recommended(plan),
    [f'results of {count} simulation{"s" * (count > 1)}'],
    [tables.columns(_forecast(plan))],
    ['all strategies, at the same ε and at the same noise in the model'],
    [tables.columns(_options(plan))],
    ['report goals, at the same ε'] if others else [],
    [tables.columns(goals(plan, others))] if others else [],
    _left_out(plan),
    ['This is no guarantee: replay the log of the run for that. It assumes:'],
    [f'- {line}' for line in plan.assumptions],
    [hint],
  )
  return '\n\n'.join('\n'.join(lines) for lines in blocks if lines)


def goals(plan: planner.Plan, others: Sequence[planner.Plan]) -> list[json_files.Object]:
  """Returns a row of figures for the report goal of each plan, with its noise in the mean."""
  noise = lambda one: one.best.noise_in_model / one.forecast.outcomes[0].report_goal
  return [
    {
      'report_goal': one.forecast.outcomes[0].report_goal,
      'days': one.forecast.expected['days'],
      'min_sep': one.planned.min_sep,
      'max_participations': one.planned.participations,
      'noise_multiplier': one.best.guarantee.noise_multiplier,
      'epsilon': one.best.guarantee.epsilon(),
      'noise_in_mean': noise(one) / noise(plan),
    }
    for one in (plan, *others)
  ]


def _recommended(plan: planner.Plan) -> list[str]:
  best, planned = plan.best, plan.planned
  seen = ' to '.join(dict.fromkeys(map(rounding.up, best.epsilon_range)))
  optimised = ', optimised for this' if best.candidate.origin.optimised else ''
  at = f'ε at δ = {rounding.exact(best.guarantee.delta)}'
  return [
    'recommended (a prediction, not a guarantee)',
    '',
    f'strategy            {messages.one_line(best.candidate.label)}{optimised};'
    f' {best.candidate.memory_copies} copies of the model',
    'noise multiplier    ' + rounding.up(best.guarantee.noise_multiplier, digits=6),
    f'{at:<20}{rounding.up(best.guarantee.epsilon())}  ({seen} in the simulations)',
    f'planned for         n = {planned.num_rounds}, b ='
    f' {planned.min_sep}, k = {planned.participations}',
  ]


def _forecast(plan: planner.Plan) -> list[json_files.Object]:
  ends = plan.forecast.range
  return [
    {
      '': name,
      'expected': _expected(name, float(mean)),
      'lowest': ends[name][0],
      'highest': ends[name][1],
    }
    for name, mean in plan.forecast.expected.items()
  ]


def _expected(name: str, mean: float) -> float:
  """Rounds a mean over simulations; min-sep is rounded down, all else up."""
  shown = rounding.down if name == 'min_sep' else rounding.up
  return float(shown(mean, digits=6))


def _options(plan: planner.Plan) -> list[json_files.Object]:
  best = plan.best.candidate
  return [
    {
      'strategy': option.candidate.label,
      'copies': option.candidate.memory_copies,
      'loss': option.candidate.loss(plan.planned),
      'noise at same ε': 'recommended'
      if option.candidate is best
      else rounding.percent(option.loss_ratio),
      'ε at same noise': rounding.up(option.same_noise_epsilon),
    }
    for option in plan.best.options
  ]


def _left_out(plan: planner.Plan) -> list[str]:
  lines = [f'- {messages.one_line(f"{skip.label}: {skip.reason}")}' for skip in plan.skipped]
  return ['left out', *lines] if lines else []
