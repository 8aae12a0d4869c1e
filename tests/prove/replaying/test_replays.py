import json
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import replay_text
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import banded, blt, identity
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.prove.replaying import opened_runs, replays
from tests import made
from tests.prove.replaying.in_memory import log_of

BLT = blt.BLT([0.99, 0.7], [0.1, 0.3])


def ones(num_rounds):
  return banded.Banded(np.ones((num_rounds, 1)))


def replayed(log, strategy, *, noise_multiplier, declared=None, **kwargs):
  run = opened_runs.RecordedRun.of(
    log, strategy, noise_multiplier=noise_multiplier, participation=declared
  )
  return replays.replay(run, **kwargs)


LOG = log_of([(0, 'a'), (4, 'a'), (9, 'a'), (1, 'b'), (6, 'b'), (3, 'c')], 12)
ARGUMENTS = {'noise_multiplier': 3.0, 'delta': 1e-6}


def test_figures_by_hand():
  # Three rounds of independent noise for one device: sensitivity √3.
  result = replayed(LOG, identity.Identity(), **ARGUMENTS)
  for part in (result.worst_case, result.observed):
    assert part.sensitivity == pytest.approx(math.sqrt(3))
    assert part.sensitivity_kind == 'exact'
    assert part.rho == pytest.approx(1 / 6)
    assert part.epsilon() == pytest.approx(gaussian.epsilon(3 / math.sqrt(3), 1e-6), rel=1e-14)
  assert result.num_rounds == 12
  assert result.num_devices == 3
  assert result.num_participations == 6
  assert (result.min_sep, result.max_participations) == (4, 3)
  assert result.counts[0].separations.to_dict() == {4: 1, 5: 2}
  assert result.counts[0].participations.to_dict() == {1: 1, 2: 1, 3: 1}
  assert result.counts[0].witness == ('a', 0, 4)
  assert (result.delta, result.adjacency) == (1e-6, 'zero_out')
  found = result.to_json()
  assert json.loads(json.dumps(found, allow_nan=False)) == found
  assert found['witness'] == {'device_id': 'a', 'first_round': 0, 'second_round': 4}


def test_worst_case_is_the_account_of_the_observed_schema():
  result = replayed(LOG, BLT, **ARGUMENTS)
  schema = dpftrl.MinSep(num_rounds=12, min_sep=4, max_participations=3)
  account = accountant.account(BLT, schema, noise_multiplier=3.0, delta=1e-6)
  assert result.worst_case.to_json() == {
    'sensitivity': account.sensitivity,
    'sensitivity_kind': account.sensitivity_kind,
    'effective_noise_multiplier': account.effective_noise_multiplier,
    'rho': account.rho,
    'mu': 1.0 / account.effective_noise_multiplier,
    'epsilon': account.epsilon(),
  }
  assert result.observed.sensitivity < account.sensitivity
  assert result.observed.epsilon() < account.epsilon()


@pytest.mark.parametrize(
  'min_sep, max_participations, holds',
  [(4, 3, True), (1, None, True), (5, 3, False), (4, 2, False), (6, 1, False)],
)
def test_declared(min_sep, max_participations, holds):
  declared = dpftrl.MinSep(num_rounds=12, min_sep=min_sep, max_participations=max_participations)
  result = replayed(LOG, BLT, **ARGUMENTS, declared=declared)
  assert result.declared.holds is holds
  assert result.worst_case == replayed(LOG, BLT, **ARGUMENTS).worst_case
  assert result.declared.participation.min_sep == min_sep
  assert result.declared.guarantee.sensitivity == pytest.approx(
    sensitivities.sensitivity(BLT, declared).value
  )
  loud = [s for s in result.assumptions if 'DOES NOT HOLD' in s]
  assert bool(loud) is not holds
  if holds:
    assert result.declared.guarantee.epsilon() >= result.worst_case.epsilon() - 1e-12


def test_a_declared_separation_that_nothing_tested_holds():
  once, declared = log_of([(0, 'a'), (1, 'b')], 3), dpftrl.MinSep(num_rounds=3, min_sep=400)
  statement = replayed(once, BLT, **ARGUMENTS, declared=declared)
  assert statement.declared.holds is True
  with pytest.raises(ValueError, match='must be at least the 3 rounds of the log'):
    replayed(once, BLT, **ARGUMENTS, declared=dpftrl.MinSep(num_rounds=2))


@made.cases(
  'declared, message',
  (dpftrl.MinSep(num_rounds=11), 'declared_num_rounds=11 must be at least the 12 rounds of'),
  (dpftrl.MinSep(num_rounds=14), 'declared_num_rounds=14: num_rounds=14 is beyond the 13'),
  (dpftrl.FixedSeparation(num_rounds=12), 'FixedSeparation'),
)
def test_declared_is_a_min_sep_of_rounds_that_the_run_could_have(declared, message):
  with pytest.raises(ValueError, match=message):
    replayed(LOG, ones(13), **ARGUMENTS, declared=declared)


