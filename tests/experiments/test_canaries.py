"""Canaries of a training run: flags, and a run that is killed."""

import dataclasses
import json
import signal

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from experiments.stackoverflow import configuration, training
from fl_dpftrl.aggregators import canaries
from fl_dpftrl.logs import canaries as ids
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import schemas
from tests.experiments import starts

pytestmark = pytest.mark.tff

HPARAMS = configuration.Hparams(noise_multiplier=1.0, report_goal=6, num_rounds=12, canaries=8)
SCHEMA = schemas.MinSep(num_rounds=12, min_sep=4)


def with_canaries(schema=SCHEMA, clients=('a', 'b'), **changes):
  factory = dpftrl.CorrelatedNoiseFactory(
    dpftrl.Identity(), noise_multiplier=1.0, clip_norm=1.0, report_goal=6
  )
  return training.with_canaries(
    factory, dataclasses.replace(HPARAMS, **changes), schema=schema, size=50, clients=clients
  )


def test_a_run_has_none_by_default():
  assert configuration.Hparams(noise_multiplier=1, report_goal=1, num_rounds=1).canaries is None
  assert not isinstance(with_canaries(canaries=None), canaries.CanaryFactory)
  assert with_canaries().channel.canaries.num_canaries == 8


@pytest.mark.parametrize(
  'kwargs, words',
  [
    (dict(canaries=7), '--canaries=7 must be at least 8'),
    (dict(canaries=13), 'at most 12 are possible with --report_goal=6 and a min-sep of 4'),
    (dict(clip_quantile=0.5), 'leave --clip_quantile out'),
    (dict(clients=[ids.device_id(0)]), 'reserved'),
    (dict(schema=schemas.MinSep(num_rounds=10_001, min_sep=4)), 'at most 10000 rounds'),
  ],
)
def test_flags_that_do_not_fit_are_refused(kwargs, words):
  with pytest.raises(ValueError, match=words):
    with_canaries(**kwargs)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(tmp_path):
  flags = [
    '--dataset=synthetic',
    '--mechanism=blt',
    '--noise_multiplier=1',
    '--noise_seed=11',
    '--report_goal=4',
    '--num_rounds=8',
    '--timer_rounds=4',
    '--rounds_per_evaluation=8',
    '--canaries=8',
  ]
  folders = [tmp_path / 'whole', tmp_path / 'killed']
  killed = starts.Start(*flags, f'--output_dir={folders[1]}', '--resume', kill_at=('stored', 2))
  assert killed.wait() == -signal.SIGKILL, killed.err
  for folder in folders:
    ended = starts.Start(*flags, f'--output_dir={folder}', '--resume')
    assert ended.wait() == 0, ended.err
    assert 'empirical, from canaries' in ended.out
  for name in ('audit.json', 'canaries.npy', 'participation.parquet'):
    assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
  audit = json.loads((folders[0] / 'audit.json').read_text())
  assert audit['num_released'] == 8 and len(audit['canaries']) == 8
  # Each canary's update is there: 1 within 4 standard deviations of its estimate.
  exposures = np.array([c['exposure'] for c in audit['canaries']])
  assert abs(audit['response'] - 1.0) < 4.0 * audit['deviation'] / np.linalg.norm(exposures)
  log = log_lib.read_log(folders[0] / 'participation.parquet')
  stated = json.loads((folders[0] / 'privacy.json').read_text())
  assert stated['canaries'] == ids.read(log.metadata) == 8
  assert any('canaries of an audit' in sentence for sentence in stated['assumptions'])
  summary = json.loads((folders[0] / 'summary.json').read_text())
  assert summary['audit']['epsilon'] == audit['epsilon']
  assert summary['audit']['proven_epsilon'] is None  # The noise seed was given.
  assert 'Empirical ε, from canaries' in (folders[0] / 'privacy.html').read_text()
