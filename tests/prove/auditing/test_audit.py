"""Audits in NumPy: sound noise passes, and each fault is found."""

import json
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.families import banded_toeplitz, blt, identity, lambda_cgd, tree_online
from fl_dpftrl.prove import auditing
from fl_dpftrl.prove.auditing import low_bits, subjects
from tests import made
from tests.prove.auditing import changed
from tests.prove.auditing.changed import DRAWS, MULTIPLIER, failed

SCHEMA = dpftrl.MinSep(num_rounds=16, min_sep=4, max_participations=3)
SIZES = subjects.tensor_sizes(DRAWS // 4)
STRATEGIES = {
  'identity': identity.Identity(),
  'tree_online': tree_online.TreeOnline(),
  'blt': blt.BLT((0.99, 0.8), (0.25, 0.3)),
  'banded': banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.3, 0.2], None),
  'lambda_cgd': lambda_cgd.LambdaCGD(0.8),
}


def checks(strategy, change=lambda rows: rows, sizes=SIZES, **options):
  return changed.checks(changed.Changed(strategy, sizes, change), strategy, **options)


@pytest.mark.parametrize('name', STRATEGIES)
def test_sound_noise_passes_60_of_60_audits(name):
  sizes = [(1000,), (997, 1), (600, 50, 7), (60,) + 10 * (3,)]
  first = 1000 + 12 * list(STRATEGIES).index(name)
  for seed in range(first, first + 12):
    subject = changed.Changed(STRATEGIES[name], sizes[seed % 4], seed=seed)
    assert not failed(changed.checks(subject, STRATEGIES[name])), seed


@pytest.mark.parametrize('rounds', [1, 2, 3])
def test_few_rounds(rounds):
  options = {'sizes': (3000, 2), 'num_rounds': rounds}
  assert not failed(checks(STRATEGIES['banded'], **options))
  assert 'coordinates_noised' in failed(
    checks(STRATEGIES['banded'], scaled([3001], 0.0), **options)
  )


def test_an_audit_tells_of_each_round():
  lines = []
  options = dict(noise_multiplier=2.0, delta=1e-6, num_draws=1000, seed=1)
  dpftrl.audit('identity', dpftrl.MinSep(2), **options, progress=lines.append)
  assert lines[:3] == ['run 1, round 0 of 2', 'run 1, round 1 of 2', 'tests of run 1']


class Floats(changed.Changed):
  """Noise rows and updates in float32, with a sum in float32."""

  def run(self, cohorts, num_rounds):
    released = changed.RowSubject.run(self, lambda t: [], num_rounds).astype(np.float32)
    for t in range(num_rounds):
      for update in cohorts(t):
        released[t] += update
    return released.astype(np.float64)


@pytest.mark.parametrize('seed', range(3))
def test_the_last_bits_of_float32_sums_show_a_device(seed):
  found = changed.checks(Floats(STRATEGIES['blt'], SIZES, seed=seed), STRATEGIES['blt'])
  assert failed(found) == {'low_bits'}
  assert found['low_bits'].statistic > 1.5 * found['low_bits'].highest


@pytest.mark.parametrize('grid', [2.0**-6, 2.0**-12])
def test_a_coarse_grid_of_the_noise_shows_a_device(grid):
  noise = np.random.default_rng(0).normal(size=(2, 40_000))
  present = np.rint(noise[0] / grid) * grid + np.linspace(0.0, 1e-3, 40_000)
  assert not low_bits.check(present, np.rint(noise[1] / grid) * grid, 1e-4).passed


@pytest.mark.parametrize('name', ['identity', 'blt'])
def test_too_little_noise_is_found(name):
  found = failed(checks(STRATEGIES[name], lambda rows: 0.9 * rows))
  assert {'noise_scale', 'noise_scale_of_rows', 'noise_scale_of_tensors'} <= found
  assert 'noise_shape' not in found


@pytest.mark.parametrize('name', ['blt', 'lambda_cgd'])
def test_rows_in_another_order_are_found(name):
  order = np.arange(16) ^ 1
  assert 'rows_uncorrelated' in failed(checks(STRATEGIES[name], lambda rows: rows[order]))


@pytest.mark.parametrize('name', ['identity', 'blt'])
def test_a_reused_row_is_found(name):
  order = np.where(np.arange(16) == 9, 4, np.arange(16))
  found = checks(STRATEGIES[name], lambda rows: rows[order])
  assert {'rows_distinct', 'rows_uncorrelated'} <= failed(found)
  assert found['rows_distinct'].where == 'round 4 and round 9'


def scaled(coordinates, factor):
  """Returns a change that multiplies the noise of some coordinates."""

  def change(rows):
    rows = rows.copy()
    rows[:, coordinates] *= factor
    return rows

  return change


@pytest.mark.parametrize('small', [1, 5, 50])
def test_a_second_tensor_without_noise_is_found_and_named(small):
  change = scaled(np.arange(5000, 5000 + small), 0.0)
  found = checks(STRATEGIES['banded'], change, sizes=(5000, small))
  assert {'coordinates_noised', 'noise_scale_of_tensors'} <= failed(found)
  many = f'{small} of {small} coordinate' + 's' * (small > 1)
  assert found['coordinates_noised'].where == f'tensor 1: {many}'
  assert found['noise_scale_of_tensors'].where == 'tensor 1'


def test_of_many_tensors_without_noise_the_first_are_named():
  change = scaled(np.arange(5000, 5006), 0.0)
  where = checks(STRATEGIES['banded'], change, sizes=(5000, *[1] * 6))['coordinates_noised'].where
  assert where.endswith('tensor 4: 1 of 1 coordinate, 2 more')


