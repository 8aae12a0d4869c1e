"""The rule of an adaptive clip norm, and the noise that it takes."""

import math
import re

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import adaptive_clipping
from fl_dpftrl.logs import claim_json, ledgers, participation_log
from fl_dpftrl.prove.replaying import opened_runs, replays
from tests import made

STRATEGY = made.BLT
SCHEMA = dpftrl.MinSep(num_rounds=20, min_sep=5)


@pytest.mark.parametrize('name, value', [
  ('initial', 0.0), ('initial', 1e-13), ('initial', float('inf')), ('initial', True),
  ('target_quantile', 0.0), ('target_quantile', 1.0), ('learning_rate', 0.0),
  ('learning_rate', '1'), ('rounds', -1), ('rounds', 1.5), ('rounds', True),
  ('clipped_count_stddev', 0.0), ('clipped_count_stddev', float('nan')),
])  # fmt: skip
def test_refused_arguments_are_named(name, value):
  with pytest.raises(ValueError, match=rf'^{name} must be .* got {re.escape(repr(value))}'):
    dpftrl.AdaptiveClipping(**{'initial': 1.0, name: value})


@pytest.mark.parametrize('noise_multiplier', [1e-3, 0.7, 7.379, 300.0])
@pytest.mark.parametrize('report_goal', [1, 40, 6500])
@pytest.mark.parametrize('stddev', [None, 1.0001, 30.0])
def test_updates_and_counts_share_the_noise_multiplier(noise_multiplier, report_goal, stddev):
  stddev = stddev and stddev * noise_multiplier
  rule = dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=stddev)
  of_counts = rule.count_stddev(noise_multiplier, report_goal)
  of_updates = rule.update_noise_multiplier(noise_multiplier, report_goal)
  together = 1.0 / math.hypot(1.0 / of_updates, 1.0 / of_counts)
  assert together == pytest.approx(noise_multiplier, rel=1e-9)
  if stddev is None:
    assert of_updates <= 1.0207 * noise_multiplier
    assert of_counts >= 0.05 * report_goal


def test_counts_with_too_little_noise_are_refused():
  rule = dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=2.0)
  with pytest.raises(ValueError, match=r'clipped_count_stddev=2.0 must be above .*=2.0'):
    rule.update_noise_multiplier(2.0, 100)
  assert rule.count_stddev(0.0, 100) == rule.update_noise_multiplier(0.0, 100) == 0.0


def test_the_rule_is_still_where_the_quantile_is():
  rule = dpftrl.AdaptiveClipping(1.0, target_quantile=0.8, learning_rate=0.5)
  assert rule.log_factor(0.2) == pytest.approx(0.0, abs=1e-12)
  assert rule.log_factor(1.0) == pytest.approx(0.4) and rule.log_factor(0.0) < 0.0


RULE = dpftrl.AdaptiveClipping(0.25, target_quantile=0.75, rounds=7, clipped_count_stddev=30.0)
CLAIM = dpftrl.Claim(strategy=STRATEGY, noise_multiplier=8.0, clip_norm=RULE, participation=SCHEMA)


@pytest.fixture(name='log')
def fixture_log(tmp_path):
  path = tmp_path / 'log.parquet'
  with ledgers.LogWriter(path, CLAIM) as writer:
    for t in range(6):
      writer.append(t, ['a', 'b'] if t % 2 else ['c'], 86400 + t)
  return participation_log.read_log(path)


def test_the_log_holds_the_rule_and_replay_says_what_epsilon_covers(log):
  assert claim_json.read(log.metadata) == CLAIM.to_json()
  stated = replays.replay(opened_runs.RecordedRun.of(log, STRATEGY), delta=1e-6)
  assert stated.void_reason is None
  (sentence,) = [s for s in stated.assumptions if 'clip norm was adaptive' in s]
  assert 'noise multiplier is that of updates and of the counts' in sentence
  found = stated.to_json()['adaptive_clipping']
  assert adaptive_clipping.AdaptiveClipping(**found) == RULE
  own_noise = RULE.update_noise_multiplier(8.0, 100)
  without = replays.replay(
    opened_runs.RecordedRun.of(log, STRATEGY, noise_multiplier=own_noise), delta=1e-6
  )
  assert stated.worst_case.epsilon() > without.worst_case.epsilon()
  assert 'is of a run with the noise_multiplier 8.0, not' in without.void_reason


@pytest.mark.parametrize('share', [1e4, -1e4, 1e300, -1e300])
def test_noise_of_any_size_leaves_the_clip_norm_within_its_limits(share):
  rule = adaptive_clipping.AdaptiveClipping(0.5)
  low, high = rule.limits
  assert rule.following(0.5, 0, 10.0 * share, 10) == (high if share > 0 else low)
