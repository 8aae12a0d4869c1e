"""Runs whose losses count against the loss budget of a later run."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
import scipy.optimize

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.participation.counts import meter
from fl_dpftrl.run import guards
from tests import made
from tests.mechanisms.sensitivities import adaptive

BLT = dpftrl.BLT([0.9, 0.4], [0.2, 0.3])
BUDGET = dpftrl.LossBudget(max_participations=3, min_sep=4)
CLAIM = dpftrl.Claim(strategy=BLT, noise_multiplier=3.0, participation=BUDGET, clip_norm=1.0)
LATER = dataclasses.replace(CLAIM, noise_multiplier=2.5)
DELTA = 1e-6
pytestmark = pytest.mark.filterwarnings('ignore:a round admits no device')


def run(folder: pathlib.Path, claim=CLAIM, *, earlier=(), num_rounds=6, devices=None, **options):
  """Runs some rounds more, and returns losses and budget of devices 0 to 9."""
  folder.mkdir(exist_ok=True)
  names = np.arange(12) if devices is None else devices
  options = {'delta': DELTA, **options}
  with guards.Guard(
    claim, log=folder / 'participation.parquet', earlier=earlier, **options
  ) as guard:
    for _ in range(num_rounds):
      t = guard.num_rounds
      guard.admit(names[t % 3 : 8 + t % 4])
    guard.claim.save(folder, guard.log.run)
    return guard.gate.seen.losses(names), guard.epsilon(1)


def mu_of(claim) -> float:
  account = dpftrl.account(
    claim.strategy, claim.participation, noise_multiplier=claim.noise_multiplier, delta=DELTA
  )
  return account.mu


def test_what_devices_lost_before_counts_against_the_budget(tmp_path):
  first, _ = run(tmp_path / 'first')
  second, epsilon = run(tmp_path / 'second', LATER, earlier=[tmp_path / 'first'])
  meters = meter.Meters(BLT.endless_gram())
  log = dpftrl.open_run(tmp_path / 'second').log
  cohorts = [[] for _ in range(6)]
  for table in log.tables():
    for t, device in zip(*(table.column(name).to_pylist() for name in ('round', 'device_id'))):
      cohorts[t].append(device)
  for cohort in cohorts:
    meters.add(np.array(cohort, int))
  lost = first * (2.5 / 3.0) ** 2
  np.testing.assert_allclose(second, lost + meters.losses(np.arange(12)), rtol=1e-11)
  assert second.max() <= BUDGET.square(BLT) < (lost + first).max()
  assert epsilon == dpftrl.account(BLT, BUDGET, noise_multiplier=2.5, delta=DELTA).epsilon()


def test_replay_shows_the_figure_of_both(tmp_path):
  runs = [tmp_path / name for name in ('first', 'second', 'third')]
  run(runs[0])
  shutil.copytree(runs[0], tmp_path / 'copy')
  run(runs[1], LATER, earlier=runs[:1])
  run(runs[1], LATER, earlier=runs[:1])  # Goes on, with the same earlier run.
  together = dpftrl.replay(runs[:2], delta=DELTA)
  assert together.declared.holds and together.headline.guarantee.mu == pytest.approx(mu_of(LATER))
  assert together.observed.epsilon() <= together.headline.guarantee.epsilon()
  assert dpftrl.replay(runs[1::-1], delta=DELTA).headline.guarantee.mu == pytest.approx(
    mu_of(LATER)
  )
  assert [facts.charged for facts in together.runs] == [(), (1,)]
  assert any('against the loss budget in run 2, 1 of them' in s for s in together.assumptions)
  # A digest of a log is as confidential as the log.
  digest = dpftrl.open_run(runs[0]).digest
  assert dpftrl.open_run(runs[1]).claim.participation.earlier == (digest,)
  for statement in (together, dpftrl.replay(runs[1], delta=DELTA)):
    assert digest not in str(statement.publishable().to_json())
    assert digest not in str(statement.to_json())
  third = dataclasses.replace(CLAIM, noise_multiplier=2.0)
  run(runs[2], third, earlier=runs[:2])
  every = dpftrl.replay(runs, delta=DELTA)
  assert every.headline.guarantee.mu == pytest.approx(mu_of(third))
  # Without the second run, which counted the first, the first still counts against the third.
  assert dpftrl.replay(runs[::2], delta=DELTA).headline.guarantee.mu == pytest.approx(mu_of(third))
  # A copy that goes on is not what was counted: both budgets add up.
  with pytest.raises(ValueError, match='a later run counted its losses'):
    run(runs[0], num_rounds=1)
  shutil.rmtree(runs[0])
  shutil.copytree(tmp_path / 'copy', runs[0])
  run(runs[0], num_rounds=1)
  added = dpftrl.replay(runs[:2], delta=DELTA)
  assert added.headline.guarantee.mu == pytest.approx(np.hypot(mu_of(CLAIM), mu_of(LATER)))
  with pytest.raises(refusals.LogError, match='is of another run: participation'):
    run(runs[1], LATER, earlier=runs[:1])
  with pytest.raises(refusals.LogError, match='is of another run: participation'):
    run(runs[1], LATER)


def test_a_run_that_counts_only_the_one_before_it_bounds_no_others(tmp_path):
  """The first counts against the second, and the second, but not the first, against the third."""
  runs = [tmp_path / name for name in ('first', 'second', 'third')]
  claim = dataclasses.replace(
    CLAIM, strategy=dpftrl.Identity(), participation=dpftrl.LossBudget(squared=4.0)
  )
  for folder, earlier, devices in zip(runs, ([], runs[:1], runs[1:2]), ([1], [2], [1])):
    run(folder, claim, earlier=earlier, devices=np.repeat(devices, 12))
  statement = dpftrl.replay(runs, delta=DELTA)
  assert statement.observed.mu <= statement.headline.guarantee.mu
  assert statement.declared.guarantee.mu == pytest.approx(np.hypot(mu_of(claim), mu_of(claim)))


def test_a_log_in_which_both_pass_the_budget_is_void(tmp_path):
  run(tmp_path / 'first')
  claim = dpftrl.open_run(tmp_path / 'first')
  stated = dataclasses.replace(
    LATER, participation=dataclasses.replace(BUDGET, earlier=(claim.digest,))
  )
  (tmp_path / 'loose').mkdir()
  cohorts = [[1] if t in (0, 4, 8) else [] for t in range(9)]
  made.ledger(tmp_path / 'loose' / 'participation.parquet', cohorts, stated)
  stated.save(tmp_path / 'loose')
  assert dpftrl.replay(tmp_path / 'loose', delta=DELTA).declared.holds  # It alone keeps to it.
  both = dpftrl.replay([tmp_path / 'first', tmp_path / 'loose'], delta=DELTA)
  assert not both.declared.holds and both.violations.num_devices == 1
  assert any('no figure holds if what was released decided who' in s for s in both.assumptions)
  assert {place['run'] for place in both.violations.first_rounds} == {2}


def test_a_schema_of_declared_rounds_counts_too(tmp_path):
  schema = dataclasses.replace(CLAIM, participation=dpftrl.MinSep(9, 4, 2))
  (tmp_path / 'first').mkdir()
  with guards.Guard(schema, DELTA, log=tmp_path / 'first' / 'participation.parquet') as guard:
    guard.admit(np.arange(3))
    guard.claim.save(tmp_path / 'first', guard.log.run)
  losses, _ = run(tmp_path / 'second', LATER, earlier=[tmp_path / 'first'], num_rounds=1)
  own = BLT.endless_gram().own  # Of the one round, and of the other with its only row.
  assert losses[:3] == pytest.approx([own + (2.5 / 3.0) ** 2] * 3)
  assert losses[3:8] == pytest.approx([own] * 5)
  both = dpftrl.replay([tmp_path / 'first', tmp_path / 'second'], delta=DELTA)
  assert both.headline.guarantee.mu == pytest.approx(mu_of(LATER))


def test_an_aggregator_takes_earlier_runs(tmp_path):
  options = dict(participation=dpftrl.LossBudget(squared=2.0), delta=DELTA)
  with made.aggregator(tmp_path / 'first', BLT, **options) as aggregator:
    made.release(aggregator, ['a', 'b'])
  options['earlier'] = [tmp_path / 'first']
  with made.aggregator(tmp_path / 'second', BLT, **options) as aggregator:
    ids = aggregator.admissible(['a', 'b', 'x', 'y'])
    assert ids.tolist() == ['x', 'y']
    made.release(aggregator, ids)
    with pytest.raises(ValueError, match='device_ids must be of the type'):
      aggregator.admissible([1, 2])


def test_what_does_not_count_is_refused(tmp_path):
  run(tmp_path / 'first')
  cases = [
    (dataclasses.replace(CLAIM, participation=dpftrl.MinSep(9)), 'against a loss budget only'),
    (
      dataclasses.replace(CLAIM, noise_multiplier=4.0),
      'may spend B/σ = 0.846506 of a device, above',
    ),
    (dataclasses.replace(CLAIM, noise_multiplier=0.0), 'a run without noise'),
  ]
  for claim, message in cases:
    with pytest.raises(ValueError, match=message) as error:
      run(tmp_path / 'second', claim, earlier=[tmp_path / 'first'], delta=None)
    assert len(str(error.value)) < 300 and '\n' not in str(error.value)
  free = dataclasses.replace(CLAIM, participation=None)
  (tmp_path / 'free').mkdir()
  made.ledger(tmp_path / 'free' / 'participation.parquet', [[1]], free)
  free.save(tmp_path / 'free')
  with pytest.raises(ValueError, match='none is declared'):
    run(tmp_path / 'second', earlier=[tmp_path / 'free'])
  foreign = dpftrl.open_run(
    _written(tmp_path), BLT, noise_multiplier=3.0, declared_num_rounds=9, declared_min_sep=3
  )
  with pytest.raises(ValueError, match='run 1 has a log that states no run and claim'):
    run(tmp_path / 'second', earlier=[foreign])
  with pytest.raises(ValueError, match='earlier must hold digests'):
    dpftrl.LossBudget(max_participations=3, min_sep=4, earlier=('x',))


@pytest.mark.parametrize('is_killed', [False, True])
def test_a_run_that_was_counted_is_sealed_for_ever(tmp_path, is_killed):
  run(tmp_path / 'first')
  log = tmp_path / 'first' / 'participation.parquet'
  if is_killed:  # Only its ledger is there.
    log.unlink()
  else:
    with guards.Guard(CLAIM, DELTA, log=log):
      with pytest.raises(ValueError, match='held by another process'):
        run(tmp_path / 'early', LATER, earlier=[tmp_path / 'first'])
  digest = dpftrl.open_run(tmp_path / 'first').digest
  run(tmp_path / 'second', LATER, earlier=[tmp_path / 'first'])
  for _ in range(2):
    with guards.Guard(CLAIM, DELTA, log=log) as guard:
      for refused in (guard.check, guard.admit, lambda ids: guard.reserve([ids])):
        with pytest.raises(ValueError, match='round 6 may not follow: a later run counted its'):
          refused([99])
    with dpftrl.LogWriter(log, CLAIM) as writer:
      with pytest.raises(ValueError, match='is sealed: a later run counted its losses'):
        writer.append(6, [99], 0)
  assert dpftrl.open_run(tmp_path / 'first').digest == digest
  run(tmp_path / 'second', LATER, earlier=[tmp_path / 'first'], num_rounds=1)  # Goes on.


def test_a_claim_that_counts_runs_is_refused_without_them(tmp_path):
  run(tmp_path / 'first')
  earlier = [tmp_path / 'first']
  run(tmp_path / 'second', LATER, earlier=earlier)
  stated = dpftrl.open_run(tmp_path / 'second').claim
  person = dpftrl.PerUnit(stated.participation)
  for claim in (stated, dataclasses.replace(stated, participation=person)):
    with pytest.raises(ValueError, match='the claim counts runs that must be given too') as error:
      run(tmp_path / 'third', claim)
    assert stated.participation.earlier[0] not in str(error.value)
  assert not (tmp_path / 'third' / 'participation.ledger').exists()
  with pytest.raises(ValueError, match='the claim counts other runs'):
    run(tmp_path / 'third', stated, earlier=[tmp_path / 'second'])
  run(tmp_path / 'third', stated, earlier=earlier)


def _written(folder: pathlib.Path) -> pathlib.Path:
  (folder / 'log.csv').write_text('round,device_id\n0,1\n')
  return folder / 'log.csv'


def test_the_rounding_of_many_streams_is_that_of_those_of_one_device(tmp_path):
  arithmetic = arithmetics.Arithmetic.covered(4_000_000)
  budget = dpftrl.LossBudget(
    squared=2.5, last_row=2**14
  )  # One round of a device, as 2 · 1.45 is more.
  claim = dataclasses.replace(CLAIM, participation=budget, arithmetic=arithmetic)
  runs = [tmp_path / f'run{i}' for i in range(3)]
  for i, folder in enumerate(runs):
    run(folder, claim, earlier=runs[:i], num_rounds=1)
  one, every = dpftrl.replay(runs[:1], delta=DELTA), dpftrl.replay(runs, delta=DELTA)
  assert every.declared.guarantee.rounding.mu == one.declared.guarantee.rounding.mu > 0.0
  assert every.declared.guarantee.rounding.chance == pytest.approx(
    3 * one.declared.guarantee.rounding.chance
  )
  assert dpftrl.replay(runs[1:], delta=DELTA).declared.holds
  squares = [rounding.mu**2 for rounding in _rounding([1, 2, 3])]
  assert squares == pytest.approx([squares[0], 2 * squares[0], 3 * squares[0]])


def _rounding(counts):
  streams = [(BLT, 64)] * max(counts)
  return [arithmetics.rounding(streams, 1000, most) for most in counts]


def test_bounds_of_runs_are_not_below_what_their_gates_allow_together():
  generator, are_met = np.random.default_rng(4), 0
  for _ in range(200):
    number, charged, squares = int(generator.integers(2, 6)), [], []
    for place in range(number):
      charged.append(tuple(e for e in range(place) if generator.random() < 0.5))
      # A guard refuses earlier runs that may have spent more than its budget.
      spent = run_claim._sum_of(charged[-1], squares, charged) if charged[-1] else 0.0
      squares.append(max(spent, float(generator.uniform(1.0, 9.0))))
    gates = np.eye(number)
    for place, earlier in enumerate(charged):
      gates[place, list(earlier)] = 1.0
    most = -scipy.optimize.linprog(-np.ones(number), A_ub=gates, b_ub=squares).fun
    bound = run_claim._sum_of(range(number), squares, charged)
    assert most <= bound * (1.0 + 1e-9)
    are_met += bound <= most * (1.0 + 1e-9)
  assert are_met > 50


@pytest.mark.slow
def test_exact_delta_of_two_streams_is_within_one_budget():
  """Rounds 0 to 2 have σ 2, rounds 3 to 5 another seed and σ 1.5; B² = 4 in units of the later."""
  half, at = dpftrl.BLT([0.5], [0.5]), {'sigma': 1.5, 'epsilon': 0.5}
  gram, column = half.endless_gram(), half.column(6)
  ratio = 1.5 / 2.0

  def entry(t, s):
    if (t < 3) != (s < 3):
      return 0.0
    return column[t - s] * (ratio if t < 3 else 1.0)

  def loss(rounds, weight):
    meters = meter.Meters(gram, weight=weight)
    for t in range(3):
      meters.add(np.zeros(int(t in rounds), np.int64))
    return float(meters.losses(np.zeros(1, np.int64))[0])

  def gate(charges):
    def admits(past, t):
      first = loss([s for s in past if s < 3] + ([t] if t < 3 else []), ratio**2)
      second = loss([s - 3 for s in past if s >= 3] + ([t - 3] if t >= 3 else []), 1.0)
      if t < 3:  # The earlier run has a budget of its own, of the same B / σ.
        return first <= 4.0 + 1e-9
      return second + charges * first <= 4.0 + 1e-9

    return admits

  claim = adaptive.claimed(4.0, **at)
  right = adaptive.delta(entry, 6, gate(1.0), **at)
  assert claim - 0.02 < right < claim
  wrong = adaptive.delta(entry, 6, gate(0.0), **at)  # Meters that begin anew with each run.
  assert wrong > claim + 0.1
  added = adaptive.claimed(8.0, **at)
  assert wrong < added  # What replay states for runs that do not count each other.
