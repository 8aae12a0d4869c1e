import collections
import contextlib
import dataclasses
import itertools

import hypothesis
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.participation.counts import meter
from fl_dpftrl.participation.rules import loss_budgets
from fl_dpftrl.planning.simulation import attendances, availabilities, cohorts, populations, servers

HOUR, DAY = 3600, 86400


def simulation(
  num_devices=60, timer_=None, goal=5, over=0, seed=0, max_wait_days=30.0, pace=0.0, **people
):
  return cohorts.Simulation(
    population=populations.SimulatedPopulation(num_devices=num_devices, seed=11, **people),
    timer=timer_ or servers.RoundTimer(1),
    server=servers.Server(
      report_goal=goal,
      clients_per_round=goal + over,
      max_wait_days=max_wait_days,
      pace_minutes=pace,
    ),
    seed=seed,
  )


def run(simulated, num_rounds):
  return list(itertools.islice(simulated.rounds(), num_rounds))


def attended(history):
  attendance = attendances.Attendance()
  for cohort in history:
    attendance.add_cohort(cohort)
  return attendance


def separations(history):
  """Differences of rounds, and seconds at most and least, from the cohorts."""
  last, found = {}, []
  for now in history:
    for device in now.device_ids.tolist():
      if before := last.get(device):
        found.append(
          (now.round - before.round, now.closed - before.started, now.started - before.closed)
        )
      last[device] = now
  return np.array(found)


@pytest.mark.slow
@hypothesis.given(
  rounds=st.integers(1, 9),
  goal=st.integers(1, 6),
  spare=st.integers(0, 30),
  seed=st.integers(0, 2**40),
  over=st.integers(0, 4),
  dropout=st.sampled_from([0.0, 0.3]),
  nightly=st.booleans(),
)
def test_timer_in_rounds_is_never_violated(rounds, goal, spare, seed, over, dropout, nightly):
  history = run(
    simulation(
      rounds * goal + spare,
      servers.RoundTimer(rounds),
      goal,
      over,
      seed,
      dropout=dropout,
      availability=(availabilities.Nightly() if nightly else availabilities.Always()),
    ),
    20,
  )
  assert all(np.unique(c.device_ids).size == goal for c in history)
  times = [t for c in history for t in (c.started, c.closed)]
  assert times == sorted(times)
  found = separations(history)
  if found.size:
    assert found[:, 0].min() >= rounds


def test_timer_in_hours_is_never_violated_and_attained():
  history = run(simulation(60, servers.HourTimer(6.0), 5), 200)
  _, longest, shortest = separations(history).T
  assert longest.min() >= 6 * HOUR
  # The timer runs from the report, between start and close of the round.
  assert shortest.min() < 7 * HOUR


@pytest.mark.parametrize('num_devices, rounds, stalls_at', [(59, 12, 11), (4, 1, 0)])
def test_too_few_devices_stall(num_devices, rounds, stalls_at):
  history = simulation(num_devices, servers.RoundTimer(rounds)).rounds()
  with pytest.raises(cohorts.StalledRound) as raised:
    for t in range(100):
      assert next(history).round == t
  message = str(raised.value)
  assert t == stalls_at
  assert message.startswith(f'round {stalls_at} stalled')
  assert f'population of at least {5 * rounds}' in message
  assert '\n' not in message


def test_a_goal_that_timers_in_hours_keep_away_stalls():
  with pytest.raises(cohorts.StalledRound, match='within 30 simulated days'):
    run(simulation(9, servers.HourTimer(2000.0), 5), 2)


def test_a_goal_that_no_night_reaches_stalls():
  never = availabilities.Nightly(charging_nights=0.0, daytime=0.0)
  with pytest.raises(cohorts.StalledRound, match='3 simulated days') as raised:
    run(simulation(50, goal=45, max_wait_days=3.0, availability=never), 1)
  assert 'a smaller report goal' in str(raised.value)


