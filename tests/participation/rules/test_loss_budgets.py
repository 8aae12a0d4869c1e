"""Runs without an end: one ε for any length, kept by meters, and shown by logs."""

import dataclasses
import itertools
import json
import os
import pathlib
import signal
import subprocess

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import ledgers
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.participation.counts import meter
from fl_dpftrl.participation.rules import loss_budgets
from fl_dpftrl.run import guards
from fl_dpftrl.support.files import mark
from tests import forks

BLT = dpftrl.BLT([0.9, 0.4], [0.2, 0.3])
BUDGET = dpftrl.LossBudget(max_participations=3, min_sep=4)
CLAIM = dpftrl.Claim(
  strategy=BLT, noise_multiplier=3.0, participation=BUDGET, clip_norm=1.0, report_goal=2
)
DELTA = 1e-6
pytestmark = pytest.mark.filterwarnings('ignore:a round admits no device')


def candidates(t: int) -> list[str]:
  generator = np.random.default_rng([7, t])
  return [f'device-{i}' for i in range(8 + t // 4) if generator.random() < 0.4 or i == 7 + t // 4]


def admitted(path, num_rounds: int) -> np.ndarray:
  """Runs rounds of a guard, and returns the losses of its devices; the log stays open."""
  running = guards.Guard(CLAIM, DELTA, log=path)
  for t in range(running.num_rounds, num_rounds):
    running.admit(candidates(t), timestamp=t)
  losses = running.gate.seen.losses([f'device-{i}' for i in range(20)])
  running.log.release()
  return losses


def test_one_figure_before_the_first_round_and_after_any():
  guarantee = dpftrl.account(BLT, BUDGET, noise_multiplier=3.0, delta=DELTA)
  square = BLT.endless_gram().worst_square(4, 3).value ** 2
  assert square <= guarantee.sensitivity**2 <= square * (1.0 + 2e-8)
  assert guarantee.sensitivity_kind == 'upper_bound'
  for n in (9, 12, 200):  # It covers the schema that names it, in any number of rounds.
    planned = dpftrl.account(BLT, dpftrl.MinSep(n, 4, 3), noise_multiplier=3.0, delta=DELTA)
    assert planned.epsilon() <= guarantee.epsilon()
  assert guarantee.epsilon() <= planned.epsilon() * (1.0 + 2e-8)
  doubled = dpftrl.account(
    BLT, BUDGET, noise_multiplier=3.0, delta=DELTA, adjacency='replace_one', group_size=3
  )
  assert doubled.mu == pytest.approx(6.0 * guarantee.mu)
  planned = dpftrl.calibrate(BLT, BUDGET, epsilon=4.0, delta=DELTA)
  assert planned.epsilon() == pytest.approx(4.0, abs=1e-9)


KILLED_AT = (
  (ledgers.LogWriter, 'begin'),
  (ledgers.LogWriter, '_mark_rounds'),
  (mark.MarkFile, 'write'),
  (loss_budgets.LossGate, 'record'),
)


def kill_a_process(path, owner: type, name: str, call: int, after: bool) -> None:
  """Runs rounds in a process that a signal kills before or after a call of a method."""
  process = os.fork()
  if not process:
    try:
      method, calls = getattr(owner, name), itertools.count()

      def last(*args, **options):
        is_last = next(calls) == call
        if is_last and not after:
          os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args, **options)
        if is_last:
          os.kill(os.getpid(), signal.SIGKILL)
        return result

      running = guards.Guard(CLAIM, log=path)
      setattr(owner, name, last)
      for t in itertools.count(running.num_rounds):
        running.admit(candidates(t), timestamp=t)
    finally:
      os._exit(1)
  _, status = os.waitpid(process, 0)
  assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def print_lengths(path) -> None:
  """Prints the rounds after each of forty kills, of a process without other threads."""
  lengths = []
  for i in range(40):
    assert forks.num_threads() == 1
    kill_a_process(path, *KILLED_AT[i % 4], call=i % 3, after=bool(i // 4 % 2))
    running = guards.Guard(CLAIM, log=path)
    lengths.append(running.num_rounds)
    running.log.release()
  print(json.dumps(lengths))


@pytest.mark.slow
def test_meters_after_forty_kills_are_those_of_an_uninterrupted_run(tmp_path):
  path, root = tmp_path / 'killed.parquet', pathlib.Path(__file__).parents[3]
  program = 'import sys; from tests.participation.rules import test_loss_budgets as tests'
  words = [*forks.PYTHON, '-c', f'{program}; tests.print_lengths(sys.argv[1])', str(path)]
  lengths = json.loads(subprocess.check_output(words, cwd=root, text=True, timeout=240))
  assert lengths == sorted(lengths) and len(set(lengths)) > 20
  resumed = admitted(path, lengths[-1] + 3)
  whole = admitted(tmp_path / 'whole.parquet', lengths[-1] + 3)
  assert resumed.tolist() == whole.tolist() and whole.max() > 0.0
  assert whole.max() <= BUDGET.square(BLT)


def test_a_guard_says_why_and_a_log_has_one_figure(tmp_path):
  path, said = tmp_path / 'participation.parquet', set()
  with guards.Guard(CLAIM, DELTA, max_epsilon=5.0, log=path) as running:
    figures = {running.privacy_loss(DELTA).epsilon()}  # Before the first round too.
    for t in range(40):
      admission = running.admit(candidates(t))
      said |= {away.sentence.split(' and ', 1)[1] for away in admission.turned_away}
      figures.add(running.privacy_loss(DELTA).epsilon())
    running.claim.save(tmp_path, running.log.run)
  assert said == {
    'this round would pass its loss budget: a later one may not',
    'has no loss budget for any further round',
  }
  stated = dpftrl.replay(tmp_path, delta=DELTA)
  before = dpftrl.account(BLT, BUDGET, noise_multiplier=3.0, delta=DELTA).epsilon()
  assert figures == {before} == {stated.worst_case.epsilon()}
  assert stated.headline is stated.declared and stated.declared.holds and not stated.violations
  assert stated.declared.guarantee.epsilon() == before
  assert stated.quoted.endswith('of any number of rounds')
  assert stated.observed.epsilon() <= before  # With rows that are never computed.
  column = dpftrl.open_run(path, BLT).log
  assert column.num_rounds == 40
  text = ' '.join(stated.assumptions)
  assert 'a run of any length, whatever ended it' in text and 'kept' not in text
  assert 'where it was recorded before the first round' in text and stated.runs[0].schema_in_log
  publishable = stated.publishable()
  assert publishable.worst_case.epsilon() == before and publishable.observed is None
  assert publishable.to_json()['declared']['num_rounds'] is None


def test_a_budget_below_that_of_the_claim_is_refused(tmp_path):
  with pytest.raises(ValueError, match='max_epsilon=2 is too little'):
    guards.Guard(CLAIM, DELTA, max_epsilon=2.0, log=tmp_path / 'participation.parquet')


def test_a_log_names_the_round_in_which_a_device_passes_its_budget(tmp_path):
  generator = np.random.default_rng(3)
  rounds = [sorted(generator.choice(9, 3, replace=False).tolist()) for _ in range(12)]
  with dpftrl.LogWriter(tmp_path / 'participation.parquet', CLAIM) as log:
    for t, cohort in enumerate(rounds):
      log.append(t, [f'd{i}' for i in cohort], t)
  CLAIM.save(tmp_path)
  stated = dpftrl.replay(tmp_path, delta=DELTA)
  meters, wrong, who = meter.Meters(BLT.endless_gram()), [], set()
  for t, cohort in enumerate(rounds):
    meters.add(np.array(cohort))
    over = [i for i in cohort if meters.losses([i])[0] > BUDGET.square(BLT)]
    wrong += [t] if over else []
    who |= set(over)
  assert wrong and not stated.declared.holds
  assert [place['round'] for place in stated.violations.first_rounds] == wrong[:10]
  assert stated.violations.num_devices == len(who)
  assert stated.worst_case.epsilon() > stated.declared.guarantee.epsilon()
  largest = meters._losses.max() ** 0.5
  assert stated.observed.sensitivity == pytest.approx(largest, rel=1e-11)
  assert any('THE LOSS BUDGET DOES NOT HOLD' in sentence for sentence in stated.assumptions)


@pytest.mark.parametrize('rule', [BUDGET, dpftrl.MinSep(None, 4, 3)])
def test_the_worst_case_of_a_broken_run_without_an_end_is_over_rows_that_may_follow(tmp_path, rule):
  claim = dataclasses.replace(CLAIM, participation=rule)
  with dpftrl.LogWriter(tmp_path / 'participation.parquet', claim) as log:
    for t in range(3):
      log.append(t, ['a', f'b{t}'], t)
  claim.save(tmp_path)
  stated = dpftrl.replay(tmp_path, delta=DELTA)
  assert not stated.declared.holds
  assert stated.worst_case.epsilon() >= stated.observed.epsilon() * (1.0 - 1e-9)


def test_runs_of_one_population_add_up(tmp_path):
  for name in ('first', 'second'):
    folder = tmp_path / name
    folder.mkdir()
    admitted(folder / 'participation.parquet', 9)
    CLAIM.save(folder)
  stated = dpftrl.replay([tmp_path / 'first', tmp_path / 'second'], delta=DELTA)
  assert stated.headline.guarantee.mu == pytest.approx(
    2**0.5 * dpftrl.account(BLT, BUDGET, noise_multiplier=3.0, delta=DELTA).mu
  )
  known = dataclasses.replace(CLAIM, participation=dpftrl.MinSep(9, 4, 3))
  (tmp_path / 'known').mkdir()
  with dpftrl.LogWriter(tmp_path / 'known' / 'participation.parquet', known) as log:
    log.append(0, ['a'], 0)
  known.save(tmp_path / 'known')
  planned = dpftrl.account(BLT, known.participation, noise_multiplier=3.0, delta=DELTA)
  alone = dpftrl.account(BLT, BUDGET, noise_multiplier=3.0, delta=DELTA)
  for names in (('first', 'known'), ('known', 'first')):
    mixed = dpftrl.replay([tmp_path / name for name in names], delta=DELTA)
    assert mixed.headline.guarantee.mu == pytest.approx(np.hypot(planned.mu, alone.mu))
    assert mixed.worst_case.mu == mixed.declared.guarantee.mu and mixed.declared.holds
    assert any('of 9 rounds, at least 4 apart in run' in s for s in mixed.assumptions)


def test_an_aggregator_goes_on_past_any_horizon(tmp_path):
  def opened():
    return dpftrl.PrivateAggregator(
      BLT, template=np.zeros(3), noise_multiplier=3.0, clip_norm=1.0, report_goal=2,
      folder=tmp_path / 'run', participation=BUDGET, delta=DELTA,
    )  # fmt: skip

  figures, devices = set(), 0
  for _ in range(3):
    with opened() as aggregator:
      for _ in range(4):
        ids = aggregator.admissible([f'd{i}' for i in range(devices + 2)], at_most=2)
        with aggregator.round(ids) as round_:
          for _ in ids:
            round_.add(np.ones(3))
        devices += 1
        figures.add(aggregator.privacy_loss().epsilon())
      figures.add(aggregator.statement().headline.guarantee.epsilon())
      assert aggregator.max_rounds == 2**20
  (epsilon,) = figures
  covered = dpftrl.account(BLT, BUDGET, noise_multiplier=3.0, delta=DELTA, num_coordinates=3)
  assert epsilon == covered.epsilon()


def test_rounds_beyond_the_last_row_are_refused(tmp_path):
  short = dpftrl.LossBudget(max_participations=3, min_sep=4, last_row=2)
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=3.0, participation=short)
  running = guards.Guard(claim, DELTA, log=tmp_path / 'participation.parquet')
  running.admit(['a'])
  running.admit(['b'])
  with pytest.raises(guards.BudgetSpentError, match='beyond the 2 rounds'):
    running.admit(['c'])
  running.log.release()


@pytest.mark.parametrize('attributes', [
  {}, dict(min_sep=4), dict(max_participations=3), dict(min_sep=4, squared=2.0),
])  # fmt: skip
def test_a_budget_is_that_of_participations_or_a_square(attributes):
  with pytest.raises(ValueError, match='needs max_participations and min_sep, or squared'):
    dpftrl.LossBudget(**attributes)


def test_what_has_a_last_round_is_refused_where_it_enters(tmp_path):
  with pytest.raises(ValueError, match='needs a last round'):
    dpftrl.Claim(strategy=dpftrl.TreeOnline(), noise_multiplier=3.0, participation=BUDGET)
  with pytest.raises(ValueError, match='needs a last round'):
    dpftrl.account(dpftrl.TreeOnline(), BUDGET, noise_multiplier=3.0, delta=DELTA)
  with pytest.raises(ValueError, match='give fewer, as last_row'):
    dpftrl.account(
      dpftrl.LambdaCGD(0.5), BUDGET, noise_multiplier=3.0, delta=DELTA, num_coordinates=9
    )


def test_the_rounding_of_many_rounds_is_that_of_one_by_one():
  for strategy in (BLT, dpftrl.Identity(), dpftrl.BandedToeplitz(np.array([1.0, -0.5, 0.3]))):
    noise, farthest = strategy.noise(None), 1.02 * lattice.FARTHEST_NORMAL * 2.0**lattice.BITS
    alike = lattice._carried_alike(strategy, noise, 300, farthest)
    assert alike == pytest.approx(lattice.carried_error(strategy, 300), rel=1e-9)
  endless = dpftrl.load_strategy('blt-b342-endless')
  few, many = (arithmetics.rounding([(endless, n)], 4_000_000).mu for n in (2052, 2**20))
  assert few == pytest.approx(5.5e-6, rel=0.03) and many == pytest.approx(1.3e-4, rel=0.02)
