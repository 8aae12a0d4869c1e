"""Outcomes and margins."""

import itertools

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.planning import forecasts as lib
from fl_dpftrl.planning.simulation import availabilities, cohorts, populations, servers
from tests import made, oracle


def simulate(seed, hours=9.0, rounds=None, **people):
  return cohorts.Simulation(
    population=populations.SimulatedPopulation(
      num_devices=900, seed=seed, availability=availabilities.Nightly(), **people
    ),
    timer=servers.RoundTimer(rounds) if rounds else servers.HourTimer(hours),
    server=servers.Server(report_goal=5),
    seed=seed,
  )


def in_rounds(seed, **people):
  return simulate(seed, rounds=30, **people)


def outcome(min_sep, max_participations, num_rounds=100, **kwargs):
  return lib.Outcome(
    **{
      'seed': 0,
      'report_goal': 5,
      'num_rounds': num_rounds,
      'min_sep': min_sep,
      'max_participations': max_participations,
      'days': 3.0,
      **kwargs,
    }
  )


def given(*outcomes, enforced=1):
  return lib.Forecast(outcomes=outcomes, enforced=enforced)


def log(simulation, num_rounds):
  """Rounds and devices, and the time that it took in days."""
  found = list(itertools.islice(simulation.rounds(), num_rounds))
  rounds = np.repeat(np.arange(num_rounds), [c.device_ids.size for c in found])
  days = (found[-1].closed - found[0].started) / 86400.0
  return rounds, np.concatenate([c.device_ids for c in found]), days


@pytest.mark.slow
def test_outcomes_are_what_the_log_says():
  told = []
  found = lib.forecast(simulate, num_rounds=120, seeds=[3, 4], progress=told.append)
  assert [o.seed for o in found.outcomes] == [3, 4]
  assert told == [done / 240 for done in range(1, 241)]
  for seen in found.outcomes:
    rounds, devices, days = log(simulate(seen.seed), seen.num_rounds)
    assert seen.schema == oracle.schema_of(rounds, devices, seen.num_rounds)
    assert (seen.days, seen.report_goal) == (days, 5)


@made.cases(
  'seen, enforced, min_sep, max_participations',
  ([(20, 4), (23, 6), (21, 5)], 1, 14, 8),  # twice the spread of b, and the spread of k
  ([(50, 2), (40, 3)], 1, 20, 4),  # five do fit
  ([(50, 2), (49, 2)], 1, 47, 3),
  ([(20, 4)], 1, 19, 5),
  ([(1, 9)], 1, 1, 10),
  ([(100, 1)], 1, 99, 2),  # nobody took part twice
  ([(20, 4), (23, 6)], 18, 18, 6),  # six do fit,
)
def test_the_margin_is_as_wide_as_what_was_seen(seen, enforced, min_sep, max_participations):
  found = given(*(outcome(b, k) for b, k in seen), enforced=enforced)
  assert found.planned == dpftrl.MinSep(100, min_sep, max_participations)
  bs, ks = zip(*seen)
  assert found.expected['min_sep'] == pytest.approx(sum(bs) / len(bs))
  assert found.range['max_participations'] == (min(ks), max(ks))


def test_planned_is_never_better_than_what_was_seen():
  rng = np.random.default_rng(0)
  for _ in range(200):
    seen = []
    for min_sep in map(int, rng.integers(1, 30, 3)):
      most = -(-100 // min_sep)
      seen.append(outcome(min_sep, int(rng.integers(1, most + 1))))
    enforced = int(rng.integers(1, 40))
    found = given(*seen, enforced=enforced)
    assert all(found.planned.min_sep <= o.min_sep for o in seen)
    assert all(found.planned.participations >= o.max_participations for o in seen)
    assert found.planned in found.schemas
    assert list(found.schemas) == sorted(found.schemas, key=lambda s: s.min_sep)


@pytest.mark.slow
def test_a_timer_in_rounds_is_not_undercut():
  found = lib.forecast(in_rounds, num_rounds=120, seeds=[0, 1])
  assert min(o.min_sep for o in found.outcomes) == found.planned.min_sep == 30
  forgetful = lambda seed: in_rounds(seed, forgetting_per_day=0.2)
  found = lib.forecast(forgetful, num_rounds=120, seeds=[0, 1])
  assert found.enforced == 1
  assert found.planned.min_sep < min(o.min_sep for o in found.outcomes)


@pytest.mark.parametrize('changes', [{'seeds': []}, {'num_rounds': 0}])
def test_refuses(changes):
  ((name, _),) = changes.items()
  with pytest.raises(ValueError, match=name):
    lib.forecast(simulate, **{'num_rounds': 10, 'seeds': [0], **changes})
