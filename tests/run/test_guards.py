"""The guard admits whom a count by hand admits, and never passes its budget."""

import threading
import warnings
from concurrent import futures

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.rules import sampling as schemes
from fl_dpftrl.run import admission, budget, guards
from tests import made

BLT = dpftrl.BLT([0.9, 0.5], [0.1, 0.2])
SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=3)


def opened(path, **changes):
  attributes = dict(strategy=BLT, participation=SCHEMA) | changes
  budget = dict(
    delta=attributes.pop('delta', 1e-6), max_epsilon=attributes.pop('max_epsilon', None)
  )
  return guards.Guard(made.claim(**attributes), **budget, log=path)


def by_hand(history, candidates, t, schema):
  """Admits device by device, from the rounds of each."""
  admitted = []
  for device in candidates:
    rounds = [r for r, cohort in enumerate(history) if device in cohort]
    allowed = [*rounds, t]
    apart = all(b - a >= schema.min_sep for a, b in zip(allowed, allowed[1:]))
    if apart and len(allowed) <= schema.participations and device not in admitted:
      admitted.append(device)
  return admitted


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(
  rounds=st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=10),
  min_sep=st.integers(1, 5),
  most=st.integers(1, 4),
  as_text=st.booleans(),
)
def test_admits_whom_a_count_by_hand_admits(rounds, min_sep, most, as_text):
  schema = dpftrl.MinSep(num_rounds=10, min_sep=min_sep, max_participations=most)
  gate, history = schema.gate(BLT), []
  for t, candidates in enumerate(rounds):
    if as_text:
      candidates = [f'd{i}' for i in candidates]
    found = admission.admit(gate, candidates)
    expected = by_hand(history, candidates, t, schema)
    assert found.device_ids.tolist() == expected
    assert len(found.turned_away) == len(candidates) - len(expected)
    assert {away.device_id for away in found.turned_away} <= set(candidates)
    few = admission.admit(gate, candidates, at_most=2)
    assert few.device_ids.tolist() == expected[:2]
    considered = candidates.index(expected[2]) if len(expected) > 2 else len(candidates)
    assert len(few.turned_away) == considered - len(expected[:2])
    gate.record(found.device_ids)
    history.append(expected)


@pytest.mark.parametrize(
  'strategy, max_epsilon', [(BLT, 2.5), (BLT, 100.0), (dpftrl.TreeOnline(), 4.0)]
)
def test_devices_that_forget_never_pass_the_budget(path, strategy, max_epsilon):
  """Every device offers itself in every round, as if no timer worked."""
  refused = None
  with opened(path, strategy=strategy, max_epsilon=max_epsilon) as guarded:
    for _ in range(SCHEMA.num_rounds):
      before = guarded.num_rounds
      try:
        guarded.admit(['a', 'b', 'c'], row=before)
      except guards.BudgetSpentError as e:
        refused = str(e)
        assert guarded.num_rounds == before
  done = guarded.num_rounds
  assert (refused is None) == (done == SCHEMA.num_rounds)
  statement = dpftrl.replay(dpftrl.open_run(path, strategy), delta=1e-6)
  assert (
    statement.declared.holds and statement.declared.participation.num_rounds == guarded.max_rounds
  )
  # Two ways to one figure differ in their last digits.
  assert statement.observed.epsilon() <= statement.declared.guarantee.epsilon() * (1 + 1e-12)
  assert statement.declared.guarantee.epsilon() <= max_epsilon
  if refused:
    longer = dpftrl.MinSep(num_rounds=done + 1, min_sep=3, max_participations=3)
    found = dpftrl.account(strategy, longer, noise_multiplier=2.0, delta=1e-6)
    assert found.epsilon() > max_epsilon
    assert f'max_epsilon={max_epsilon:g}' in refused


def test_says_who_was_turned_away_and_why(tmp_path):
  guarded = opened(tmp_path / 'log.parquet', participation=dpftrl.MinSep(10, 2, 3))
  guarded.admit(['a', 'b'])
  admitted = guarded.admit(['a', 'c', 'c'])
  assert admitted.device_ids.tolist() == ['c']
  early, twice = admitted.turned_away
  assert (early.device_id, early.reason) == ('a', 'min_sep')
  assert (twice.device_id, twice.reason) == ('c', 'twice')
  assert 'admits it again in round 2' in early.sentence
  for t in range(2, 10):
    admitted = guarded.admit(['a'] if t % 2 == 0 else [])
    assert admitted.device_ids.tolist() == (['a'] if t in (2, 4) else [])
    if t == 6:
      (often,) = admitted.turned_away
      assert often.reason == 'max_participations'
      assert 'took part 3 times, and 3 are declared' in often.sentence
  with pytest.raises(guards.BudgetSpentError, match='beyond the 10 rounds'):
    guarded.admit(['a'])


