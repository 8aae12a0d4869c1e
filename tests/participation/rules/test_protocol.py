"""A participation with answers of its own, in one class, works from account to replay."""

import dataclasses

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.participation import promised
from fl_dpftrl.participation.counts import seen
from fl_dpftrl.prove.replaying import evidence
from fl_dpftrl.run import guards

BLT = dpftrl.BLT([0.9, 0.5], [0.2, 0.1])


class Gate:
  def __init__(self):
    self.clear()

  def clear(self):
    self.seen = seen.Seen()

  def reasons(self, device_ids):
    return np.where(self.seen.of(device_ids)[1] > 0, 'once', '')

  def sentence(self, reason, last_round, participations):
    return f'took part in round {last_round}, and once is all'

  def record(self, device_ids):
    self.seen.add(device_ids)


@dpftrl.register
@dataclasses.dataclass(frozen=True)
class Once(promised.Promised):
  """At most one round of a device."""

  kind = 'once'
  num_rounds: int

  @property
  def num_rows(self):
    return self.num_rounds

  @property
  def schema(self):
    return dpftrl.MinSep(self.num_rounds, max_participations=1)

  gated = schema
  assumption = 'every device takes part once'

  def within(self, num_rounds):
    return Once(num_rounds)

  def worst_case(self, strategy):
    return sensitivities.sensitivity(strategy, self.schema)

  def gate(self, strategy):
    return Gate()

  def wrong(self, strategy, rounds, starts):
    return np.arange(rounds.size) > starts

  def contradictions(self, happened, recorded, violators):
    return [f'{violators} devices came back'] if violators else []

  def summary(self):
    return {'once': True, 'num_rounds': self.num_rounds}


def test_it_is_accounted_as_its_sensitivity():
  own, plain = Once(10), dpftrl.MinSep(10, max_participations=1)
  options = dict(noise_multiplier=3.0, delta=1e-6)
  assert dpftrl.account(BLT, own, **options).to_json() == (
    dpftrl.account(BLT, plain, **options).to_json()
  )
  assert dpftrl.calibrate(BLT, own, epsilon=1.0, delta=1e-6).noise_multiplier == (
    dpftrl.calibrate(BLT, plain, epsilon=1.0, delta=1e-6).noise_multiplier
  )


@dpftrl.register
@dataclasses.dataclass(frozen=True)
class Dearer(Once):
  """Whose guarantee is more than that of its sensitivity."""

  kind = 'dearer'

  def within(self, num_rounds):
    return Dearer(num_rounds)

  def guarantee(self, *arguments):
    found = super().guarantee(*arguments)
    return dataclasses.replace(found, sensitivity=3.0 * found.sensitivity)


def test_its_own_guarantee_is_that_of_guards_and_statements(tmp_path):
  epsilon = dpftrl.account(BLT, Dearer(6), noise_multiplier=3.0, delta=1e-6).epsilon()
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=3.0, participation=Dearer(6))
  assert claim.guarantee(Dearer(6), 1e-6).epsilon() == epsilon
  with guards.Guard(claim, 1e-6, 0.999 * epsilon, log=tmp_path / 'less.parquet') as guard:
    assert guard.max_rounds == 5
  with guards.Guard(claim, 1e-6, epsilon, log=tmp_path / 'participation.parquet') as guard:
    guard.admit(['a'])
    assert guard.max_rounds == 6
  claim.save(tmp_path)
  assert dpftrl.replay(tmp_path, delta=1e-6).declared.guarantee.epsilon() == epsilon


@pytest.mark.parametrize('comes_back', [False, True])
def test_a_guard_keeps_it_and_replay_shows_it(tmp_path, comes_back):
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=3.0, participation=Once(6))
  with guards.Guard(claim, 1e-6, max_epsilon=9.0, log=tmp_path / 'participation.parquet') as guard:
    admitted = [guard.admit(['a', 'b'][: 1 + t]) for t in range(2)]
    assert [a.device_ids.tolist() for a in admitted] == [['a'], ['b']]
    assert admitted[1].turned_away[0].sentence.endswith('took part in round 0, and once is all')
    if comes_back:
      guard.log.append(2, ['a'], 0)
  claim.save(tmp_path)
  statement = dpftrl.replay(dpftrl.open_run(tmp_path), delta=1e-6)
  assert statement.declared.holds is not comes_back
  assert statement.to_json()['declared']['once'] is True
  assert 'declared: every device takes part once' in statement.assumptions
  assert (statement.headline is statement.declared) is not comes_back
  evidence.write_evidence(tmp_path / 'evidence', dpftrl.open_run(tmp_path), delta=1e-6)
  failed = evidence.verify(tmp_path / 'evidence').failed
  assert failed == (('guarantee',) if comes_back else ())


@pytest.mark.parametrize(
  'participation',
  [Once(6), dpftrl.SecretBins(6, 2), dpftrl.PerUnit(dpftrl.MinSep(6)), [Once(6)], 6],
)
def test_strategies_are_optimised_for_what_has_a_schema_and_else_refused(participation):
  with pytest.raises(ValueError, match='schema must be a MinSep or a list of them, got'):
    dpftrl.optimize('identity', participation)
  with pytest.raises(ValueError, match='horizons=.* are for a run without an end'):
    dpftrl.optimize('blt', participation, horizons=(2, 6))
