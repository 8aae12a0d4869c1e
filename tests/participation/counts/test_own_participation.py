"""A participation from outside the package works wherever a built-in one does."""

import dataclasses

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.participation import registry
from fl_dpftrl.prove.replaying import evidence
from fl_dpftrl.prove.reports import privacy
from fl_dpftrl.run import admission, guards
from tests.every_participation import Once, own_participation

WINDOWS = own_participation.AtMostInWindow(num_rounds=10, window=4, most=2, max_participations=5)
BLT = dpftrl.BLT([0.9, 0.5], [0.2, 0.1])


def test_accounting_takes_its_own_bound():
  guarantee = dpftrl.account(BLT, WINDOWS, noise_multiplier=3.0, delta=1e-6)
  assert guarantee.sensitivity == WINDOWS.sensitivity(BLT).value
  assert guarantee.sensitivity_kind == 'upper_bound'
  assert guarantee.assumptions[0] == WINDOWS.assumption
  planned = dpftrl.calibrate(BLT, WINDOWS, epsilon=4.0, delta=1e-6)
  assert (
    planned.epsilon() <= 4.0
    and planned.noise_multiplier
    < dpftrl.calibrate(BLT, dpftrl.MinSep(10), epsilon=4.0, delta=1e-6).noise_multiplier
  )


def test_without_a_bound_of_its_own_that_of_its_schema_is_no_exact_one():
  @dpftrl.register
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Even(dpftrl.MinSep):
    kind = 'even'

    def allows(self, rounds):
      return super().allows(rounds) and not np.any(np.asarray(rounds) % 2)

  value, kind = sensitivities.sensitivity(dpftrl.Identity(), Even(num_rounds=6, min_sep=2))
  assert kind == 'upper_bound' and value == pytest.approx(3**0.5)


@pytest.mark.parametrize('participation, rounds, holds', [
  (WINDOWS, (0, 1, 4, 5), True),
  (WINDOWS, (0, 1, 3), False),  # Its least separation and participations would be allowed.
  (Once(10), (3,), True),
  (Once(10), (3, 9), False),
])  # fmt: skip
def test_a_log_holds_or_does_not(participation, rounds, holds, tmp_path):
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=3.0, participation=participation)
  path = tmp_path / 'participation.parquet'
  with dpftrl.LogWriter(path, claim) as log:
    for t in range(10):
      log.append(t, ['x'] if t in rounds else [], 86400)
  claim.save(tmp_path)
  run = dpftrl.open_run(path, tmp_path / 'strategy.json')
  assert run.claim == claim and run.schema_in_log
  statement = dpftrl.replay(run, delta=1e-6)
  assert statement.declared.holds == holds
  assert (statement.violations is None) == holds
  if not holds:
    assert (statement.violations.num_devices, statement.violations.num_rounds) == (1, 1)
  assert statement.declared.guarantee.sensitivity == participation.worst_case(BLT).value
  assert f'declared: {participation.assumption}' in statement.assumptions
  assert statement.to_json()['declared'].items() >= dataclasses.asdict(participation).items()
  evidence.write_evidence(tmp_path / 'evidence', run, delta=1e-6)
  assert evidence.verify(tmp_path / 'evidence').failed == (() if holds else ('guarantee',))


@dpftrl.register
@dataclasses.dataclass(frozen=True)
class Dearer(Once):
  """A participation whose guarantee is more than that of its sensitivity."""

  kind = 'dearer'

  def guarantee(self, *arguments):
    found = super().guarantee(*arguments)
    return dataclasses.replace(found, sensitivity=3.0 * found.sensitivity)


