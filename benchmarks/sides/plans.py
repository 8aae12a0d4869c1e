"""Evaluation of plans on simulations that they have not seen."""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import plan as plan_page
from fl_dpftrl.commands import population_flags
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.planning import candidate_sets, forecasts, recommendation, search

NAMES = (*search.MECHANISMS, 'blt-b100', 'blt-b400', 'blt-b1000')
_OBJECTIVE = 'max'


def simulate(words: Sequence[str], seed: int) -> forecasts.Outcome:
  """Returns the outcome of the flags of a population, with a seed."""
  print(f'simulation {seed + 1}', file=sys.stderr)
  parser = argparse.ArgumentParser()
  population_flags.add_arguments(parser)
  args = population_flags.completed(parser.parse_args(words))
  simulation = population_flags.scenario(args).simulation(seed=seed)
  return forecasts.run(simulation, args.num_rounds, lambda: None)


def remembering(origin: candidate_sets.Candidate) -> candidate_sets.Candidate:
  """Returns the candidate with cached searches."""

  @functools.cache
  def search_once(*schemas):
    separations = ', '.join(f'b={s.min_sep} k={s.participations}' for s in schemas)
    print(f'{origin.label} for {separations}', file=sys.stderr)
    if len(schemas) == 1:
      return origin.find(*schemas, objective=_OBJECTIVE)
    return origin.find_range(schemas, objective=_OBJECTIVE)

  return dataclasses.replace(
    origin,
    find=lambda schema, **kwargs: search_once(schema),
    find_range=origin.find_range and (lambda schemas, **kwargs: search_once(*schemas)),
  )


def judge(words: Sequence[str], seeds: int) -> dict[str, Any]:
  """Returns simulations, and verdicts on the plan from those that follow each of them."""
  outcomes = [simulate(words, seed) for seed in range(seeds)]
  origins = [remembering(origin) for origin in candidate_sets.named(NAMES)]

  @functools.cache
  def evaluated(schemas, planned):
    found = search.find(origins, schemas, planned, objective=_OBJECTIVE)
    return [one for one in found if isinstance(one, search.Evaluated)]

  def epsilon(candidate, schema):
    sensitivity = candidate.files[schema].sensitivity
    terms, noise = guarantees.Terms(plan_page.DELTA), plan_page.NOISE_MULTIPLIER
    return guarantees.Guarantee.of(sensitivity, terms, noise_multiplier=noise).epsilon()

  verdicts = []
  for seed, outcome in enumerate(outcomes):
    others = [outcomes[(seed + 1 + i) % seeds] for i in range(plan_page.NUM_SIMULATIONS)]
    plan, log = forecasts.Forecast(outcomes=tuple(others)), outcome.schema
    options = evaluated(tuple(plan.schemas), plan.planned)
    for most in plan_page.MAX_COPIES:
      chosen = recommendation.choose(options, plan.schemas, most)
      ours = search.measure(chosen.origin, chosen.strategy, [log], objective=_OBJECTIVE)
      best = recommendation.choose(evaluated((log,), log), [log], most)
      covered = log.min_sep >= plan.planned.min_sep
      verdict = {
        'seed': seed,
        'max_copies': most,
        'planned': dataclasses.asdict(plan.planned),
        'recommended': chosen.label,
        'best': best.label,
        'loss': ours.loss(log),
        'best_loss': best.loss(log),
        'excess': ours.loss(log) / best.loss(log) - 1.0,
        'is_covered': covered and log.participations <= plan.planned.participations,
        'predicted_epsilon': epsilon(chosen, plan.planned),
        'epsilon': epsilon(ours, log),
      }
      verdicts.append(verdict)
  return {'outcomes': list(map(dataclasses.asdict, outcomes)), 'verdicts': verdicts}
