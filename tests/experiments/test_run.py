"""The simulation that a run's flags describe, and what its summary says."""

import dataclasses

import pytest
from absl.testing import flagsaver

import fl_dpftrl as dpftrl
from experiments.stackoverflow import configuration, run, train
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import loss_budgets
from tests import made

ENDLESS = {
  'timer_rounds': 4,
  'max_participations': 3,
  'strategy': 'blt-b40-endless',
  'warmup_fraction': 0.0,
  'cooldown_fraction': 0.0,
}
HPARAMS = configuration.Hparams(noise_multiplier=1.0, report_goal=20, num_rounds=30)


def test_noise_is_calibrated_for_what_the_timers_enforce():
  found = identity.Identity()
  changes = dict(noise_multiplier=None, timer_rounds=10, delta=1e-5, epsilon=2.0)
  wanted = dataclasses.replace(HPARAMS, **changes)
  own = run.calibrated(wanted, found)
  schema = dpftrl.MinSep(num_rounds=30, min_sep=10, max_participations=3)
  stated = accountant.account(found, schema, noise_multiplier=own.noise_multiplier, delta=own.delta)
  assert 1.999 < stated.epsilon() <= 2.0
  assert run.calibrated(own, found) is own  # As on resuming: what was recorded stays.
  without_timers = dataclasses.replace(wanted, timer_rounds=None)
  most = run.calibrated(without_timers, found).noise_multiplier
  assert most == pytest.approx(own.noise_multiplier * 10**0.5)


@made.cases(
  'changes, words',
  ({'epsilon': 0.0}, '--epsilon=0.0 must be positive'),
  ({'epsilon': 1.0, 'timer_hours': 3.0}, '--timer_hours=3.0'),
  ({}, '--noise_multiplier is missing'),
  ({'max_epsilon': -1.0, 'noise_multiplier': 2.0}, '--max_epsilon=-1.0 must be positive'),
  ({'max_epsilon': 8.0, 'noise_multiplier': 2.0}, 'needs --timer_rounds'),
  ({'max_epsilon': 8.0, 'noise_multiplier': 0.0, 'timer_rounds': 4}, 'positive --noise_multiplier'),
  ({'noise_multiplier': 2.0, 'loss_budget': True}, '--loss_budget needs --max_participations'),
  ({'noise_multiplier': 2.0, 'max_participations': 3}, 'needs --timer_rounds, and a --strategy'),
  ({'noise_multiplier': 2.0, **ENDLESS, 'warmup_fraction': 0.1}, 'give --warmup_fraction=0'),
)
def test_a_target_or_a_budget_that_cannot_be_met_is_refused(changes, words):
  with pytest.raises(ValueError, match=words):
    dataclasses.replace(HPARAMS, **{'noise_multiplier': None, **changes})


@pytest.mark.parametrize('loss_budget', [False, True])
def test_a_run_without_an_end_has_its_participation_and_may_be_lengthened(tmp_path, loss_budget):
  own = dataclasses.replace(HPARAMS, **ENDLESS, loss_budget=loss_budget)
  described = run.scenario(own, 200)
  expected = dpftrl.MinSep(None, 4, 3)
  if loss_budget:
    expected = loss_budgets.LossBudget(max_participations=3, min_sep=4)
  assert described.declared_schema(30) == run.enforced(own) == expected
  own.record(tmp_path)
  longer = dataclasses.replace(own, num_rounds=50)
  with flagsaver.as_parsed(resume='true'):
    assert train._check_folder(tmp_path, longer) == longer
    with pytest.raises(ValueError, match='--num_rounds=20 differs from the run'):
      train._check_folder(tmp_path, dataclasses.replace(own, num_rounds=20))
    ends = dataclasses.replace(HPARAMS, timer_rounds=4)
    ends.record(tmp_path)
    with pytest.raises(ValueError, match='--num_rounds=50 differs from the run'):
      train._check_folder(tmp_path, dataclasses.replace(ends, num_rounds=50))
