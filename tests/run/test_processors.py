"""A run goes on, and its evidence verifies, on another kind of processor."""

import os
import subprocess
import sys

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import refusals
from fl_dpftrl.run import budget
from tests import made

SCHEMA = dpftrl.MinSep(num_rounds=24, min_sep=4, max_participations=5)
BLT = dpftrl.BLT([0.9, 0.5], [0.2, 0.1])
KERNELS = ('Haswell', 'Prescott', 'Nehalem')  # Others have the digits of one of these.


def opened(folder, strategy=BLT, **options):
  options = dict(noise_multiplier=3.0, participation=SCHEMA, delta=1e-6) | options
  return made.aggregator(folder, strategy, **options)


def one_round(aggregator):
  made.release(aggregator, aggregator.admissible(list('abcdefghij'), at_most=2))


@made.cases(
  'strategy, options, goes_on',
  (BLT, dict(noise_multiplier=3.0 * (1 + 1e-12)), True),
  (BLT, dict(noise_multiplier=3.0 * (1 - 1e-8)), False),
  (dpftrl.BLT([0.9, 0.5], [0.2000002, 0.1]), dict(noise_multiplier=3.000003), True),
  (dpftrl.BLT([0.9, 0.5], [0.2, 0.1001]), {}, False),
  (dpftrl.BLT([0.9], [0.2]), {}, False),
  (dpftrl.Identity(), {}, False),
)
def test_derived_numbers_are_those_of_the_folder(strategy, options, goes_on, tmp_path):
  with opened(tmp_path) as aggregator:
    one_round(aggregator)
    claim = aggregator.claim
  if not goes_on:
    with pytest.raises(refusals.LogError, match='another run'):
      opened(tmp_path, strategy, **options)
    return
  with opened(tmp_path, strategy, **options) as aggregator:
    one_round(aggregator)
    assert aggregator.claim == claim and aggregator.noise_multiplier == 3.0
    assert aggregator.strategy is not strategy or strategy is BLT
  assert dpftrl.replay(tmp_path, delta=1e-6).num_rounds == 2


def test_noise_that_is_found_has_digits_that_processors_agree_on():
  found = dpftrl.calibrate(BLT, SCHEMA, epsilon=3.0, delta=1e-6)
  assert 3.0 * (1 - 1e-8) < found.epsilon() <= 3.0
  assert found.noise_multiplier == float(f'{found.noise_multiplier:.10g}')


@pytest.mark.parametrize('change', [1 - 1e-12, 1 + 1e-12])
def test_a_budget_allows_the_rounds_that_it_allowed(change):
  """Also where ε of all of them is the budget, and another processor computes a digit more."""
  claim = made.claim(BLT, noise_multiplier=3.0, participation=SCHEMA)
  for num_rounds in (10, 24):
    epsilon = claim.guarantee(SCHEMA.within(num_rounds), 1e-6).epsilon() * change
    options = dict(delta=1e-6, max_epsilon=epsilon)
    limited = budget.limited(claim, recorded_rounds=num_rounds, **options)
    assert limited.participation.num_rounds == num_rounds
    assert budget.limited(claim, recorded_rounds=num_rounds - 5, **options) == budget.limited(
      claim, **options
    )


@pytest.mark.slow
def test_a_run_and_its_evidence_under_other_kernels(tmp_path):
  families = ('banded_toeplitz', 'lambda_cgd')
  script = f"""
import sys
import fl_dpftrl as dpftrl
from tests.run import test_processors as here
for name in {families}:
  strategy, folder = dpftrl.optimize(name, here.SCHEMA), f'{{sys.argv[1]}}/{{name}}'
  guarantee = dpftrl.calibrate(strategy, here.SCHEMA, epsilon=3.0, delta=1e-6, num_coordinates=3)
  derived = dict(noise_multiplier=None, max_epsilon=3.0)
  scripted = dict(noise_multiplier=guarantee.noise_multiplier)
  for options, at in ((derived, folder), (scripted, f'{{folder}}-scripted')):
    with here.opened(at, strategy, **options) as aggregator:
      here.one_round(aggregator)
  if len(sys.argv) > 2:
    dpftrl.write_evidence(f'{{folder}}-evidence', folder, delta=1e-6)
  assert dpftrl.verify(f'{{folder}}-evidence').passed
"""
  for number, kernel in enumerate(KERNELS):
    command = [sys.executable, '-c', script, str(tmp_path), *['first'] * (not number)]
    environment = {**os.environ, 'OPENBLAS_CORETYPE': kernel}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f'{kernel}: {done.stderr[-2000:]}'