def test_forgetful_devices_break_a_timer_in_rounds():
  forgetful = simulation(200, servers.RoundTimer(20), 5, forgetting_per_day=0.5)
  assert attended(run(forgetful, 300)).min_sep < 20
  # A device never is twice in a round.
  assert all(np.unique(c.device_ids).size == 5 for c in run(forgetful, 300))


def uniformity(history, num_devices):
  """p value of: every device is as likely as the next to be chosen."""
  counts = np.bincount(np.concatenate([c.device_ids for c in history]), minlength=num_devices)
  rounds, goal = len(history), history[0].device_ids.size
  share = goal / num_devices
  # Sampling without replacement within a round narrows the counts.
  variance = rounds * share * (1 - share) * num_devices / (num_devices - 1)
  statistic = ((counts - rounds * share) ** 2).sum() / variance
  return scipy.stats.chi2.sf(statistic, num_devices - 1)


@pytest.mark.slow
@pytest.mark.parametrize('over', [0, 3])
def test_uniform_among_the_eligible(over):
  alike = {'rate_spread': 0.0, 'speed_spread': 0.0, 'dropout': 0.1 * (over > 0)}
  history = run(simulation(50, goal=5, over=over, **alike), 1500)
  assert 0.001 < uniformity(history, 50) < 0.999


@pytest.mark.slow
def test_a_biased_choice_is_noticed():
  history = run(simulation(50, goal=5, rate_spread=0.3), 1500)
  assert uniformity(history, 50) < 1e-4


BLT = dpftrl.BLT([0.95, 0.5], [0.2, 0.2])
BUDGET = loss_budgets.LossBudget(max_participations=3, min_sep=8)


@pytest.mark.parametrize('turnover', [0.0, 0.4])
def test_no_device_passes_its_loss_budget_and_each_comes_as_soon_as_it_may(turnover):
  timer = servers.Meter(BLT, BUDGET)
  simulated = simulation(
    num_devices=80,
    timer_=timer,
    check_ins_per_hour=60.0,
    turnover_per_day=turnover,
    max_wait_days=1.0,
    seed=3,
  )
  meters, square, cohorts_, ends = meter.Meters(BLT.endless_gram()), BUDGET.square(BLT), [], []
  try:
    for cohort, _, _, ended in itertools.islice(simulated.lives(), 60):
      assert (meters.losses(cohort.device_ids) + meters.charges(cohort.device_ids) <= square).all()
      meters.add(cohort.device_ids)
      cohorts_.append(cohort)
      ends.append(ended)
  except cohorts.StalledRound as error:
    assert 'the meters of too few devices run out' in str(error) and not turnover
    assert 'new devices, or a larger loss budget' in str(error)
  assert ends == sorted(ends) or turnover
  assert 0 < ends[-1] <= 80 and len(cohorts_) >= 40
  # Every pattern of the schema that names the budget is admitted, and closer ones that cost less.
  assert separations(cohorts_)[:, 0].min() < 8
  assert meters.max_participations <= BUDGET.most_participations(BLT)


@pytest.mark.parametrize('turnover', [0.0, 0.2])
def test_a_device_that_never_reports_is_charged_too(turnover):
  simulated = simulation(
    num_devices=300, timer_=servers.Meter(BLT, BUDGET), over=3, dropout=0.4, seed=5,
    check_ins_per_hour=60.0, turnover_per_day=turnover,
  )  # fmt: skip
  state, reported, others = cohorts._Rounds(simulated), 0, 0
  for t in range(40):
    cohort, dropped, late = state.next()
    reported, others = reported + cohort.device_ids.size, others + dropped + late
    charged = state._last_round == t  # A device that drops out twice in a round is charged once.
    assert 0 <= cohort.device_ids.size + dropped + late - np.count_nonzero(charged) <= dropped
    assert (state._devices['place'][charged] < 0).all()
  assert state._meters._losses.max() <= BUDGET.square(BLT)
  if not turnover:
    assert reported + others >= state._meters.num_participations > 1.3 * reported
    assert (
      0
      < state.num_ended
      == (
        state._meters.losses(np.arange(300)) + state._meters.least_charge > BUDGET.square(BLT)
      ).sum()
    )