@made.cases(
  'cohorts, error', ([[20], ['x', 3]], ValueError), ([[20], [21], [22]], guards.BudgetSpentError)
)
def test_cohorts_that_are_refused_together_leave_no_round_behind(tmp_path, cohorts, error):
  claim = made.claim('identity', participation=dpftrl.MinSep(4, 2))
  with guards.Guard(claim, log=tmp_path / 'log.parquet') as guard:
    guard.admit([5])
    guard.admit([7])
    with pytest.raises(error):
      guard.reserve(cohorts)
    assert guard.privacy_loss(1e-6).rho == claim.guarantee(guard.gate.seen.schema, 1e-6).rho
    assert guard.gate.seen.num_rounds == guard.num_rounds == 2
    assert guard.admit([7, 8]).device_ids.tolist() == [8]  # Device 7 took part in round 1.
    with pytest.raises(TypeError):
      guard.reserve([[9]], least=None)


@pytest.mark.parametrize('when', ['before', 'within', 'after'])
def test_an_interrupt_of_a_gate_lets_no_device_in_too_soon(tmp_path, monkeypatch, when):
  claim = made.claim('identity', participation=dpftrl.MinSep(6, 3))
  with guards.Guard(claim, log=tmp_path / 'log.parquet') as guard:
    record, interrupts = guard.gate.record, [True]

    def interrupted(device_ids):
      if when != 'before' or not interrupts:
        record(device_ids)
      if when == 'within' and interrupts:
        guard.gate.seen._lasts[:] = -9
      if interrupts:
        interrupts.clear()
        raise KeyboardInterrupt

    monkeypatch.setattr(guard.gate, 'record', interrupted)
    with pytest.raises(KeyboardInterrupt):
      guard.admit([2])
    assert guard.num_rounds == 1 and not guard.check([2]).device_ids.size
    assert guard.admit([2, 3]).device_ids.tolist() == [3]


def test_a_repeated_row_is_refused(tmp_path):
  guarded = opened(tmp_path / 'log.parquet')
  guarded.admit(['a'], row=0)
  with pytest.raises(
    guards.RepeatedRowError,
    match='row 0 was given out for round 0.*skip the rows before row 1 first',
  ):
    guarded.admit(['b'], row=0)
  assert guarded.num_rounds == 1  # What was refused is not recorded.
  with pytest.raises(ValueError, match='row 2 does not belong to round 1'):
    guarded.admit(['b'], row=2)


