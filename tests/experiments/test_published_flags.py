"""Flags files of the papers' runs on StackOverflow: their participation, noise, ε and rates."""

import pathlib

import pytest

import fl_dpftrl as dpftrl
from experiments.stackoverflow import configuration, run

FLAGS = pathlib.Path('experiments/stackoverflow/flags')
# Table 4 of the BandMF paper at ε = 8: σ for sensitivity 1, clients a round, server learning rate.
PRINTED = {
  'banded': (0.65294, 1000, 1.0),
  'dense': (0.65293, 167, 0.5882),
  'identity': (0.65294, 1000, 0.1197),
  'multi_epoch': (0.73579, 1000, 1.0),
  'tree_full': (0.65294, 1000, 1.0),
}


def sensitivity(name, schema):
  """The sensitivity of the strategies, without a search: columns or patterns of norm 1."""
  if name in ('identity', 'banded'):
    return schema.participations**0.5
  if name == 'tree_full':
    return dpftrl.describe(dpftrl.TreeFull(2052), schema).sensitivity.value
  return 1.0


@pytest.mark.parametrize('name', PRINTED)
def test_a_published_run_has_the_printed_noise_and_rate(name):
  hparams = configuration.from_arguments([f'--flagfile={FLAGS}/published/{name}.flags'])
  sigma, clients, rate = PRINTED[name]
  schema = run.enforced(hparams)
  assert schema == dpftrl.MinSep(2052, 2052 if name == 'dense' else 342)
  assert schema.participations == (1 if name == 'dense' else 6)
  assert (hparams.mechanism, hparams.report_goal, hparams.clip_norm) == (name, 100, 1.0)
  assert (hparams.server_learning_rate, hparams.server_momentum) == (rate, 0.95)
  effective = hparams.noise_multiplier / sensitivity(name, schema)
  assert effective * clients / hparams.report_goal == pytest.approx(sigma, abs=5e-6)


def test_there_is_a_file_for_each_run_of_the_table():
  assert {path.stem for path in (FLAGS / 'published').glob('*.flags')} == set(PRINTED)


@pytest.mark.parametrize('sigma', [0.65294, 0.65293])
def test_the_printed_noise_has_epsilon_8(sigma):
  once = dpftrl.account('identity', dpftrl.MinSep(1), noise_multiplier=sigma, delta=1e-6)
  assert once.epsilon() == pytest.approx(8.0, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['banded', 'multi_epoch', 'dense'])
def test_sensitivities_of_small_runs_are_those_of_their_norms(name):
  kind = dpftrl.FixedSeparation if name == 'multi_epoch' else dpftrl.MinSep
  schema = kind(60, 60 if name == 'dense' else 10)
  found = dpftrl.describe(dpftrl.optimize(name, schema), schema).sensitivity.value
  assert found == pytest.approx(sensitivity(name, schema), rel=1e-9)
