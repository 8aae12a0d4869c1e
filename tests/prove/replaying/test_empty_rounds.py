"""Runs in whose rounds nobody took part."""

import json

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import replay_text
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.prove.replaying import opened_runs, replays
from fl_dpftrl.prove.reports import privacy
from tests.prove.replaying.in_memory import log_of

STRATEGY, ROUNDS = dpftrl.Identity(), 3
RARE = dict(num_examples=1000, batch_size=0.01)


def written(path, cohorts):
  claim = dpftrl.Claim(strategy=STRATEGY, noise_multiplier=2.0, clip_norm=1.0)
  with dpftrl.LogWriter(path, claim) as log:
    for t, cohort in enumerate(cohorts):
      log.append(t, cohort, 86400 + t)
  return path


def test_a_sampled_run_of_empty_batches_has_the_epsilon_of_its_scheme(tmp_path):
  scheme = sampling.CyclicPoisson(num_rounds=50, **RARE)
  with dpftrl.PrivateAggregator(
    STRATEGY,
    template=np.zeros(4, np.float32),
    noise_multiplier=2.0,
    clip_norm=1.0,
    report_goal=1,
    folder=tmp_path / 'run',
    participation=scheme,
    delta=1e-9,
  ) as aggregator:
    for t in range(ROUNDS):
      with aggregator.round([]):
        pass
      begun = sampling.CyclicPoisson(num_rounds=t + 1, **RARE)
      expected = accountant.account(STRATEGY, begun, noise_multiplier=2.0, delta=1e-9)
      assert aggregator.privacy_loss().epsilon() == expected.epsilon() > 0.0
    statement = aggregator.statement()
    aggregator.report(tmp_path / 'privacy.html')
  assert statement.drawn.holds and statement.drawn.guarantee.epsilon() == expected.epsilon()
  assert 'data-field="amplified.epsilon"' in (tmp_path / 'privacy.html').read_text()


@pytest.mark.parametrize('name', ['fixed_size', 'shuffled', 'shuffled_once'])
def test_batches_of_one_size_are_never_empty(name):
  scheme = sampling.BATCHES[name](num_rounds=ROUNDS, num_examples=100, batch_size=5)
  run = opened_runs.RecordedRun.of(
    log_of([], ROUNDS), STRATEGY, noise_multiplier=2.0, participation=scheme
  )
  drawn = replays.replay(run, delta=1e-6).drawn
  assert not drawn.holds and drawn.guarantee.void_reason


def test_a_log_of_empty_rounds_is_replayed(tmp_path):
  run = dpftrl.open_run(written(tmp_path / 'log.parquet', [[]] * ROUNDS), STRATEGY)
  statement = dpftrl.replay(run, delta=1e-6)
  assert (statement.num_rounds, statement.min_sep, statement.max_participations) == (3, 3, 1)
  # As if one took part once.
  assert statement.worst_case.epsilon() == pytest.approx(gaussian.epsilon(2.0, 1e-6))
  assert statement.observed is None and statement.per_device is None
  found = statement.to_json()
  assert json.loads(json.dumps(found, allow_nan=False)) == found
  assert (found['num_devices'], found['cohort_sizes']) == (0, None)
  assert 'observed' not in ' '.join(statement.assumptions)
  assert 'devices             0' in replay_text.text(statement)
  setting = privacy.Setting(run='empty', command='replay')
  for shown in (statement, statement.publishable()):
    assert 'data-field="worst_case.epsilon"' in privacy.report(shown, setting)
  dpftrl.write_evidence(tmp_path / 'evidence', run, delta=1e-6)
  assert dpftrl.verify(tmp_path / 'evidence').passed


@pytest.mark.parametrize('ids', [['a', 'b'], [1, 2]])
@pytest.mark.parametrize('empty_first', [False, True])
def test_a_run_of_empty_rounds_beside_another(tmp_path, ids, empty_first):
  paths = [written(tmp_path / 'a.parquet', [[]] * ROUNDS), written(tmp_path / 'b.parquet', [ids])]
  empty, full = (dpftrl.open_run(path, STRATEGY) for path in paths)
  both = dpftrl.replay([empty, full] if empty_first else [full, empty], delta=1e-6)
  alone = dpftrl.replay(full, delta=1e-6)
  assert both.observed == alone.observed and both.num_devices == 2
  assert both.worst_case.rho == pytest.approx(2 * alone.worst_case.rho)


def test_no_rows_where_the_log_does_not_say_of_how_many_rounds_are_refused(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text('round,device_id\n')
  run = dpftrl.open_run(path, STRATEGY, noise_multiplier=2.0, num_rounds=ROUNDS)
  with pytest.raises(refusals.LogError, match='no rows, and does not say itself how many rounds'):
    dpftrl.replay(run, delta=1e-6)
