"""What a log records of its noise, and whatever contradicts it, which is void."""

import dataclasses

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import layouts
from fl_dpftrl.prove.replaying import opened_runs, replays, statement_parts
from fl_dpftrl.run import guards
from tests import made
from tests.prove.replaying.in_memory import log_of

BLT = dpftrl.BLT([0.99, 0.7], [0.3, 0.3])
TREE = dpftrl.TreeOnline()
NUM_ROUNDS = 12
# Device a takes part in every third round, b in two of them.
ROWS = [(t, 'a') for t in range(0, NUM_ROUNDS, 3)] + [(1, 'b'), (7, 'b')]


def log_with(metadata, num_rounds=NUM_ROUNDS):
  """A log in memory that records something of its noise."""
  log = log_of(ROWS, num_rounds)
  return dataclasses.replace(log, shards=(dataclasses.replace(log.shards[0], metadata=metadata),))


def claim(**stated):
  return dpftrl.Claim(strategy=BLT, noise_multiplier=2.0, **stated)


def recorded(**stated):
  return claim(**stated).to_metadata()


def test_a_log_of_another_run_guarantees_nothing():
  log = log_with(recorded(clip_norm=1.0))
  run = opened_runs.RecordedRun.of(log, BLT, noise_multiplier=2.0)
  assert replays.replay(run, delta=1e-6).void_reason is None
  stated = replays.replay(opened_runs.RecordedRun.of(log, TREE, noise_multiplier=5.0), delta=1e-6)
  for words in ('noise_multiplier 2.0, not 5.0', 'strategy {"family": "blt"'):
    assert words in stated.void_reason
  assert any('THE GUARANTEE IS VOID' in line for line in stated.assumptions)


def test_a_log_that_records_nothing_leaves_all_to_whoever_replays():
  stated = replays.replay(
    opened_runs.RecordedRun.of(log_with({}), BLT, noise_multiplier=2.0), delta=1e-6
  )
  assert stated.void_reason is None
  assert any('whoever replays' in s and 'noise multiplier' in s for s in stated.assumptions)
  own = replays.replay(opened_runs.RecordedRun.of(log_with(recorded()), BLT), delta=1e-6)
  assert not any('whoever replays' in s for s in own.assumptions)


def test_rounds_of_a_recorded_run_are_not_counted_from_elsewhere():
  log = dataclasses.replace(log_with(recorded()), layout=layouts.PLAIN._replace(first_round=2))
  assert (
    'counted from 2' in replays.replay(opened_runs.RecordedRun.of(log, BLT), delta=1e-6).void_reason
  )


@pytest.mark.parametrize('n', [NUM_ROUNDS, 40])
def test_a_declared_schema_that_allows_less_than_the_recorded_one_is_void(n):
  planned = dpftrl.MinSep(num_rounds=n, min_sep=2, max_participations=5)
  log = log_with(recorded(participation=planned))
  for rounds, min_sep, most, void in (
    (n, 2, 5, False),
    (n, 1, 5, False),
    (n, 2, 6, False),
    (n + 3, 2, 5, False),
    (n, 3, 5, True),
    (n, 2, 4, True),
    *([(n - 1, 2, 5, True)] if n > NUM_ROUNDS else []),
  ):
    declared = dpftrl.MinSep(num_rounds=rounds, min_sep=min_sep, max_participations=most)
    stated = replays.replay(
      opened_runs.RecordedRun.of(log, BLT, participation=declared), delta=1e-6
    )
    assert (stated.void_reason is not None) == void
    if void:
      assert 'at least 2 apart' in stated.void_reason
    else:
      own = replays.replay(opened_runs.RecordedRun.of(log, BLT), delta=1e-6)
      assert stated.declared.guarantee.epsilon() >= own.declared.guarantee.epsilon()


@pytest.fixture(name='guarded')
def fixture_guarded(tmp_path):
  """The log of a guard that was told no clip norm."""
  planned = dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=2)
  path = tmp_path / 'log.parquet'
  with guards.Guard(claim(participation=planned), delta=1e-6, log=path) as guard:
    for t in range(NUM_ROUNDS):
      guard.admit(['a', 'b'] if t % 2 else ['c'], row=t, timestamp=86400)
  dpftrl.save_strategy(tmp_path / 'blt.json', BLT, schema=planned)
  return tmp_path


def test_evidence_of_a_guard_s_log_with_other_noise_fails_at_its_claim(guarded):
  run = dpftrl.open_run(guarded / 'log.parquet', BLT, noise_multiplier=9.0)
  dpftrl.write_evidence(guarded / 'evidence', run, delta=1e-6)
  assert dpftrl.verify(guarded / 'evidence').failed == (
    *('claim', 'statement', 'certificate', 'proof', 'guarantee'),
  )


def test_a_schema_in_place_of_a_recorded_loss_budget_is_void():
  log = log_with(recorded(participation=dpftrl.LossBudget(max_participations=9, min_sep=1)))
  declared = dpftrl.MinSep(NUM_ROUNDS)
  stated = replays.replay(opened_runs.RecordedRun.of(log, BLT, participation=declared), delta=1e-6)
  assert 'only while its loss' in stated.void_reason


def test_a_schema_in_place_of_recorded_draws_is_void():
  log = log_with(recorded(participation=dpftrl.SecretBins(NUM_ROUNDS, 2)))
  declared = dpftrl.MinSep(NUM_ROUNDS)
  stated = replays.replay(opened_runs.RecordedRun.of(log, BLT, participation=declared), delta=1e-6)
  assert 'participation was drawn, and it was said to keep to a schema' in stated.void_reason


def test_a_declared_figure_below_what_a_device_lost_does_not_hold(path, monkeypatch):
  """Device a takes part as often as it may, so that its loss is the whole of the schema's."""
  made.log(path, ['a', '', 'a', ''])
  declared = dict(noise_multiplier=2.0, declared_num_rounds=4, declared_min_sep=2)
  run = opened_runs.open_run(path, 'identity', **declared)
  assert replays.replay(run, delta=1e-6).declared.holds
  worst_case = dpftrl.MinSep.worst_case

  def too_small(schema, strategy):
    exact = worst_case(schema, strategy)
    return exact._replace(value=0.7 * exact.value)

  monkeypatch.setattr(dpftrl.MinSep, 'worst_case', too_small)
  stated = replays.replay(run, delta=1e-6).declared
  assert not stated.holds and stated.reason == statement_parts.TOO_SMALL