@made.cases(
  'changes, message',
  (dict(noise_multiplier=0.0), 'noise_multiplier must be positive'),
  (dict(max_epsilon=-1.0), 'max_epsilon must be positive'),
  (dict(delta=0.0), 'delta must lie'),
  (
    dict(participation=dpftrl.FixedSeparation(num_rounds=5, min_sep=2)),
    'participation must be a MinSep',
  ),
  (dict(participation=None), 'needs schema'),
  (dict(strategy=dpftrl.TreeFull()), 'depends on the number of rounds'),
  (dict(max_epsilon=1.0), 'too little for one round, whose ε is 2'),
  (
    dict(max_epsilon=1.0, participation=dpftrl.LossBudget(max_participations=3, min_sep=2)),
    'too little for a run without an end, whose ε is',
  ),
)
def test_refuses_arguments_out_of_range(tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    opened(tmp_path / 'log.parquet', **dict(max_epsilon=8.0) | changes)
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_family_has_a_horizon_that_its_epsilon_allows():
  schema = dpftrl.MinSep(num_rounds=8, min_sep=2)
  for strategy in (dpftrl.Banded(np.array([[1, 0]] + 7 * [[1, 0.4]])), dpftrl.TreeFull(8), BLT):
    claim = made.claim(strategy, noise_multiplier=1.0, participation=schema)
    whole = budget.Budget(claim, guarantees.Terms(1e-6), 1e9)
    values = [whole.epsilon(n) for n in range(1, 9)]
    for most in (values[0], values[4], values[-1] * 2):
      found = budget.Budget(claim, guarantees.Terms(1e-6), most)
      assert found.max_rounds == max(n for n in range(1, 9) if values[n - 1] <= most)


def test_a_budget_is_not_raised_once_releases_were_seen(path):
  with opened(path, max_epsilon=2.5) as guarded:
    guarded.admit(['a'], row=0)
    allowed = guarded.max_rounds
  assert allowed < SCHEMA.num_rounds
  for max_epsilon in (2.3, 4.0, None):
    with pytest.raises(refusals.LogError, match='participation.num_rounds 3, not '):
      opened(path, max_epsilon=max_epsilon)
  statement = dpftrl.replay(dpftrl.open_run(path, BLT), delta=1e-6)
  assert (statement.num_rounds, statement.declared.participation.num_rounds) == (1, allowed)
  assert statement.worst_case.epsilon() < statement.declared.guarantee.epsilon() <= 2.5


@made.cases(
  'schema, max_epsilon, words',
  (dpftrl.MinSep(200, 3), 8.0, 'participation.min_sep 2, not 3; open it'),
  (dpftrl.MinSep(200, 2, 4), 8.0, ': participation.max_participations 8, not 4; open it'),
  (dpftrl.MinSep(200, 2), 4.0, 'max_epsilon=4 allows 7 rounds, and .* 15: give num_rounds and max'),
  (dpftrl.MinSep(12, 2), 8.0, 'participation.num_rounds 15, not 12; open it'),
  (dpftrl.MinSep(200, 2), None, 'participation.num_rounds 15, not 200; open it'),
)
def test_a_run_of_another_schema_is_told_what_differs(tmp_path, schema, max_epsilon, words):
  """Rounds that only the budget takes away are no difference."""
  open_run = lambda schema, max_epsilon: dpftrl.Run(
    tmp_path,
    made.claim(noise_multiplier=4.0, participation=schema),
    delta=1e-6,
    max_epsilon=max_epsilon,
  )
  with open_run(dpftrl.MinSep(200, 2), 8.0) as run, run.round(['a']):
    pass
  with pytest.raises(ValueError, match=words) as refused:
    open_run(schema, max_epsilon)
  assert 'num_rounds' not in str(refused.value) or 'num_rounds' in words
  open_run(dpftrl.MinSep(300, 2), 8.0).close()  # Nothing holds the log.


def test_threads_share_no_round_and_lose_no_device(tmp_path):
  with opened(tmp_path / 'log.parquet', participation=dpftrl.MinSep(64, 1)) as first:
    first.admit(['first'], row=0)
    admitted, barrier = [], threading.Barrier(4)

    def ask(device):
      barrier.wait()
      for i in range(4):
        admitted.append((first.admit([f'{device} {i}']).round_index, f'{device} {i}'))

    with futures.ThreadPoolExecutor(4) as pool:
      list(pool.map(ask, (f'd{k}' for k in range(4))))
    assert sorted(t for t, _ in admitted) == list(range(1, 17))
    assert all(first.log.cohort(t).tolist() == [device] for t, device in admitted)


def test_replay_takes_the_declared_schema_from_the_log_of_a_guard(tmp_path, path):
  with opened(path) as guarded:
    for t in range(4):
      guarded.admit(['a', 'b', f'd{t}'], row=t)
  run = dpftrl.open_run(path, BLT)
  assert run.claim.declared == SCHEMA and run.schema_in_log
  given = dpftrl.open_run(path, BLT, declared_num_rounds=12, declared_min_sep=2)
  assert given.claim.declared.min_sep == 2 and not given.schema_in_log
  with pytest.raises(ValueError, match='declared_min_sep=2 needs declared_num_rounds'):
    dpftrl.open_run(path, BLT, declared_min_sep=2)
  # Of two runs, one without a schema: neither is then declared.
  log = made.log(tmp_path / 'other.parquet', [['x']])
  other = dpftrl.open_run(log, BLT, noise_multiplier=2.0)
  assert dpftrl.replay([run, other], delta=1e-6).declared is None


@pytest.mark.parametrize(
  'sampling',
  [dpftrl.SecretBins(6, 2), schemes.CyclicPoisson(num_rounds=6, num_examples=9, batch_size=3)],
)
def test_a_cohort_that_is_drawn_has_no_size(tmp_path, sampling):
  claim = made.claim('identity', participation=sampling)
  with guards.Guard(claim, log=tmp_path / 'log.parquet') as guard:
    refused = f'at_most=2 is refused beside {type(sampling).__name__}'
    for ask in (guard.check, guard.admit):
      with pytest.raises(ValueError, match=refused):
        ask([1, 2, 3], at_most=2)
    with pytest.raises(ValueError, match='at_least=3 is refused where participation is drawn'):
      guard.admit([1, 2, 3], at_least=3)
    assert guard.check([1, 2, 3]).device_ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
  'participation', [dpftrl.MinSep(None, 9, 2), dpftrl.LossBudget(max_participations=2, min_sep=9)]
)
@pytest.mark.parametrize('strategy, warned', [('blt-b100', 1), ('blt-b40-endless', 0)])
def test_a_strategy_for_a_last_round_is_warned_of_in_a_run_without_one(
  tmp_path, participation, strategy, warned
):
  with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter('always')
    opened(tmp_path / 'l.parquet', strategy=strategy, participation=participation).close()
  lines = [str(warning.message) for warning in found]
  assert len(lines) == warned
  column = dpftrl.load_strategy(strategy).strategy_matrix(1000)[:, 0]
  endless = dpftrl.account(strategy, dpftrl.MinSep(None, 1, 1), noise_multiplier=1.0, delta=1e-6)
  times = f'{endless.sensitivity / np.linalg.norm(column):,.0f}'
  assert all(f'participation has {times} times the sensitivity' in line for line in lines)


def test_a_budget_that_is_too_small_leaves_no_folder(tmp_path):
  arguments = dict(participation=SCHEMA, delta=1e-6, max_epsilon=1e-4)
  for folder in (tmp_path / 'run', tmp_path):
    with pytest.raises(ValueError, match='max_epsilon=0.0001'):
      made.aggregator(folder, **arguments)
  assert tmp_path.exists() and not any(tmp_path.iterdir())