def test_whatever_may_have_followed_releases_is_among_the_assumptions():
  planned = dpftrl.MinSep(num_rounds=20)
  run = opened_runs.RecordedRun.of(LOG, BLT, noise_multiplier=3.0, participation=planned)
  told = ' '.join(replays.replay(run, delta=1e-6).assumptions)
  for words in (
    'worst case and observed assume that neither participation nor the end of the run depended',
    'declared: these limits, the number of rounds too, were fixed before the first round',
    'all 20 declared rounds: it holds whatever decided who took part and the end of the run',
  ):
    assert words in told
  plain = opened_runs.RecordedRun.of(LOG, BLT, noise_multiplier=3.0)
  told = ' '.join(replays.replay([plain, plain], delta=1e-6).assumptions)
  assert 'which runs there were, and their strategies, noise and schemas, did not depend' in told
  assert 'declared' not in told


def test_declared_is_given_for_each_run_or_for_none():
  run = opened_runs.RecordedRun.of(LOG, BLT, noise_multiplier=3.0)
  other = opened_runs.RecordedRun.of(
    LOG, BLT, noise_multiplier=3.0, participation=dpftrl.MinSep(num_rounds=12)
  )
  with pytest.raises(ValueError, match='declared must be given for each run, or for none'):
    replays.replay([run, other], delta=1e-6)


@made.cases(
  'change, message',
  (dict(adjacency='add_or_remove'), 'add_or_remove is refused'),
  (dict(adjacency='other'), "one of zero_out, replace_one, got 'other'"),
  (dict(group_size=0), 'group_size'),
  (dict(group_size=1.5), 'group_size'),
  (dict(group_size=True), 'group_size'),
  (dict(delta=0.0), 'delta'),
  (dict(delta=[1e-6, 1.0]), 'delta'),
  (dict(delta=[]), 'deltas'),
  (dict(noise_multiplier=-1.0), 'noise_multiplier'),
  (dict(noise_multiplier=math.nan), 'noise_multiplier'),
  (dict(strategy=ones(11)), '^log: num_rounds=12 is beyond the 11'),
)
def test_refuses(change, message):
  with pytest.raises(ValueError, match=message) as raised:
    replayed(LOG, **{'strategy': BLT, **ARGUMENTS, **change})
  assert '\n' not in str(raised.value)


def test_the_min_sep_of_several_runs_is_that_of_the_pair_beside_it():
  """Run 1 has fewer rounds than the closest pair of run 2 is apart, and no device twice."""
  short = log_of([(0, 'a'), (1, 'b')], num_rounds=3)
  long = log_of([(2, 'c'), (9, 'c')], num_rounds=12)
  run = lambda log: opened_runs.RecordedRun.of(log, BLT, noise_multiplier=3.0)
  once = replays.replay([run(long), run(short)], delta=1e-6)
  assert once.min_sep == 3 and once.to_json()['witness'] is None
  assert 'min-sep b           3  (no device took part twice in run 2)' in replay_text.text(once)
  far = log_of([(0, 'a'), (5, 'a')], num_rounds=6)
  both = replays.replay([run(long), run(far)], delta=1e-6)
  expected = {'device_id': 'a', 'first_round': 0, 'second_round': 5, 'run': 2}
  assert both.min_sep == 5 and both.to_json()['witness'] == expected
  assert "b           5  (device 'a', rounds 0 and 5 of run 2)" in replay_text.text(both)


def test_replace_one_is_zero_out_with_half_the_noise():
  replaced = replayed(LOG, BLT, noise_multiplier=6.0, delta=1e-6, adjacency='replace_one')
  zeroed = replayed(LOG, BLT, **ARGUMENTS)
  for loss, other in zip(
    (replaced.worst_case, replaced.observed), (zeroed.worst_case, zeroed.observed)
  ):
    assert loss.epsilon() == other.epsilon()
    assert loss.sensitivity == 2 * other.sensitivity
  assert replaced.adjacency == 'replace_one'
  assert any('sensitivity is doubled' in s for s in replaced.assumptions)


def test_groups_multiply_the_sensitivity():
  group = replayed(LOG, BLT, noise_multiplier=9.0, delta=1e-6, group_size=3)
  single = replayed(LOG, BLT, **ARGUMENTS)
  assert group.worst_case.epsilon() == pytest.approx(single.worst_case.epsilon())
  for part in group.parts:
    assert part.guarantee.sensitivity_kind == 'upper_bound'
  assert any('groups of 3 devices' in s for s in group.assumptions)
