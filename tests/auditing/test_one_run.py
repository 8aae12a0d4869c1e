"""Canaries of one run: their updates, their scores, and the ε that they show."""

import dataclasses
import math

import numpy as np
import pytest

from fl_dpftrl import auditing
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.auditing import bounds
from fl_dpftrl.families import blt, identity, tree_online
from fl_dpftrl.logs import canaries as ids
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation import schemas

BLT = blt.BLT([0.99, 0.7], [0.1, 0.3])
SCHEMA = schemas.MinSep(num_rounds=12, min_sep=5)
DELTA = 1e-6


def canaries(num_canaries=60, size=600, clip_norm=0.5, seed=1, schema=SCHEMA):
  return auditing.Canaries(
    num_canaries=num_canaries, schema=schema, size=size, clip_norm=clip_norm, seed=seed
  )


def scores(which, strategy=BLT, noise_multiplier=1.0, seed=0, share=1.0, others=0.0):
  """Scores of a run whose sums hold canaries, noise, and updates of other devices."""
  n = which.schema.num_rounds
  generator = np.random.default_rng(seed)
  noising = strategy.noising_matrix(n)
  z = generator.standard_normal([noising.shape[1], which.size])
  noise = noise_multiplier * which.clip_norm * noising @ z
  noise += others / math.sqrt(which.size) * generator.standard_normal(noise.shape)
  return np.array([which.scores(t, share * which.total(t) + noise[t]) for t in range(n)])


def test_canaries_take_part_as_timers_allow():
  which = canaries(num_canaries=8)
  patterns = which.patterns()
  for number, pattern in enumerate(patterns):
    rounds = np.flatnonzero(pattern)
    assert rounds.tolist() == list(which.rounds_of(number))
    assert (np.diff(rounds) == 5).all() and rounds[0] == number % 5
  for t in range(12):
    assert which.present(t) == np.flatnonzero(patterns[:, t]).tolist()
    assert len(which.present(t)) <= which.most_in_a_round == 2
  once = canaries(schema=dataclasses.replace(SCHEMA, max_participations=1))
  assert (once.patterns().sum(axis=1) == 1).all()
  assert not once.present(7)


def test_updates_are_as_long_as_the_clip_norm_and_no_longer():
  for clip_norm in (0.1, 1.0, 3.7):
    which = canaries(size=977, clip_norm=clip_norm, num_canaries=8)
    alone = which.total(3)  # The canary 3 alone.
    assert which.present(3) == [3] and alone.dtype == np.float64
    norm = np.linalg.norm(alone)
    assert norm == pytest.approx(clip_norm, rel=1e-14)
    np.testing.assert_allclose(alone / norm, which.direction(3), rtol=1e-14)


def test_directions_follow_from_seed_and_number():
  first = canaries().direction(70)
  np.testing.assert_array_equal(first, canaries().direction(70))
  directions = np.array([canaries().direction(i) for i in range(120)])
  products = directions @ directions.T - np.eye(120)
  assert np.abs(products).max() < 6.0 / math.sqrt(600)  # All differ, and nearly are orthogonal.
  assert abs(first @ canaries(seed=2).direction(70)) < 6.0 / math.sqrt(600)
  # The bits do not depend on the release of NumPy.
  signs = (canaries().direction(0)[:16] > 0).astype(int).tolist()
  assert signs == [1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 0]


@pytest.mark.parametrize(
  'strategy', [BLT, identity.Identity(), tree_online.TreeOnline()], ids=lambda s: s.family
)
def test_scores_are_the_exposure_and_noise(strategy):
  which = canaries(num_canaries=200, size=2000)
  found = auditing.audit_run(
    which, scores(which, strategy, 0.5), strategy, noise_multiplier=0.5, delta=DELTA
  )
  if strategy is BLT:
    matrix = strategy.strategy_matrix(12)
    expected = np.linalg.norm(matrix @ which.patterns().T, axis=0)
    np.testing.assert_allclose(found.exposures, expected)
    account = gaussian.account(strategy, SCHEMA, noise_multiplier=0.5, delta=DELTA)
    assert found.exposure <= account.sensitivity * (1 + 1e-12)
    assert found.claimed_epsilon <= account.epsilon * (1 + 1e-9)
  assert found.deviation == pytest.approx(0.5, rel=0.15)  # Other canaries do not add to it.
  assert found.response == pytest.approx(1.0, abs=0.05)
  assert found.epsilon == pytest.approx(found.claimed_epsilon, rel=0.25)
  assert found.mu == pytest.approx(found.exposure * found.response / found.deviation)
  assert found.epsilon == bounds.gaussian_epsilon(found.mu, DELTA)


@pytest.mark.slow
def test_lower_bounds_hold_as_often_as_they_say():
  which = canaries(num_canaries=20)
  generator = np.random.default_rng(0)
  claimed, above, counted = None, 0, 0
  for _ in range(50):
    noise = BLT.noising_matrix(12) @ generator.standard_normal([12, 40])
    own = np.hstack([which.patterns().T, np.zeros([12, 20])])
    found = auditing.audit_run(
      which, own + noise, BLT, noise_multiplier=1.0, delta=DELTA, confidence=0.8
    )
    claimed = found.claimed_epsilon
    assert found.lower_bound_epsilon <= found.epsilon
    above += found.lower_bound_epsilon > claimed
    counted += found.counted_lower_bound_epsilon > claimed
  assert above <= 18 and counted <= 18  # 10 are allowed on average: 3 deviations more.