def test_its_own_guarantee_is_that_of_guards_and_statements(tmp_path):
  epsilon = dpftrl.account(BLT, Dearer(6), noise_multiplier=3.0, delta=1e-6).epsilon()
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=3.0, participation=Dearer(6))
  assert claim.guarantee(Dearer(6), 1e-6).epsilon() == epsilon
  with guards.Guard(claim, 1e-6, log=tmp_path / 'participation.parquet') as guard:
    guard.admit(['a'])
    admission = guard.admit(['a', 'b'])
    assert admission.device_ids.tolist() == ['b']
    assert admission.turned_away[0].sentence.endswith('took part in round 0, and once is all')
  claim.save(tmp_path)
  statement = dpftrl.replay(tmp_path, delta=1e-6)
  assert statement.declared.guarantee.epsilon() == epsilon
  assert statement.headline is statement.declared  # Rounds may follow.


@pytest.mark.parametrize(
  'participation',
  [Once(6), dpftrl.SecretBins(6, 2), dpftrl.PerUnit(dpftrl.MinSep(6)), [Once(6)], 6],
)
def test_strategies_are_optimised_for_what_has_a_schema_and_else_refused(participation):
  with pytest.raises(ValueError, match='schema must be a MinSep or a list of them, got'):
    dpftrl.optimize('identity', participation)
  with pytest.raises(ValueError, match='horizons=.* are for a run without an end'):
    dpftrl.optimize('blt', participation, horizons=(2, 6))


def test_an_aggregator_and_a_budget_keep_it(tmp_path):
  arguments = dict(
    template=np.zeros(3), noise_multiplier=3.0, clip_norm=1.0, report_goal=1, delta=1e-6
  )
  most = dpftrl.account(BLT, WINDOWS.within(6), noise_multiplier=3.0, delta=1e-6).epsilon()
  with dpftrl.PrivateAggregator(
    BLT, folder=tmp_path / 'run', participation=WINDOWS, max_epsilon=most * 1.001, **arguments
  ) as aggregator:
    assert 5 <= aggregator.max_rounds < 10
    for _ in range(2):
      with aggregator.round(['a']) as round_:
        round_.add(np.zeros(3))
    assert aggregator.admissible(['a', 'b']).tolist() == ['b']
    with pytest.raises(ValueError, match='1 may not take part in round 2'):
      aggregator.round(['a']).begin()
  with dpftrl.PrivateAggregator(  # A restart knows the rounds before.
    BLT, folder=tmp_path / 'run', participation=WINDOWS, max_epsilon=most * 1.001, **arguments
  ) as aggregator:
    assert aggregator.admissible(['a', 'b']).tolist() == ['b']


def test_a_kind_is_registered_once():
  with pytest.raises(ValueError, match="participation 'min_sep' is registered already"):
    registry.register(type('Other', (dpftrl.MinSep,), {'kind': 'min_sep', '__module__': 'x'}))
  with pytest.raises(ValueError, match="'alone' must be derived from MinSep"):
    registry.register(type('Alone', (), {'kind': 'alone'}))
  with pytest.raises(ValueError, match='participation must be one of .*MinSep'):
    dpftrl.Claim(strategy=BLT, noise_multiplier=1.0, participation=3)


def test_a_bound_of_its_own_needs_patterns_of_its_own():
  """Else the gate admits all of the min-sep schema, and ε is of less."""
  with pytest.raises(ValueError, match="'narrow' has a sensitivity of its own, and allows all"):

    @dpftrl.register
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Narrow(dpftrl.MinSep):
      kind = 'narrow'

      def sensitivity(self, strategy):
        return sensitivities.Sensitivity(1.0, 'exact')


@dpftrl.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Short(dpftrl.MinSep):
  """Allows rounds from `first` on, with the sensitivity of one participation."""

  kind = 'short'
  first: int = 0

  def allows(self, rounds):
    return super().allows(rounds) and (len(rounds) == 1 or min(rounds) >= self.first)

  def sensitivity(self, strategy):
    return strategy.sensitivity(dpftrl.MinSep(self.num_rounds, max_participations=1))