@pytest.mark.parametrize('factor', [0.1, 0.25, 3.0])
def test_another_scale_of_one_coordinate_is_found_and_named(factor):
  found = checks(STRATEGIES['banded'], scaled([4007], factor), sizes=(4000, 1000))
  assert failed(found) >= {'noise_scale_of_coordinates'} and 'noise_scale' not in failed(found)
  assert found['noise_scale_of_coordinates'].where == 'tensor 1, coordinate 7'


@pytest.mark.parametrize('factor', [2 / 3, 1.5])
def test_another_scale_of_a_tensor_is_found(factor):
  found = checks(STRATEGIES['banded'], scaled(np.arange(5000, 5050), factor), sizes=(5000, 50))
  assert 'noise_scale_of_tensors' in failed(found)
  assert found['noise_scale_of_tensors'].where == 'tensor 1'


@pytest.mark.parametrize('one, other', [(17, 400), (0, 549), (500, 501)])
def test_two_coordinates_with_one_noise_are_found(one, other):
  def change(rows):
    rows = rows.copy()
    rows[:, other] = rows[:, one]
    return rows

  found = checks(STRATEGIES['blt'], change, sizes=(500, 50))
  assert failed(found) == {'coordinates_distinct'}
  names = [f'tensor {int(c >= 500)}, coordinate {c % 500}' for c in (one, other)]
  assert found['coordinates_distinct'].where == ' and '.join(names)


def _cut(rows):
  return np.clip(rows, -3.0 * MULTIPLIER, 3.0 * MULTIPLIER)


def _drawn_as_uniform(rows):
  generator = np.random.default_rng(8)
  width = MULTIPLIER * math.sqrt(3.0)
  return generator.uniform(-width, width, rows.shape)


def _constant(rows):
  return np.random.default_rng(1).normal(0.0, MULTIPLIER, rows.shape)


@pytest.mark.parametrize(
  'change, check',
  [
    (lambda rows: 1.1 * rows, 'noise_scale'),
    (lambda rows: rows * np.where(np.arange(16) == 5, 0.8, 1.0)[:, None], 'noise_scale_of_rows'),
    (_cut, 'noise_tail'),
    (_drawn_as_uniform, 'noise_shape'),
    (_constant, 'rows_distinct'),
  ],
  ids=['more noise', 'a round with less', 'cut off', 'not Gaussian', 'a seed that is not fresh'],
)
def test_other_faults_are_found(change, check):
  assert check in failed(checks(identity.Identity(), change))


def test_noise_that_depends_on_the_data_is_found():
  """Coordinates of a device get none."""

  class Dependent(changed.Changed):
    def run(self, cohorts, num_rounds):
      updates = np.array([sum(cohorts(t)) for t in range(num_rounds)])
      return np.where(updates, updates, changed.RowSubject.run(self, lambda t: [], num_rounds))

  strategy = STRATEGIES['identity']
  found = changed.checks(Dependent(strategy, SIZES), strategy)
  assert failed(found) >= {'noise_scale', 'noise_shape'}
  assert found['coordinates_noised'].passed


@pytest.mark.slow
def test_audits_repeat_with_a_seed_and_have_one_json_form():
  options = {'noise_multiplier': 2.0, 'delta': 1e-6, 'num_draws': 2000}
  one, other = (
    auditing.audit(STRATEGIES['blt'], SCHEMA, seed=5, **options).to_json() for _ in range(2)
  )
  assert one == other
  assert json.loads(json.dumps(one, allow_nan=False)) == one
  assert one['passed'] is True and one['num_draws'] == 2000
  fresh = auditing.audit(STRATEGIES['blt'], SCHEMA, **options)
  again = auditing.audit(STRATEGIES['blt'], SCHEMA, **options)
  assert fresh.checks != again.checks


@made.cases(
  'options, words',
  ({'num_draws': 10}, 'num_draws must be at least 1000'),
  ({'clip_norm': 0.0}, 'clip_norm must be positive'),
  ({'noise_multiplier': 0.0}, 'noise_multiplier must be positive'),
  ({'seed': 1.5}, 'seed must be a whole number'),
  ({'schema': dpftrl.MinSep(num_rounds=513)}, 'num_rounds must be at most 512, got 513'),
)
def test_bad_arguments_are_refused(options, words):
  plain = {'schema': SCHEMA, 'noise_multiplier': 1.0, 'delta': 1e-6}
  with pytest.raises(ValueError, match=words):
    auditing.audit(identity.Identity(), **{**plain, **options})


def test_rows_in_another_order_in_a_small_tensor_are_found():
  def change(rows):
    return np.hstack([rows[:, :5000], rows[np.arange(16) ^ 1, 5000:]])

  found = checks(STRATEGIES['blt'], change, sizes=(5000, 200))
  assert failed(found) >= {'rows_uncorrelated'}
  assert found['rows_uncorrelated'].where.startswith('tensor 1, rounds ')


@pytest.mark.parametrize('coordinates', [[1234], [0, 7, 1999], [4999]])
def test_single_coordinates_without_noise_are_found_and_counted(coordinates):
  found = checks(STRATEGIES['banded'], scaled(coordinates, 0.0), sizes=(5000, 50))
  assert {'coordinates_noised', 'noise_scale_of_coordinates'} <= failed(found)
  many = f'{len(coordinates)} of 5,000 coordinates'
  assert found['coordinates_noised'].where == f'tensor 0: {many}'


def test_a_constant_that_is_not_0_is_no_noise():
  def change(rows):
    rows = rows.copy()
    rows[:, 77] = 1.7
    return rows

  found = checks(STRATEGIES['banded'], change)
  assert found['coordinates_noised'].where == 'tensor 0: 1 of 500 coordinates'
