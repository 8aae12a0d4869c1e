"""Canaries of a training run: flags, cohorts, scores on disk, and a run that is killed."""

import dataclasses
import json
import signal

import numpy as np
import pytest

from experiments.stackoverflow import canaries, configuration
from fl_dpftrl import participation
from fl_dpftrl.learning import canaried, checkpoints
from fl_dpftrl.logs import canaries as ids
from fl_dpftrl.logs import log as log_lib
from tests.experiments import starts

pytestmark = pytest.mark.tff

HPARAMS = configuration.Hparams(noise_multiplier=1.0, report_goal=6, num_rounds=12, canaries=8)
SCHEMA = participation.MinSep(num_rounds=12, min_sep=4)


def of_run(schema=SCHEMA, clients=('a', 'b'), **changes):
  return canaries.of_run(
    dataclasses.replace(HPARAMS, **changes), schema=schema, size=50, clients=clients
  )


def test_a_run_has_none_by_default():
  assert configuration.Hparams(noise_multiplier=1, report_goal=1, num_rounds=1).canaries is None
  assert of_run(canaries=None) is None


@pytest.mark.parametrize(
  'kwargs, words',
  [
    (dict(canaries=7), '--canaries=7 must be at least 8'),
    (dict(canaries=13), 'at most 12 are possible with --report_goal=6 and a min-sep of 4'),
    (dict(clip_quantile=0.5), 'leave --clip_quantile out'),
    (dict(clients=[ids.device_id(0)]), 'reserved'),
    (dict(schema=participation.MinSep(num_rounds=10_001, min_sep=4)), 'at most 10000 rounds'),
  ],
)
def test_flags_that_do_not_fit_are_refused(kwargs, words):
  with pytest.raises(ValueError, match=words):
    of_run(**kwargs)


def test_canaries_take_places_of_the_cohort():
  given = [
    participation.Cohort(t, np.array([f'd{t}{i}' for i in range(6)]), 0.0, 1.0) for t in range(12)
  ]
  left_out = set()
  for before, cohort in zip(given, of_run().join(iter(given)), strict=True):
    own = [d for d in cohort.device_ids if ids.is_canary(d)]
    assert len(cohort.device_ids) == 6 and len(own) == 2
    assert len(set(cohort.device_ids[:4]) & set(before.device_ids)) == 4
    left_out.update(device[-1] for device in set(before.device_ids) - set(cohort.device_ids))
    assert own == [ids.device_id(cohort.round % 4), ids.device_id(cohort.round % 4 + 4)]
  assert len(left_out) > 3  # Not always the same devices.
  alone = given[0]._replace(device_ids=np.array(['d']))
  assert next(of_run().join(iter([alone]))).device_ids.tolist()[0] == 'd'


def checkpoint(num_rounds, burnt=()):
  scores = {canaried.name(i): float(num_rounds + i) for i in range(16)}
  measured = {} if num_rounds - 1 in burnt else {'loss': 0.5, **scores}
  return checkpoints.Checkpoint(
    num_rounds=num_rounds, state=None, measurements=measured, burnt=burnt
  )


def test_scores_are_kept_and_lost_ones_are_found_again(tmp_path):
  seen, began = [], []
  begin = lambda latest, earlier: began.append((latest, list(earlier)))

  def go_on(latest, earlier=()):
    run = of_run()
    run.begin(tmp_path, begin)(latest, iter(earlier))
    publish = run.publish(seen.append)
    publish(latest)
    return publish

  first = checkpoints.Checkpoint(num_rounds=0, state=None, measurements={})
  publish = go_on(first)
  for t in range(3):
    publish(checkpoint(t + 1))
  path = tmp_path / canaries.SCORES_NAME
  assert path.stat().st_mode & 0o777 == 0o600
  before = np.load(path)
  np.testing.assert_array_equal(before[:3], 1 + np.arange(16) + np.arange(3)[:, None])
  assert np.isnan(before[3:]).all()
  assert seen[-1].measurements == {'loss': 0.5}  # Tables have no column for each canary.
  # Round 2 is computed again, round 1 was burnt meanwhile.
  go_on(checkpoint(2, burnt=(1,)))
  assert np.isnan(np.load(path)[1:]).all() and np.isfinite(np.load(path)[0]).all()
  path.unlink()
  go_on(checkpoint(3), [checkpoint(2), checkpoint(1)])
  np.testing.assert_array_equal(np.load(path), before)
  assert [c.num_rounds for c in began[-1][1]] == [2, 1]
  np.save(path, np.zeros([3, 3]))
  with pytest.raises(ValueError, match='is not of this run'):
    go_on(checkpoint(3))


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
  for name in ('audit.json', canaries.SCORES_NAME, 'participation.parquet'):
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
