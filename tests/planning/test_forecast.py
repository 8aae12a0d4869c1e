"""Outcomes, margins, and that processes change nothing."""

import dataclasses
import itertools

import numpy as np
import pytest

from fl_dpftrl.participation import schemas
from fl_dpftrl.planning import forecast as lib
from fl_dpftrl.planning import simulating
from fl_dpftrl.simulation import availability, cohorts, population, server
from tests import oracle


def simulate(*, seed, num_devices=None, report_goal=None, hours=9.0, rounds=None, **people):
  return cohorts.Simulation(
    population=population.Population(
      num_devices=num_devices or 900, seed=seed, availability=availability.Nightly(), **people
    ),
    timer=server.RoundTimer(rounds) if rounds else server.HourTimer(hours),
    server=server.Server(report_goal=report_goal or 5),
    seed=seed,
  )


def in_rounds(**kwargs):
  return simulate(rounds=30, **kwargs)


def outcome(min_sep, max_participations, num_rounds=100, **kwargs):
  return simulating.Outcome(
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
  found = lib.forecast(
    simulate, num_rounds=120, seeds=[3, 4], report_goals=[9], more_rounds=[60, 200]
  )
  assert [o.seed for o in found.outcomes] == [3, 4]
  for seen, seed, goal in (
    *zip(found.outcomes, (3, 4), (5, 5)),
    *zip(found.nearby.values(), (3, 3, 3), (9, 5, 5)),
  ):
    run = simulate(seed=seed, report_goal=goal)
    rounds, devices, days = log(run, seen.num_rounds)
    assert seen.schema == oracle.schema_of(rounds, devices, seen.num_rounds)
    assert (seen.days, seen.report_goal, seen.seed) == (days, goal, seed)
  assert list(found.nearby) == [(9, 120), (5, 60), (5, 200)] and found.scale == 1
  rounds, devices, _ = log(simulate(seed=3), 120)
  times = np.bincount(np.bincount(devices))
  assert dict(found.closer.participations) == {k: times[k] for k in np.flatnonzero(times) if k}
  assert found.closer.separations[0][0] == found.outcomes[0].min_sep
  assert len(found.closer.round_minutes) == 24


@pytest.mark.slow
def test_processes_change_nothing(monkeypatch):
  told = []
  monkeypatch.setattr(simulating, '_WORTHWHILE', 1)
  one, two = (
    lib.forecast(
      simulate,
      num_rounds=40,
      seeds=[0, 1],
      report_goals=[7],
      more_rounds=[80],
      num_workers=number,
      progress=told.append,
    )
    for number in (1, 2)
  )
  assert one == two
  assert min(told[:40]) > 0.0 and told[-1] <= 1.0 and max(told) == 1.0


@pytest.mark.slow
def test_neighbours_are_simulated_in_small(monkeypatch):
  monkeypatch.setattr(lib, '_MOST', 1000)
  monkeypatch.setattr(lib, '_FEWEST', 2)
  asked = []

  def remember(**kwargs):
    asked.append(kwargs)
    return simulate(**kwargs)

  found = lib.forecast(
    remember, num_rounds=100, seeds=[0, 1], report_goals=[10, 20], more_rounds=[150]
  )
  assert found.scale == 2
  assert [(a['seed'], a.get('num_devices'), a.get('report_goal')) for a in asked] == [
    (0, None, None),
    (1, None, None),
    (0, 450, 2),
    (0, 450, 5),
    (0, 450, 10),
  ]
  assert list(found.nearby) == [(10, 100), (20, 100), (5, 150)]
  assert [(o.report_goal, o.num_rounds) for o in found.nearby.values()] == list(found.nearby)


def test_neighbours_are_set_right_towards_less_privacy():
  others = [(100, 100), (50, 200)]
  planned = outcome(20, 5, report_goal=50, days=4.0)
  other = simulating.Trial(outcomes={100: outcome(30, 7, days=6.0)})
  more = outcome(39, 8, num_rounds=200, days=9.0)
  for small, goal_gives, rounds_give in (
    (outcome(40, 4, days=3.0), (15, 9, 8.0), (19, 10, 12.0)),
    (outcome(10, 9, days=8.0), (30, 7, 3.0), (39, 8, 4.5)),
  ):
    trials = {50: simulating.Trial(outcomes={100: small, 200: more}), 100: other}
    found = lib.corrected(planned, trials, others)
    assert [(o.report_goal, o.num_rounds) for o in found.values()] == list(found) == others
    assert [(o.min_sep, o.max_participations, o.days) for o in found.values()] == [
      goal_gives,
      rounds_give,
    ]
  trials[50] = simulating.Trial(outcomes={}, stalled='why')
  assert lib.corrected(planned, trials, others) == dict.fromkeys(others, 'why')


@pytest.mark.parametrize(
  'seen, enforced, min_sep, max_participations',
  [
    ([(20, 4), (23, 6), (21, 5)], 1, 14, 8),  # twice the spread of b, and the spread of k
    ([(50, 2), (40, 3)], 1, 20, 4),  # five do fit
    ([(50, 2), (49, 2)], 1, 47, 3),
    ([(20, 4)], 1, 19, 5),
    ([(1, 9)], 1, 1, 10),
    ([(100, 1)], 1, 99, 2),  # nobody took part twice
    ([(20, 4), (23, 6)], 18, 18, 6),  # six do fit
  ],
)
def test_the_margin_is_as_wide_as_what_was_seen(seen, enforced, min_sep, max_participations):
  found = given(*(outcome(b, k) for b, k in seen), enforced=enforced)
  assert found.planned == schemas.MinSep(100, min_sep, max_participations)
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
    for other in seen:
      like = found.planned_like(other)
      assert like.min_sep <= other.min_sep
      assert like.participations >= other.schema.participations
    assert found.planned in found.schemas
    assert list(found.schemas) == sorted(found.schemas, key=lambda s: s.min_sep)


@pytest.mark.slow
def test_a_timer_in_rounds_is_not_undercut():
  found = lib.forecast(in_rounds, num_rounds=120, seeds=[0, 1])
  assert found.outcomes[0].min_sep == found.planned.min_sep == 30
  forgetful = lambda **kwargs: in_rounds(forgetting_per_day=0.2, **kwargs)
  found = lib.forecast(forgetful, num_rounds=120, seeds=[0, 1])
  assert found.enforced == 1
  assert found.planned.min_sep < min(o.min_sep for o in found.outcomes)


@pytest.mark.slow
def test_stalled_rounds():
  with pytest.raises(cohorts.StalledRound, match='report goal of 5'):
    lib.forecast(lambda **kwargs: simulate(rounds=1000, **kwargs), num_rounds=400, seeds=[0])
  found = lib.forecast(
    lambda **kwargs: simulate(rounds=100, **kwargs),
    num_rounds=100,
    seeds=[0],
    report_goals=[50],
    more_rounds=[20, 150],
  )
  # 50 in 100 rounds would take 5000 devices.
  assert [key for key, seen in found.nearby.items() if isinstance(seen, str)] == [(50, 100)]
  assert 'stalled' in found.nearby[50, 100]
  found = lib.forecast(
    lambda **kwargs: simulate(rounds=200, **kwargs),
    num_rounds=100,
    seeds=[0],
    more_rounds=[20, 300],
  )
  assert 'stalled' in found.nearby[5, 300] and found.nearby[5, 20].num_rounds == 20


@pytest.mark.parametrize(
  'changes',
  [
    {'seeds': []},
    {'num_rounds': 0},
    {'more_rounds': [0]},
    {'report_goals': [0]},
    {'num_workers': 0},
  ],
)
def test_refuses(changes):
  ((name, _),) = changes.items()
  with pytest.raises(ValueError, match=name):
    lib.forecast(simulate, **{'num_rounds': 10, 'seeds': [0], **changes})


@pytest.mark.slow
def test_what_fails_in_a_process_is_raised(monkeypatch):
  monkeypatch.setattr(simulating, '_WORTHWHILE', 1)
  tasks = [simulating.Task(simulation=simulate(seed=seed), checkpoints=(10,)) for seed in range(2)]
  broken = dataclasses.replace(tasks[0].simulation, timer='of no kind')
  tasks[0] = dataclasses.replace(tasks[0], simulation=broken)
  with pytest.raises(AttributeError, match='seconds'):
    simulating.run_all(tasks, num_workers=2)
