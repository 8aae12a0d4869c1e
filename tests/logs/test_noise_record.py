"""A log records its noise, and replay compares the record with a run."""

import hypothesis
import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.accounting import run_noise
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import noise_record, refusals
from fl_dpftrl.replaying import runs
from fl_dpftrl.reports import privacy
from tests import drawn

BLT = dpftrl.BLT([0.99, 0.7], [0.1, 0.3])


def write(path, num_rounds=6):
  writer = dpftrl.LogWriter(path, metadata=noise_record.run_metadata(BLT, 8.0, clip_norm=1.0))
  for t in range(num_rounds):
    if t == 2:
      writer.change_noise(2, noise_multiplier=8.0, clip_norm=0.5)
    if t == 4:
      writer.change_noise(4, noise_multiplier=2.0, clip_norm=0.25)
    writer.append(t, ['a', 'b'] if t % 2 else ['c'], 86400 + t)
  return writer


@hypothesis.given(drawn.histories())
def test_metadata_state_every_history(history):
  noise = run_noise.RunNoise.of(**history)
  found = noise_record.metadata(noise)
  told = noise_record.read(found, noise.strategy).until(noise.num_rounds)
  assert noise_record.metadata(told) == found
  assert told.settings() == noise.settings()
  assert (told.restarts, told.later_strategies) == (noise.restarts, noise.later_strategies)


def test_replay_needs_no_flags_for_changes(tmp_path):
  path = tmp_path / 'log.parquet'
  write(path)
  log = log_lib.read_log(path)
  told = dpftrl.replay(runs.Run.of(log, BLT), deltas=1e-6)
  given = dpftrl.replay(
    runs.Run.of(log, BLT, noise_multiplier=8.0, changes=((4, 2.0),)), deltas=1e-6
  )
  assert told == given
  assert told.void_reason is None
  (run,) = told.runs
  assert run.noise.noise_multiplier == 8.0
  assert run.noise.changes == ((4, 2.0),)
  assert run.noise.clip_norm == 1.0
  assert run.noise.clip_norm_changes == ((2, 0.5), (4, 0.25))
  assert any('clip norm changed' in line for line in told.assumptions)
  shown = privacy.report(told, privacy.Setting(run='r', noise_multiplier=8.0, command='c'))
  assert 'noise and updates changed alike' in shown


TREE = dpftrl.TreeOnline()


def write_restarted(path, num_rounds=9):
  """Tree aggregation, from round 4 on a BLT of less noise, from round 7 on that BLT anew."""
  writer = dpftrl.LogWriter(path, metadata=noise_record.run_metadata(TREE, 8.0, clip_norm=1.0))
  for t in range(num_rounds):
    if t == 4:
      writer.change_noise(4, strategy=BLT, noise_multiplier=5.0, restart=True)
    if t == 7:
      writer.change_noise(7, restart=True)
    writer.append(t, ['a', 'b'] if t % 2 else ['c'], 86400 + t)
  return writer


def test_replay_needs_no_flags_for_restarts_and_other_strategies(tmp_path):
  path = tmp_path / 'log.parquet'
  write_restarted(path).close()
  run = runs.Run.of(log_lib.read_log(path), TREE)
  told = dpftrl.replay(run, deltas=1e-6)
  assert told.void_reason is None
  (facts,) = told.runs
  assert facts.noise.restarts == (4, 7)
  assert facts.to_json()['later_strategies'][0]['family'] == 'blt'
  assert any('restarts are as the metadata of the log state' in line for line in told.assumptions)
  shown = privacy.report(told, privacy.Setting(run='r', noise_multiplier=8.0, command='c'))
  assert 'blt from round' in shown
  # The same rounds as three runs of three logs: ρ adds up, device by device.
  rounds, of_parts = log_lib.read_log(path), []
  for first, end, strategy, multiplier in ((0, 4, TREE, 8.0), (4, 7, BLT, 5.0), (7, 9, BLT, 5.0)):
    part = tmp_path / f'{first}.parquet'
    devices = [(t, d) for t in range(first, end) for d in (['a', 'b'] if t % 2 else ['c'])]
    dpftrl.write_log(
      part,
      rounds=[t - first for t, _ in devices],
      device_ids=[d for _, d in devices],
      num_rounds=end - first,
    )
    of_parts.append(runs.Run.of(log_lib.read_log(part), strategy, noise_multiplier=multiplier))
  apart = dpftrl.replay(of_parts, deltas=1e-6)
  assert rounds.num_rounds == apart.num_rounds
  assert told.observed.rho == pytest.approx(apart.observed.rho, rel=1e-12)
  assert told.worst_case.rho >= apart.worst_case.rho * (1 - 1e-12)


def test_a_change_whose_round_did_not_come_is_not_replayed(tmp_path):
  path = tmp_path / 'log.parquet'
  write_restarted(path, num_rounds=4).change_noise(4, strategy=BLT, restart=True)
  run = runs.Run.of(log_lib.read_log(path), TREE)
  assert run.noise.restarts == ()
  assert dpftrl.replay(run, deltas=1e-6).void_reason is None


def test_a_log_that_restarted_is_continued_with_its_record_alone(tmp_path):
  path = tmp_path / 'log.parquet'
  write_restarted(path).close()
  given = dict(changes=((4, 5.0, 1.0),), restarts=((4, BLT), (7, None)))
  own = noise_record.run_metadata(TREE, 8.0, clip_norm=1.0, **given)
  writer = dpftrl.LogWriter(path, metadata=own)
  assert writer.num_rounds == 9
  assert writer.declared(4)[:3] == (4, 0, True)
  with pytest.raises(ValueError, match='no change of the noise at round 5'):
    writer.declared(5)
  for missing in ('changes', 'restarts'):
    other = {name: value for name, value in given.items() if name != missing}
    with pytest.raises(refusals.LogError, match='its metadata are'):
      dpftrl.LogWriter(path, metadata=noise_record.run_metadata(TREE, 8.0, clip_norm=1.0, **other))


def test_a_strategy_that_metadata_cannot_hold_is_refused(tmp_path):
  writer = write_restarted(tmp_path / 'log.parquet', num_rounds=3)
  with pytest.raises(ValueError, match='too large for the metadata'):
    writer.change_noise(3, strategy=dpftrl.Dense(np.eye(3)), restart=True)
  assert writer.num_rounds == 3


def test_a_log_that_does_not_say_needs_the_multiplier(tmp_path):
  path = tmp_path / 'log.parquet'
  dpftrl.LogWriter(path).append(0, ['a'], 86400)
  with pytest.raises(ValueError, match='noise_multiplier is needed'):
    runs.Run.of(log_lib.read_log(path), BLT)


def test_changes_of_other_rounds_or_without_a_record_are_refused(tmp_path):
  writer = write(tmp_path / 'log.parquet')
  for t in (3, 4, 7):
    with pytest.raises(ValueError, match='round_index must be 6, or one less'):
      writer.change_noise(t, noise_multiplier=1.0, clip_norm=1.0)
  for values in ((-1.0, 1.0), (1.0, 0.0), (float('nan'), 1.0)):
    with pytest.raises(ValueError, match='(noise_multiplier|clip_norm) must be'):
      writer.change_noise(6, noise_multiplier=values[0], clip_norm=values[1])
  plain = dpftrl.LogWriter(tmp_path / 'plain.parquet')
  with pytest.raises(ValueError, match='metadata lack the noise multiplier'):
    plain.change_noise(0, noise_multiplier=1.0, clip_norm=1.0)