def test_too_little_noise_contradicts_the_proof():
  which = canaries(num_canaries=100, size=4000)
  claim = gaussian.account(BLT, SCHEMA, noise_multiplier=1.0, delta=DELTA).epsilon
  given = dict(noise_multiplier=1.0, delta=DELTA)
  sound = auditing.audit_run(which, scores(which), BLT, **given)
  assert not sound.contradicts(claim) and not sound.contradicts(None)
  broken = auditing.audit_run(which, scores(which, noise_multiplier=0.5), BLT, **given)
  assert broken.contradicts(claim)
  # Independent noise of the size of a row, where the rows should be correlated.
  rows = scores(which, identity.Identity(), noise_multiplier=0.9)
  assert auditing.audit_run(which, rows, BLT, **given).lower_bound_epsilon > 0.0


def test_absent_canaries_show_nothing():
  which = canaries(num_canaries=50)
  found = auditing.audit_run(
    which, scores(which, share=0.0), BLT, noise_multiplier=1.0, delta=DELTA
  )
  assert found.lower_bound_epsilon == found.counted_lower_bound_epsilon == 0.0
  assert found.epsilon < 0.2 * found.claimed_epsilon


def test_updates_of_others_weaken_the_attack():
  which = canaries(num_canaries=100)
  found = auditing.audit_run(
    which, scores(which, others=20.0), BLT, noise_multiplier=1.0, delta=DELTA
  )
  assert found.deviation > 1.5 and found.epsilon < found.claimed_epsilon


def test_rounds_without_a_release_are_left_out():
  which = canaries(num_canaries=200, size=2000)
  given = scores(which)
  burnt = given.copy()
  burnt[[2, 7]] = np.nan
  whole, less = (
    auditing.audit_run(which, s, BLT, noise_multiplier=1.0, delta=DELTA) for s in (given, burnt)
  )
  assert less.num_released == 10 and whole.num_released == 12
  noising = BLT.noising_matrix(12)[[t for t in range(12) if t not in (2, 7)]]
  kept = which.patterns()[:, [t for t in range(12) if t not in (2, 7)]].astype(float)
  information = np.linalg.inv(noising @ noising.T)
  np.testing.assert_allclose(
    less.exposures, np.sqrt(np.einsum('it,ts,is->i', kept, information, kept))
  )
  assert (less.exposures <= whole.exposures * (1 + 1e-12)).all()
  alone = which.patterns()[:, [2, 7]].sum(axis=1) == which.patterns().sum(axis=1)
  assert alone.any() and not less.exposures[alone].any() and less.exposures[~alone].all()
  burnt[:] = np.nan
  with pytest.raises(ValueError, match='for at least 8 canaries'):
    auditing.audit_run(which, burnt, BLT, noise_multiplier=1.0, delta=DELTA)


def test_the_json_has_each_canary():
  which = canaries(num_canaries=8)
  found = auditing.audit_run(which, scores(which), BLT, noise_multiplier=0.0, delta=DELTA)
  stated = found.to_json()
  assert stated['claimed_epsilon'] is None
  assert 'no guarantee' in stated['meaning']
  assert [c['device_id'] for c in stated['canaries']] == [ids.device_id(i) for i in range(8)]
  assert stated['canaries'][6]['rounds'] == [1, 6, 11]
  assert stated['canaries'][2]['score'] == found.canary_scores[2]
  assert {k: stated[k] for k in found.figures()} == found.figures()


@pytest.mark.parametrize(
  'change, words',
  [
    (dict(num_canaries=7), 'num_canaries must be at least 8'),
    (dict(size=0), 'size must be at least 1'),
    (dict(clip_norm=0.0), 'clip_norm must be positive'),
    (dict(seed=-1), 'seed must be a whole number'),
  ],
)
def test_bad_canaries_are_named(change, words):
  with pytest.raises(ValueError, match=words):
    canaries(**change)


def test_bad_scores_are_named():
  which = canaries()
  with pytest.raises(ValueError, match=r'scores must have shape \(12, 120\)'):
    auditing.audit_run(which, np.zeros([12, 60]), BLT, noise_multiplier=1.0, delta=DELTA)
  with pytest.raises(ValueError, match='confidence must lie'):
    auditing.audit_run(which, scores(which), BLT, noise_multiplier=1.0, delta=DELTA, confidence=1.0)


def test_metadata_of_canaries():
  assert ids.metadata(0) == {} and ids.read({}) == 0
  assert ids.read(ids.metadata(40)) == 40
  for text in ('-1', '1e3', '', '12345678', '٣'):
    with pytest.raises(refusals.LogError, match='fl_dpftrl.canaries'):
      ids.read({ids.KEY: text})
  with pytest.raises(ValueError, match='reserved'):
    ids.check_ids(['a', ids.device_id(3)])
  assert ids.is_canary(ids.device_id(3)) and not ids.is_canary('canary') and not ids.is_canary(7)
