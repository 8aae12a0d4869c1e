"""A log records its noise, and replay takes it from there."""

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.accounting import arithmetic
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import noise_record, refusals
from fl_dpftrl.replaying import runs

BLT = dpftrl.BLT([0.99, 0.7], [0.1, 0.3])
COVERED = arithmetic.Arithmetic.covered(7)


@pytest.mark.parametrize('clip_norm', [None, 0.5, dpftrl.AdaptiveClipping(0.5)])
@pytest.mark.parametrize('numbers', [arithmetic.Arithmetic(), COVERED])
def test_metadata_are_read_as_they_were_written(clip_norm, numbers):
  stored = noise_record.run_metadata(BLT, 8.0, clip_norm=clip_norm, arithmetic=numbers)
  expected = (8.0, None if clip_norm is None else 0.5, numbers)
  assert noise_record.read(stored) == expected
  assert noise_record.stated(stored) == noise_record.STATED
  rule = noise_record.read_clipping(stored)
  assert rule == (clip_norm if isinstance(clip_norm, dpftrl.AdaptiveClipping) else None)
  assert noise_record.read({}) == (None, None, arithmetic.Arithmetic())


def test_other_noise_is_another_run(tmp_path):
  path = tmp_path / 'log.parquet'
  with dpftrl.LogWriter(path, metadata=noise_record.run_metadata(BLT, 8.0)) as log:
    log.append(0, ['a'], 86400)
  assert dpftrl.replay(runs.Run.of(log_lib.read_log(path), BLT), deltas=1e-6).void_reason is None
  with pytest.raises(refusals.LogError, match='noise_multiplier 8.0, not 4.0'):
    dpftrl.LogWriter(path, metadata=noise_record.run_metadata(BLT, 4.0))


def test_a_log_that_does_not_say_needs_the_multiplier(tmp_path):
  path = tmp_path / 'log.parquet'
  dpftrl.LogWriter(path).append(0, ['a'], 86400)
  with pytest.raises(ValueError, match='noise_multiplier is needed'):
    runs.Run.of(log_lib.read_log(path), BLT)
