import dataclasses

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import scipy.stats

from fl_dpftrl.simulation import availability
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.simulation import population
from fl_dpftrl.simulation import timer


def run(selector, num_rounds, state=None):
  state = selector.init() if state is None else state
  rounds = []
  for _ in range(num_rounds):
    cohort, state = selector.next(state)
    rounds.append(cohort)
  return rounds, state


def columns(rounds):
  """The log's columns: rounds, devices, timestamps."""
  sizes = [c.device_indices.size for c in rounds]
  return (
      np.repeat([c.round for c in rounds], sizes),
      np.concatenate([c.device_ids for c in rounds]),
      np.repeat([c.closed for c in rounds], sizes),
  )


def separations(rounds, times=None):
  """Differences between a device's participations, in rounds or in seconds."""
  last, found = {}, []
  for cohort in rounds:
    for device in cohort.device_indices:
      value = cohort.round if times is None else cohort.started
      if device in last:
        found.append(value - last[device])
      last[device] = cohort.round if times is None else cohort.closed
  return found


def same(first, second):
  return len(first) == len(second) and all(
      a.round == b.round
      and a.started == b.started
      and a.closed == b.closed
      and np.array_equal(a.device_indices, b.device_indices)
      and np.array_equal(a.device_ids, b.device_ids)
      for a, b in zip(first, second)
  )


def selector(num_devices=60, rounds=1, goal=5, seed=0, nightly=None, **kwargs):
  people = population.Population(
      range(num_devices), 11, nightly or availability.Always()
  )
  return cohorts.CohortSelector(
      people, timer.RoundTimer(rounds), goal, seed=seed, **kwargs
  )


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(
    rounds=st.integers(1, 9),
    goal=st.integers(1, 6),
    spare=st.integers(0, 30),
    seed=st.integers(0, 2**40),
    over=st.integers(0, 4),
)
def test_timer_in_rounds_is_never_violated(rounds, goal, spare, seed, over):
  chosen = selector(
      rounds * goal + spare, rounds, goal, seed, clients_per_round=goal + over
  )
  history, _ = run(chosen, 40)
  assert all(np.unique(c.device_indices).size == goal for c in history)
  assert min(separations(history)) >= rounds


def test_timer_in_rounds_is_attained_where_devices_return_promptly():
  history, _ = run(selector(60, rounds=12, goal=5), 48)
  assert set(separations(history)) == {12}
  loose, _ = run(selector(80, rounds=12, goal=5), 200)
  assert min(separations(loose)) == 12
  assert max(separations(loose)) > 12


def test_timer_in_hours_is_never_violated_and_attained():
  people = population.Population(range(60), 11)
  chosen = cohorts.CohortSelector(
      people, timer.HourTimer(6.0), 5, seed=0, round_minutes=30.0
  )
  history, _ = run(chosen, 100)
  waits = separations(history, times=True)
  assert 6 * 3600 <= min(waits) < 7 * 3600


def test_timer_in_hours_waits_for_the_timers():
  people = population.Population(range(10), 11)
  chosen = cohorts.CohortSelector(people, timer.HourTimer(48.0), 10, seed=0)
  (first, second), _ = run(chosen, 2)
  assert second.started == first.closed + 48 * 3600


def test_without_a_timer_devices_may_follow_each_other():
  history, _ = run(selector(60, goal=20), 60)
  assert min(separations(history)) == 1
  counts = np.bincount(columns(history)[1], minlength=60)
  assert counts.std() > 1.0


@pytest.mark.parametrize(
    'num_devices, rounds, stalls_at', [(59, 12, 11), (4, 1, 0)]
)
def test_too_few_devices_stall(num_devices, rounds, stalls_at):
  chosen = selector(num_devices, rounds=rounds, goal=5)
  history, state = run(chosen, stalls_at)
  with pytest.raises(cohorts.StalledRound) as raised:
    chosen.next(state)
  message = str(raised.value)
  assert message.startswith(f'round {stalls_at} stalled')
  assert f'population of at least {5 * rounds}' in message
  assert '\n' not in message


@pytest.mark.parametrize('timer_rounds, goal', [(11, 5), (12, 4)])
def test_what_a_stall_proposes_would_do(timer_rounds, goal):
  message = ''
  try:
    run(selector(59, rounds=12, goal=5), 12)
  except cohorts.StalledRound as error:
    message = str(error)
  assert 'timer_rounds of at most 11' in message
  assert 'a report goal of at most 4' in message
  run(selector(59, rounds=timer_rounds, goal=goal), 60)


def test_a_goal_that_no_night_reaches_stalls():
  narrow = availability.Nightly(
      charging_hour_spread=6.0, window_hours=(1.0, 1.0), jitter_hours=0.0
  )
  chosen = selector(50, goal=45, nightly=narrow, max_wait_days=3.0)
  with pytest.raises(cohorts.StalledRound, match='3 simulated days'):
    chosen.next(chosen.init())


def test_time_moves_on_to_the_night():
  chosen = selector(400, goal=150, nightly=availability.Nightly())
  noon = cohorts.START + 12 * 3600
  cohort, state = chosen.next(chosen.init()._replace(clock=noon))
  assert 6 * 3600 < cohort.started - noon < 16 * 3600
  reachable = chosen.population.available(cohort.started)
  assert reachable[cohort.device_indices].all()
  assert state.clock == cohort.closed > cohort.started


