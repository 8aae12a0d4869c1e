"""The simulation that a run's flags describe, and what its summary says."""

import dataclasses
import types

import pytest

from experiments.stackoverflow import configuration, report, run
from fl_dpftrl import accounting
from fl_dpftrl.accounting import arithmetic
from fl_dpftrl.families import identity
from fl_dpftrl.participation import schemas
from fl_dpftrl.simulation import availability, server

HPARAMS = configuration.Hparams(noise_multiplier=1.0, report_goal=20, num_rounds=30)


def simulation(**changes):
  return run.scenario(dataclasses.replace(HPARAMS, **changes), num_clients=400).simulation()


def test_flags_reach_the_simulation():
  found = simulation(
    availability='nightly',
    population=300,
    clients_per_round=26,
    timer_hours=24.0,
    report_minutes=5.0,
    seed=7,
  )
  assert found.population.availability == availability.Nightly()
  assert (found.population.num_devices, found.population.report_minutes) == (300, 5.0)
  assert (found.server.clients_per_round, found.timer) == (26, server.HourTimer(24.0))
  assert found.seed == found.population.seed == 7


def test_every_flag_is_a_hyperparameter_with_its_help():
  for field in dataclasses.fields(configuration.Hparams):
    flag = configuration.flags.FLAGS[field.name]
    assert flag.default == field.default
    assert flag.help.endswith(field.metadata['help'])


def test_noise_is_calibrated_for_what_the_timers_enforce():
  found = identity.Identity()
  changes = dict(noise_multiplier=None, timer_rounds=10, delta=1e-5, epsilon=2.0)
  wanted = dataclasses.replace(HPARAMS, **changes)
  own = run.calibrated(wanted, found)
  schema = schemas.MinSep(num_rounds=30, min_sep=10, max_participations=3)
  stated = accounting.account(found, schema, noise_multiplier=own.noise_multiplier, delta=own.delta)
  assert 1.999 < stated.epsilon() <= 2.0
  assert run.calibrated(own, found) is own  # As on resuming: what was recorded stays.
  without_timers = dataclasses.replace(wanted, timer_rounds=None)
  most = run.calibrated(without_timers, found).noise_multiplier
  assert most == pytest.approx(own.noise_multiplier * 10**0.5)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'epsilon': 0.0}, '--epsilon=0.0 must be positive'),
    ({'epsilon': 1.0, 'timer_hours': 3.0}, '--timer_hours=3.0'),
    ({}, '--noise_multiplier is missing'),
    ({'max_epsilon': -1.0, 'noise_multiplier': 2.0}, '--max_epsilon=-1.0 must be positive'),
    ({'max_epsilon': 8.0, 'noise_multiplier': 2.0}, 'needs --timer_rounds'),
    (
      {'max_epsilon': 8.0, 'noise_multiplier': 0.0, 'timer_rounds': 4},
      'positive --noise_multiplier',
    ),
  ],
)
def test_a_target_or_a_budget_that_cannot_be_met_is_refused(changes, words):
  with pytest.raises(ValueError, match=words):
    dataclasses.replace(HPARAMS, **{'noise_multiplier': None, **changes})


def test_one_flag_says_how_much_noise_there_is():
  arguments = ['--report_goal=5', '--num_rounds=3', '--epsilon=1']
  assert configuration.from_arguments(arguments).epsilon == 1.0
  with pytest.raises(ValueError, match='--noise_multiplier=1.0 and --epsilon=1.0'):
    configuration.from_arguments([*arguments, '--noise_multiplier=1'])
  with pytest.raises(ValueError, match='not a flag'):
    configuration.from_arguments([*arguments, 'more'])
  with pytest.raises(ValueError, match='num_round'):
    configuration.from_arguments([*arguments, '--num_round=3'])


def test_too_little_noise_for_a_guarantee_is_said():
  setting = types.SimpleNamespace(void_reason=None)
  outcome = types.SimpleNamespace(
    trained=types.SimpleNamespace(setting=setting), hparams=types.SimpleNamespace(delta=1e-6)
  )
  worst = accounting.Guarantee(
    sensitivity=2.9,
    sensitivity_kind='exact',
    noise_multiplier=0.05,
    deltas=(1e-6,),
    rounding=arithmetic.Rounding(chance=1e-290),
  )
  said = 'none: there is too little noise for any ε at δ = 1e-06'
  assert report._guarantee(outcome, worst) == said