@pytest.mark.parametrize(
  'values', [dict(), dict(num_rounds=5), dict(min_sep=8, max_participations=3), dict(first=4)]
)
def test_a_sensitivity_below_that_of_an_allowed_pattern_is_refused(values):
  """The least separation of 8 leaves one of 7 rounds: a device that comes to all shows more."""
  participation = Short(**{'num_rounds': 30, **values})
  with pytest.raises(ValueError, match="'short' has a sensitivity of .*, and a device that it all"):
    dpftrl.Claim(strategy=BLT, noise_multiplier=3.0, participation=participation)
  with pytest.raises(ValueError, match='correct its sensitivity'):
    dpftrl.account(BLT, participation, noise_multiplier=3.0, delta=1e-6)
  with pytest.raises(ValueError, match='correct its sensitivity'):
    dpftrl.PerUnit(participation).for_claim(BLT)


@dpftrl.register
class Free(Once):
  """A participation that turns nobody away, with the sensitivity of one round."""

  kind = 'free'

  def gate(self, strategy):
    return None

  def wrong(self, strategy, rounds, starts):
    return np.zeros(rounds.size, bool)


def test_without_a_gate_every_round_is_tried():
  with pytest.raises(ValueError, match="'free' has a sensitivity of .*, and a device that it all"):
    dpftrl.account(BLT, Free(30), noise_multiplier=3.0, delta=1e-6)


def test_a_declared_figure_below_the_observed_one_does_not_hold(tmp_path):
  """Nobody is in round 0 and again from round 9 on, so no short run shows the sensitivity."""
  claim = dpftrl.Claim(
    strategy=BLT, noise_multiplier=3.0, participation=Short(num_rounds=30, first=9)
  )
  path = tmp_path / 'participation.parquet'
  with dpftrl.LogWriter(path, claim) as log:
    for t in range(20):
      log.append(t, ['x'] if t > 8 else [], 86400)
  claim.save(tmp_path)
  statement = dpftrl.replay(tmp_path, delta=1e-6)
  assert statement.declared.guarantee.epsilon() < statement.observed.epsilon()
  assert statement.violations is None and not statement.declared.holds
  assert statement.headline.name == 'worst_case'
  assert statement.worst_case.epsilon() >= statement.observed.epsilon()
  assert 'the sensitivity of the participation is wrong' in statement.declared.reason
  page = privacy.report(statement, privacy.Setting())
  assert 'The log contradicts what was declared: all kept to it' in page
  assert 'The log contradicts what was declared.' in privacy.report(
    statement.publishable(), privacy.Setting()
  )
  evidence.write_evidence(tmp_path / 'evidence', dpftrl.open_run(tmp_path), delta=1e-6)
  verification = evidence.verify(tmp_path / 'evidence')
  assert verification.failed == ('guarantee',)
  assert 'sensitivity of the participation is wrong' in verification.checks[-1].found[0]


@dpftrl.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Anything(dpftrl.MinSep):
  """Allows what its bound does not cover."""

  kind = 'anything'

  def allows(self, rounds):
    return True


@dpftrl.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class FromThree(dpftrl.MinSep):
  kind = 'from_three'

  def allows(self, rounds):
    return super().allows(rounds) and min(rounds) >= 3


@pytest.mark.parametrize('participation, expected', [
  (Anything(num_rounds=6, min_sep=3, max_participations=2), [0, 3]),  # The bound rests on them.
  (FromThree(num_rounds=6), [3, 4, 5]),  # A first round is refused too.
])  # fmt: skip
def test_a_gate_keeps_bound_and_patterns(participation, expected):
  gate, taken = participation.gate(BLT), []
  for t in range(6):
    admitted = admission.admit(gate, ['x'])
    gate.record(admitted.device_ids)
    taken += [t] * len(admitted.column)
  assert taken == expected


def test_a_search_is_for_its_own_bound():
  participation = own_participation.AtMostInWindow(
    num_rounds=12, window=4, most=1, max_participations=3
  )
  strategy = dpftrl.optimize('banded', participation, num_bands=1)
  assert strategy.num_bands == 1