@pytest.mark.parametrize('turnover', [0.0, 0.4])
def test_a_life_of_so_many_rounds_ends(turnover):
  simulated = simulation(
    num_devices=80,
    timer_=servers.RoundTimer(3, 2),
    check_ins_per_hour=60.0,
    turnover_per_day=turnover,
    max_wait_days=1.0,
    seed=3,
  )
  counts, ends = collections.Counter(), []
  with contextlib.suppress(cohorts.StalledRound):
    for cohort, _, _, ended in itertools.islice(simulated.lives(), 60):
      counts.update(cohort.device_ids.tolist())
      ends.append(ended)
  assert max(counts.values()) == 2 and 0 < ends[-1] <= 80
  if not turnover:
    assert ends[-1] == sum(count == 2 for count in counts.values()) and len(ends) < 60
  scenario = dpftrl.Scenario(population=9, report_goal=1, timer_rounds=3, max_participations=2)
  assert scenario.declared_schema(50) == dpftrl.MinSep(None, 3, 2)
  assert scenario.planned_schema(50) == dpftrl.MinSep(50, 3, 2)


def test_a_round_of_return_is_the_first_that_the_meter_admits():
  meters, square = meter.Meters(BLT.endless_gram(), numbered=True), BUDGET.square(BLT)
  generator, devices = np.random.default_rng(2), np.arange(5)
  for _ in range(9):
    may = meters.losses(devices) + meters.charges(devices) <= square
    meters.add(devices[may & (generator.random(5) < 0.5)])
  expected = np.full(5, 32)
  slow = meters
  rounds = slow.returns(devices, square, 31)
  for t in range(9, 32):
    may = slow.losses(devices) + slow.charges(devices) <= square
    expected = np.where(may & (expected == 32), t, expected)
    slow.add(np.zeros(0, np.int64))
  assert rounds.tolist() == expected.tolist() and 32 in rounds and (rounds < 32).any()


def test_meters_that_are_not_simulated():
  with pytest.raises(ValueError, match='forgetting_per_day=0.1 must be 0 without an end'):
    simulation(timer_=servers.Meter(BLT, BUDGET), forgetting_per_day=0.1)
  with pytest.raises(ValueError, match='forgetting_per_day=0.1 must be 0 without an end'):
    simulation(timer_=servers.RoundTimer(3, 2), forgetting_per_day=0.1)
  with pytest.raises(ValueError, match='max_participations=2 needs timer_rounds'):
    dpftrl.Scenario(population=9, report_goal=1, max_participations=2).simulation()
  with pytest.raises(ValueError, match='does not fall with the lag'):
    servers.Meter(dpftrl.BandedToeplitz(np.array([1.0, 0.0, 0.5])), BUDGET)
  scenario = dpftrl.Scenario(population=9, report_goal=1, loss_budget=BUDGET)
  with pytest.raises(ValueError, match='loss_budget and strategy are needed together'):
    scenario.simulation()
  scenario = dpftrl.Scenario(
    population=9, report_goal=1, loss_budget=BUDGET, strategy=BLT, timer_rounds=3
  )
  with pytest.raises(ValueError, match='timer_rounds=3 and loss_budget exclude each other'):
    scenario.simulation()
  with pytest.raises(ValueError, match='no schema to plan for'):
    scenario.planned_schema(9)
  with pytest.raises(ValueError, match='without an end has no rounds to plan for'):
    dpftrl.plan(
      dataclasses.replace(scenario, timer_rounds=None), num_rounds=9, epsilon=8.0, delta=1e-6
    )
