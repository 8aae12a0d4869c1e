"""A plan's recommendation, against the best that a run's own log allows."""

import pytest

from fl_dpftrl.planning import candidates as compared
from fl_dpftrl.planning import forecast as forecast_lib
from fl_dpftrl.planning import recommendation, search
from fl_dpftrl.simulation import availability, cohorts, population, server

ROUNDS = 160
NAMES = ('blt:3', 'banded', 'blt-b100')
SEEDS = range(102, 104)


def simulate(seed):
  """Simulates a small run as the command does; b differs from seed to seed."""
  return cohorts.Simulation(
    population=population.Population(
      num_devices=8_000, seed=seed, availability=availability.Nightly(), dropout=0.08
    ),
    timer=server.HourTimer(10.0),
    server=server.Server(report_goal=60, clients_per_round=78),
    seed=seed,
  )


@pytest.mark.slow
def test_within_two_percent_of_hindsight_over_other_seeds():
  origins = compared.named(NAMES)
  forecast = forecast_lib.forecast(simulate, num_rounds=ROUNDS, seeds=[0, 1, 2])
  found = search.find(origins, forecast.schemas, forecast.planned, objective='max')
  logs = forecast_lib.forecast(simulate, num_rounds=ROUNDS, seeds=SEEDS)
  schemas = {outcome.schema for outcome in logs.outcomes}
  assert len(schemas) > 1
  of_hindsight = {
    schema: search.find(origins, [schema], schema, objective='max') for schema in schemas
  }
  for most in (16, 1000):
    chosen = recommendation.choose(found, forecast.schemas, most)
    assert chosen.origin.mechanism == ('blt' if most == 16 else 'banded')
    for schema in schemas:
      ours = search.measure(chosen.origin, chosen.strategy, [schema], objective='max').loss(schema)
      best = min(
        candidate.loss(schema)
        for candidate in of_hindsight[schema]
        if candidate.memory_copies <= most
      )
      assert ours <= 1.02 * best
