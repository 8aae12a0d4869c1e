"""Canaries of a run: their places in cohorts, and their scores on disk."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl import runtime
from fl_dpftrl.aggregators import canaries as channels
from fl_dpftrl.auditing import canaries as canaries_lib
from fl_dpftrl.logs import canaries as ids
from fl_dpftrl.participation import schemas
from fl_dpftrl.training import canaries, checkpoints
from fl_dpftrl.training import process as process_lib

pytestmark = pytest.mark.tff

CANARIES = canaries_lib.Canaries(
  num_canaries=8, schema=schemas.MinSep(num_rounds=12, min_sep=4), size=50, clip_norm=1.0, seed=0
)
AGGREGATOR = dpftrl.CorrelatedNoiseFactory(
  dpftrl.Identity(), noise_multiplier=1.0, clip_norm=1.0, report_goal=5
)


def test_the_scores_of_a_round_are_among_its_measurements():
  channel = channels.Channel(CANARIES)
  state = types.SimpleNamespace(
    aggregator=types.SimpleNamespace(noise=types.SimpleNamespace(row=4))
  )
  total = np.zeros(50, np.float32)

  class Process:
    get_model_weights = types.SimpleNamespace(
      type_signature=types.SimpleNamespace(result=types.SimpleNamespace(trainable=()))
    )

    def next(self, state, data):
      channel.observe(5.0, np.int64(4), total)
      return tff.learning.templates.LearningProcessOutput(state, {'train': {'loss': 1.0}})

  factory = channels.CanaryFactory.of(AGGREGATOR, channel)
  process = process_lib.RoundProcess(Process(), factory, runtime.InProcessContext())
  measured = process.next(state, []).metrics
  assert measured['train'] == {'loss': 1.0}
  assert list(measured['canaries'].values()) == CANARIES.scores(4, total).tolist()
  assert canaries.name(3) == 'canaries/3'


def test_canaries_must_fit_the_run():
  factory = channels.CanaryFactory.of(AGGREGATOR, channels.Channel(CANARIES))
  timers = lambda b: schemas.MinSep(num_rounds=12, min_sep=b)
  assert canaries.of_aggregator(AGGREGATOR, 12, None) is None
  for declared in (None, timers(1), timers(4)):
    assert canaries.of_aggregator(factory, 12, declared) is CANARIES
  with pytest.raises(ValueError, match='min_sep=4, which take part more often .* min_sep=5'):
    canaries.of_aggregator(factory, 12, timers(5))
  with pytest.raises(ValueError, match='canaries for 12 rounds, and the run has 13'):
    canaries.of_aggregator(factory, 13, None)
  other = channels.CanaryFactory.of(
    dataclasses.replace(AGGREGATOR, clip_norm=0.5), channels.Channel(CANARIES)
  )
  with pytest.raises(ValueError, match='clip_norm=0.5, and its canaries 1.0'):
    canaries.of_aggregator(other, 12, None)


def test_canaries_take_places_of_the_cohort():
  given = [schemas.Cohort(t, np.array([f'd{t}{i}' for i in range(6)]), 0.0, 1.0) for t in range(12)]
  left_out = set()
  for before, cohort in zip(given, canaries.join(CANARIES, iter(given)), strict=True):
    own = [d for d in cohort.device_ids if ids.is_canary(d)]
    assert len(cohort.device_ids) == 6 and len(own) == 2
    assert len(set(cohort.device_ids[:4]) & set(before.device_ids)) == 4
    left_out.update(device[-1] for device in set(before.device_ids) - set(cohort.device_ids))
    assert own == [ids.device_id(cohort.round % 4), ids.device_id(cohort.round % 4 + 4)]
  assert len(left_out) > 3  # Not always the same devices.
  alone = given[0]._replace(device_ids=np.array(['d']))
  assert next(canaries.join(CANARIES, iter([alone]))).device_ids.tolist()[0] == 'd'


def checkpoint(num_rounds, burnt=()):
  scores = {canaries.name(i): float(num_rounds + i) for i in range(16)}
  measured = {} if num_rounds - 1 in burnt else {'loss': 0.5, **scores}
  return checkpoints.Checkpoint(
    num_rounds=num_rounds, state=None, measurements=measured, burnt=burnt
  )


def test_canaries_have_no_data():
  data = canaries.devices_alone(lambda t, ids: [(t, one) for one in ids])
  assert data(3, ['a', ids.device_id(1), 'b']) == [(3, 'a'), (3, 'b')]


def test_scores_are_kept_and_lost_ones_are_found_again(tmp_path):
  run = types.SimpleNamespace(folder=tmp_path)

  def go_on(latest, earlier=()):
    scores = canaries.CanaryScores(CANARIES)
    scores.begin(run, latest, iter(earlier))
    scores.released(run, latest)
    return scores

  first = checkpoints.Checkpoint(num_rounds=0, state=None, measurements={})
  scores = go_on(first)
  for t in range(3):
    scores.released(run, checkpoint(t + 1))
  path = tmp_path / canaries.SCORES_NAME
  assert path.stat().st_mode & 0o777 == 0o600
  before = np.load(path)
  np.testing.assert_array_equal(before[:3], 1 + np.arange(16) + np.arange(3)[:, None])
  assert np.isnan(before[3:]).all()
  # Round 2 is computed again, round 1 was burnt meanwhile.
  go_on(checkpoint(2, burnt=(1,)))
  assert np.isnan(np.load(path)[1:]).all() and np.isfinite(np.load(path)[0]).all()
  path.unlink()
  go_on(checkpoint(3), [checkpoint(2), checkpoint(1)])
  np.testing.assert_array_equal(np.load(path), before)
  np.save(path, np.zeros([3, 3]))
  with pytest.raises(ValueError, match='is not of this run'):
    go_on(checkpoint(3))
