"""What a log records of its noise, and whatever contradicts it, which is void."""

import dataclasses
import itertools
import json

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.accounting import run_noise
from fl_dpftrl.logs import keys, layout, noise_record
from fl_dpftrl.replaying import replay, runs
from fl_dpftrl.replaying import void as void_lib
from tests.replaying.in_memory import log_of

BLT = dpftrl.BLT([0.99, 0.7], [0.3, 0.3])
TREE = dpftrl.TreeOnline()
NUM_ROUNDS = 12
# Device a takes part in every third round, b in two of them.
ROWS = [(t, 'a') for t in range(0, NUM_ROUNDS, 3)] + [(1, 'b'), (7, 'b')]


def log_with(metadata, num_rounds=NUM_ROUNDS):
  """A log in memory that records something of its noise."""
  log = log_of(ROWS, num_rounds)
  return dataclasses.replace(log, shards=(dataclasses.replace(log.shards[0], metadata=metadata),))


def recorded(keys, **noise):
  """The metadata of a run, and of these those that are named."""
  full = noise_record.run_metadata(BLT, 2.0, **noise)
  return {name: full[name] for name in keys if name in full}


ALL = (
  keys.NOISE_MULTIPLIER_KEY,
  keys.STRATEGY_KEY,
  keys.CLIP_NORM_KEY,
  keys.NOISE_CHANGES_KEY,
  keys.NOISE_RESTARTS_KEY,
)


@pytest.mark.parametrize('keys', [ALL, ALL[:2], ALL[:1], ALL[1:2]])
def test_a_log_that_records_its_noise_says_that_it_never_changed(keys):
  log = log_with(recorded(keys, clip_norm=1.0 if keys is ALL else None))
  given = dict(noise_multiplier=2.0)
  honest = replay.replay(runs.Run.of(log, BLT, **given), deltas=1e-6)
  assert honest.void_reason is None
  for wrong, reason in (
    (dict(restarts=tuple(range(1, NUM_ROUNDS))), 'never restarted'),
    (dict(changes=((1, 1000.0),)), 'never changed'),
  ):
    stated = replay.replay(runs.Run.of(log, BLT, **given, **wrong), deltas=1e-6)
    assert stated.observed.epsilon < honest.observed.epsilon
    assert reason in stated.void_reason


def test_a_log_of_another_run_guarantees_nothing():
  run = runs.Run.of(log_with(recorded(ALL)), TREE, noise_multiplier=5.0)
  stated = replay.replay(run, deltas=1e-6)
  assert 'noise multiplier 2.0, not 5.0' in stated.void_reason
  assert 'another strategy' in stated.void_reason
  assert any('THE GUARANTEE IS VOID' in line for line in stated.assumptions)


def test_a_log_that_records_nothing_leaves_all_to_whoever_replays():
  run = runs.Run.of(log_with({}), BLT, noise_multiplier=2.0, changes=((5, 3.0),), restarts=(4,))
  stated = replay.replay(run, deltas=1e-6)
  assert stated.void_reason is None
  assert any('whoever replays' in s and 'noise multiplier' in s for s in stated.assumptions)
  own = replay.replay(runs.Run.of(log_with(recorded(ALL)), BLT), deltas=1e-6)
  assert not any('whoever replays' in s for s in own.assumptions)


TRUE = [
  dict(),
  dict(clip_norm=1.0),
  dict(restarts=((6, None),)),
  dict(clip_norm=1.0, restarts=((3, None), (6, TREE))),
  dict(clip_norm=1.0, changes=((4, 1.0, 1.0), (8, 4.0, 0.5))),
  dict(clip_norm=1.0, changes=((5, 2.0, 0.5),)),
  dict(clip_norm=1.0, changes=((6, 0.5, 1.0),), restarts=((6, None),)),
]


@pytest.mark.slow
@pytest.mark.parametrize('true', TRUE)
def test_no_epsilon_that_holds_is_below_that_of_the_recorded_run(true):
  """Every combination of what a user may state, against the history that the log records."""
  log = log_with(noise_record.run_metadata(BLT, 2.0, **true))
  told = replay.replay(runs.Run.of(log, BLT), deltas=1e-6)
  assert told.void_reason is None
  held = 0
  for multiplier, changes, restarts, strategy in itertools.product(
    (None, 2.0, 1.9, 2.1, 1000.0),
    (None, (), ((4, 1.0), (8, 4.0)), ((4, 2.0),), ((6, 0.5),), ((1, 1000.0),)),
    (None, (), (6,), (3, 6), tuple(range(1, NUM_ROUNDS))),
    (BLT, dpftrl.BLT([0.99, 0.7], [0.1, 0.1]), dpftrl.Identity()),
  ):
    run = runs.Run.of(
      log, strategy, noise_multiplier=multiplier, changes=changes, restarts=restarts
    )
    if void_lib.reason([run]) is None:  # Replay says so in words, which other tests compare.
      held += 1
      stated = replay.replay(run, deltas=1e-6)
      for part, own in zip(stated.parts(), told.parts(), strict=True):
        assert part.loss.epsilon >= own.loss.epsilon, (multiplier, changes, restarts)
  assert held


