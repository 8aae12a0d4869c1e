"""A log records its noise, and replay compares the record with a run."""

import pytest

from fl_dpftrl.families import blt
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import noise_record, schema, shards
from fl_dpftrl.logs import writer as writer_lib
from fl_dpftrl.replaying import replay, runs
from fl_dpftrl.reports import privacy

BLT = blt.BLT([0.99, 0.7], [0.1, 0.3])


def metadata(changes=(), **kwargs):
  return noise_record.run_metadata(
    BLT, **({'noise_multiplier': 8.0, 'clip_norm': 1.0} | kwargs), changes=changes
  )


def write(path, num_rounds=6):
  writer = writer_lib.LogWriter(path, metadata=metadata())
  for t in range(num_rounds):
    if t == 2:
      writer.change_noise(2, noise_multiplier=8.0, clip_norm=0.5)
    if t == 4:
      writer.change_noise(4, noise_multiplier=2.0, clip_norm=0.25)
    writer.append(t, ['a', 'b'] if t % 2 else ['c'], 86400 + t)
  return writer


CHANGES = ((2, 8.0, 0.5), (4, 2.0, 0.25))


def test_every_change_is_in_the_file(tmp_path):
  path = tmp_path / 'log.parquet'
  write(path)
  record = noise_record.read(log_lib.read_log(path).metadata)
  assert record == (8.0, 1.0, CHANGES)
  assert record.multiplier_changes == ((4, 2.0),)
  assert record.clip_norm_changes == ((2, 0.5), (4, 0.25))
  assert writer_lib.LogWriter(path, metadata=metadata(CHANGES)).num_rounds == 6
  for other in (metadata(), metadata(CHANGES[:1]), metadata(clip_norm=0.01)):
    with pytest.raises(schema.LogError, match='its metadata are'):
      writer_lib.LogWriter(path, metadata=other)


def test_replay_needs_no_flags_for_changes(tmp_path):
  path = tmp_path / 'log.parquet'
  write(path)
  log = log_lib.read_log(path)
  told = replay.replay(runs.Run.of(log, BLT), deltas=1e-6)
  given = replay.replay(
    runs.Run.of(log, BLT, noise_multiplier=8.0, changes=((4, 2.0),)), deltas=1e-6
  )
  assert told == given
  assert told.void_reason is None
  (run,) = told.runs
  assert run.noise_multiplier == 8.0
  assert run.changes == ((4, 2.0),)
  assert run.clip_norm == 1.0
  assert run.clip_norm_changes == ((2, 0.5), (4, 0.25))
  assert any('clip norm changed' in line for line in told.assumptions)
  shown = privacy.report(told, privacy.Setting(run='r', noise_multiplier=8.0, command='c'))
  assert 'noise and updates changed alike' in shown


@pytest.mark.parametrize('changes', [(), ((3, 2.0),), ((4, 3.0),)])
def test_changes_that_the_file_does_not_have_void_the_guarantee(changes, tmp_path):
  path = tmp_path / 'log.parquet'
  write(path)
  run = runs.Run.of(log_lib.read_log(path), BLT, changes=changes)
  reason = replay.replay(run, deltas=1e-6).void_reason
  assert 'changed to 2 at round 4, not' in reason


def test_a_log_that_does_not_say_needs_the_multiplier(tmp_path):
  path = tmp_path / 'log.parquet'
  writer_lib.LogWriter(path).append(0, ['a'], 86400)
  with pytest.raises(ValueError, match='noise_multiplier is needed'):
    runs.Run.of(log_lib.read_log(path), BLT)


def test_changes_of_other_rounds_or_without_a_record_are_refused(tmp_path):
  writer = write(tmp_path / 'log.parquet')
  for t in (3, 4, 7):
    with pytest.raises(ValueError, match='round'):
      writer.change_noise(t, noise_multiplier=1.0, clip_norm=1.0)
  for values in ((-1.0, 1.0), (1.0, 0.0), (float('nan'), 1.0)):
    with pytest.raises(ValueError, match='changes must have'):
      writer.change_noise(6, noise_multiplier=values[0], clip_norm=values[1])
  plain = writer_lib.LogWriter(tmp_path / 'plain.parquet')
  with pytest.raises(ValueError, match='metadata lack the noise multiplier'):
    plain.change_noise(0, noise_multiplier=1.0, clip_norm=1.0)


@pytest.mark.parametrize('text', ['[', '3', '[[1, 2]]', '[["1", 2, 3]]', '[[0, 1, 1]]', '[' * 9999])
def test_malformed_records_are_refused(text):
  with pytest.raises(shards.LogError, match='noise_changes in the metadata'):
    noise_record.read({shards.NOISE_CHANGES_KEY: text})