def test_the_seed_decides():
  first, again, other = (run(selector(seed=s), 20)[0] for s in (3, 3, 4))
  assert same(first, again)
  assert not same(first, other)


@pytest.mark.parametrize(
    'make',
    [
        lambda people: cohorts.CohortSelector(
            people, timer.RoundTimer(9), 6, seed=2
        ),
        lambda people: cohorts.CohortSelector(
            people,
            timer.HourTimer(20.0),
            6,
            seed=2,
            clients_per_round=9,
            dropout=0.2,
        ),
    ],
)
def test_restore_at_any_round_continues_bit_for_bit(make):
  people = population.Population(
      [f'device-{i}' for i in range(90)], 5, availability.Nightly()
  )
  whole, end = run(make(people), 30)
  shuffle = np.random.default_rng(0).permutation
  for stop in range(31):
    fresh = make(people)
    if stop:
      log = columns(whole[:stop])
      order = shuffle(log[0].size)
      state = fresh.restore(*(column[order] for column in log))
    else:
      state = fresh.restore([], [], [])
    rest, restored_end = run(fresh, 30 - stop, state)
    assert same(rest, whole[stop:])
    for a, b in zip(end, restored_end):
      np.testing.assert_array_equal(a, b)


def test_next_leaves_the_state_alone():
  chosen = selector()
  _, state = run(chosen, 3)
  before = state.last_round.copy()
  first, _ = chosen.next(state)
  second, _ = chosen.next(state)
  assert same([first], [second])
  np.testing.assert_array_equal(state.last_round, before)


@pytest.mark.parametrize(
    'log, message',
    [
        (([0, 2], [1, 2], [5, 6]), 'gap'),
        (([1], [1], [5]), 'gap'),
        (([0, 0], [1, 1], [5, 5]), 'twice'),
        (([0, 0], [1, 2], [5, 6]), 'differ'),
        (([0], [60], [5]), 'device_id 60'),
        (([0], [-1], [5]), 'device_id -1'),
        (([0, 0], [1], [5]), 'one shape'),
    ],
)
def test_restore_refuses(log, message):
  with pytest.raises(ValueError, match=message):
    selector().restore(*log)


def test_dropout_costs_attempts_and_not_participations():
  sure, _ = run(selector(200, goal=10, clients_per_round=12), 50)
  flaky, _ = run(selector(200, goal=10, clients_per_round=12, dropout=0.15), 50)
  assert all(c.device_indices.size == 10 for c in flaky)
  assert flaky[-1].closed > sure[-1].closed


def test_over_selection_closes_rounds_earlier():
  exact, _ = run(selector(400, goal=50), 30)
  over, _ = run(selector(400, goal=50, clients_per_round=100), 30)
  seconds = [np.mean([c.closed - c.started for c in r]) for r in (exact, over)]
  # The 50th of 50, and of 100, reports that are spread over 15 to 45 minutes.
  assert seconds[0] == pytest.approx(60 * (15 + 30 * 50 / 51), rel=0.03)
  assert seconds[1] == pytest.approx(60 * (15 + 30 * 50 / 101), rel=0.03)


def chi_square(history, num_devices):
  """p value of: every device is as likely as the next to be chosen."""
  counts = np.bincount(columns(history)[1], minlength=num_devices)
  rounds, goal = len(history), history[0].device_indices.size
  share = goal / num_devices
  # Sampling without replacement within a round narrows the counts.
  variance = rounds * share * (1 - share) * num_devices / (num_devices - 1)
  statistic = ((counts - rounds * share) ** 2).sum() / variance
  return scipy.stats.chi2.sf(statistic, num_devices - 1)


@pytest.mark.parametrize('over', [0, 3])
def test_uniform_among_the_eligible(over):
  chosen = selector(
      50, goal=5, clients_per_round=5 + over, dropout=0.1 * (over > 0)
  )
  history, _ = run(chosen, 1500)
  assert 0.001 < chi_square(history, 50) < 0.999


def test_a_biased_choice_is_noticed():

  @dataclasses.dataclass(frozen=True)
  class Biased(cohorts.CohortSelector):

    def _reports(self, round_index, attempt, candidates):
      draws = np.random.default_rng(round_index)
      weights = np.where(candidates < 25, 1.2, 1.0)
      chosen = draws.choice(
          candidates, self.report_goal, replace=False, p=weights / weights.sum()
      )
      return np.sort(chosen), 1800

  biased = Biased(
      population.Population(range(50)), timer.RoundTimer(1), 5, seed=0
  )
  history, _ = run(biased, 1500)
  assert chi_square(history, 50) < 1e-4


@pytest.mark.parametrize(
    'name, value',
    [
        ('goal', 0),
        ('clients_per_round', 4),
        ('dropout', 1.0),
        ('dropout', -0.1),
        ('dropout', 0.5),
        ('round_minutes', 0.0),
        ('max_wait_days', np.inf),
        ('seed', -1),
        ('seed', 1.5),
    ],
)
def test_refuses(name, value):
  message = 'report_goal' if name == 'goal' else name
  with pytest.raises(ValueError, match=message):
    selector(**{name: value})