@pytest.mark.parametrize(
  'wrong, told',
  [
    (dict(changes=()), 'changed to 1 at round 4, to 4 at round 8, and it was said that it never'),
    (dict(changes=((4, 1.0), (8, 5.0))), 'and it was said that it changed to 1 at round 4, to 5'),
    (dict(restarts=()), 'restarted at round 3, 6, and it was said that it never restarted'),
    (dict(restarts=(3,)), 'and it was said that it restarted at round 3'),
    (dict(restarts=(3, 6, 9)), 'and it was said that it restarted at round 3, 6, 9'),
  ],
)
def test_a_history_that_the_log_does_not_record_is_void(wrong, told):
  true = dict(clip_norm=1.0, changes=((4, 1.0, 1.0), (8, 4.0, 0.5)), restarts=((3, None), (6, BLT)))
  log = log_with(noise_record.run_metadata(TREE, 2.0, **true))
  run = runs.Run.of(log, TREE)
  assert void_lib.reason([run]) is None
  assert told in void_lib.reason([runs.Run.of(log, TREE, **wrong)])
  for later in (None, dpftrl.Identity()):
    restarts = [(3, None), (6, later)]
    noise = run_noise.RunNoise.of(
      NUM_ROUNDS, TREE, 2.0, changes=run.noise.changes, restarts=restarts
    )
    assert 'another strategy' in void_lib.reason([dataclasses.replace(run, noise=noise)])


def test_noise_of_other_rounds_than_those_of_the_log_is_refused():
  run = runs.Run.of(log_with({}), BLT, noise_multiplier=2.0)
  noise = run.noise.until(NUM_ROUNDS - 3)
  with pytest.raises(ValueError, match='noise is of 9 rounds, but the log has 12'):
    dataclasses.replace(run, noise=noise)


def test_rounds_of_a_recorded_run_are_not_counted_from_elsewhere():
  """Rounds 5 and 7 would lie before and after a restart at round 4, if counted from 2."""
  metadata = noise_record.run_metadata(BLT, 2.0, restarts=((4, None),))
  log = dataclasses.replace(log_with(metadata), layout=layout.Layout(first_round=2))
  assert 'counted from 2' in replay.replay(runs.Run.of(log, BLT), deltas=1e-6).void_reason


@pytest.mark.parametrize('n', [NUM_ROUNDS, 40])
def test_a_declared_schema_that_allows_less_than_the_recorded_one_is_void(n):
  planned = dpftrl.MinSep(num_rounds=n, min_sep=2, max_participations=5)
  log = log_with(recorded(ALL) | keys.of_schema(planned))
  for min_sep, most, void in (
    (2, 5, False),
    (1, 5, False),
    (2, 6, False),
    (3, 5, True),
    (2, 4, True),
  ):
    declared = dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=min_sep, max_participations=most)
    stated = replay.replay(runs.Run.of(log, BLT, declared_schema=declared), deltas=1e-6)
    assert (stated.void_reason is not None) == void
    if void:
      assert 'at least 2 apart' in stated.void_reason
    else:
      own = replay.replay(runs.Run.of(log, BLT), deltas=1e-6)
      assert stated.declared.loss.epsilon >= own.declared.loss.epsilon


@pytest.fixture(name='guarded')
def fixture_guarded(tmp_path):
  """The log of a guard that was told no clip norm."""
  planned = dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=2)
  path = tmp_path / 'log.parquet'
  with dpftrl.Guard(BLT, 2.0, planned, delta=1e-6, log=path) as guard:
    for t in range(NUM_ROUNDS):
      guard.admit(['a', 'b'] if t % 2 else ['c'], row=t, timestamp=86400)
  dpftrl.save_strategy(tmp_path / 'blt.json', BLT, schema=planned)
  return tmp_path


@pytest.mark.parametrize(
  'wrong', [dict(restarts=tuple(range(1, NUM_ROUNDS))), dict(changes=((1, 1000.0),))]
)
def test_bundles_of_a_guard_s_log_fail_their_guarantee(guarded, wrong):
  run = dpftrl.open_run(guarded / 'log.parquet', BLT, **wrong)
  dpftrl.write_bundle(guarded / 'bundle', run, deltas=1e-6)
  dpftrl.write_public_bundle(guarded / 'public', guarded / 'bundle')
  for name in ('bundle', 'public'):
    failed = [c.name for c in dpftrl.verify(guarded / name).checks if not c.passed]
    assert failed == ['guarantee']


def test_a_runs_file_that_contradicts_one_of_its_logs_is_void(guarded):
  entry = {'log': 'log.parquet', 'strategy': 'blt.json'}
  path = guarded / 'runs.json'
  path.write_text(json.dumps({'runs': [entry, entry | {'restarts': [3]}]}))
  reason = replay.replay(runs.read(path), deltas=1e-6).void_reason
  assert reason.startswith('run 2: ') and 'never restarted' in reason
  path.write_text(json.dumps({'runs': [entry, entry | {'changes': [[3, 9.0]]}]}))
  assert 'never changed' in replay.replay(runs.read(path), deltas=1e-6).void_reason
