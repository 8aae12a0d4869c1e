"""JSON object of a plan."""

import dataclasses
import statistics
from typing import Any

from fl_dpftrl import participation
from fl_dpftrl.planning import planner, recommendation, tradeoffs


def statement(plan: planner.Plan) -> dict[str, Any]:
  """Returns all figures of a plan; none of them is a guarantee."""
  forecast, best = plan.forecast, plan.best
  guarantee = best.guarantee
  return {
    'is_guarantee': False,
    'expected': forecast.expected,
    'range': {name: list(ends) for name, ends in forecast.range.items()},
    'simulations': [dataclasses.asdict(o) for o in forecast.outcomes],
    'planned': _schema(guarantee.schema),
    'recommended': {
      'strategy': best.candidate.label,
      'family': best.candidate.strategy.family,
      'optimised': best.candidate.contender.optimised,
      'noise_multiplier': guarantee.noise_multiplier,
      'epsilon': guarantee.epsilon,
      'expected_epsilon': statistics.fmean(best.epsilons),
      'epsilon_range': [min(best.epsilons), max(best.epsilons)],
      'delta': guarantee.delta,
      'rho': guarantee.rho,
      'adjacency': guarantee.adjacency,
      'sensitivity': guarantee.sensitivity,
      'sensitivity_kind': guarantee.sensitivity_kind,
      'error': best.candidate.error(guarantee.schema),
      'loss': best.candidate.loss(guarantee.schema),
      'memory_copies': best.candidate.memory_copies,
    },
    'objective': plan.objective,
    'max_copies': plan.max_copies,
    'alternatives': [
      _option(option, guarantee.schema)
      for option in best.options
      if option.candidate is not best.candidate
    ],
    'skipped': [skip._asdict() for skip in plan.skipped],
    'settings_scale': forecast.nearby.scale,
    'settings': [_setting(setting) for setting in plan.settings],
    'assumptions': list(plan.assumptions),
  }


def _schema(schema: participation.MinSep) -> dict[str, int]:
  return {
    'num_rounds': schema.num_rounds,
    'min_sep': schema.min_sep,
    'max_participations': schema.participations,
  }


def _option(option: recommendation.Option, planned: participation.MinSep) -> dict[str, Any]:
  return {
    'strategy': option.candidate.label,
    'memory_copies': option.candidate.memory_copies,
    'fits': option.fits,
    'loss': option.candidate.loss(planned),
    'sensitivity_kind': option.candidate.files[planned].sensitivity.kind,
    'loss_ratio': option.loss_ratio,
    'regret': option.regret,
    'noise_multiplier': option.noise_multiplier,
    'same_noise_epsilon': option.same_noise_epsilon,
  }


def _setting(setting: tradeoffs.Setting | tradeoffs.Missing) -> dict[str, Any]:
  where = {'report_goal': setting.report_goal, 'num_rounds': setting.num_rounds}
  if isinstance(setting, tradeoffs.Missing):
    return {**where, 'reason': setting.reason}
  return {
    **where,
    'days': setting.days,
    'min_sep': setting.schema.min_sep,
    'max_participations': setting.schema.participations,
    'noise_multiplier': setting.noise_multiplier,
    'epsilon': setting.epsilon,
  }
