"""Audits of single tensors, single coordinates and pairs of them, in NumPy."""

import json

import numpy as np
import pytest

from fl_dpftrl.families import banded_toeplitz, identity
from fl_dpftrl.participation import schemas
from tests.auditing import changed
from tests.auditing.changed import failed

SCHEMA = schemas.MinSep(num_rounds=16, min_sep=4, max_participations=3)
LONG = schemas.MinSep(num_rounds=128, min_sep=64)
BANDED = banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.3], None)


def audit(sizes, change=lambda rows: rows, *, strategy=BANDED, schema=SCHEMA, seed=3, draws=4000):
  subject = changed.Changed(strategy, sizes, change, seed=seed)
  return changed.audit(subject, strategy, schema, draws=draws, seed=seed)


def where(found, name):
  return {check.name: check.where for check in found.checks}[name]


def scaled(coordinates, factor):
  """Returns a change that multiplies the noise of some coordinates."""

  def change(rows):
    rows = rows.copy()
    rows[:, coordinates] *= factor
    return rows

  return change


@pytest.mark.parametrize('strategy', [identity.Identity(), BANDED])
@pytest.mark.parametrize('sizes', [(5000, 1), (5000, 50, 7), (16,), (400,) + 10 * (3,)])
def test_sound_noise_of_uneven_tensors_passes(sizes, strategy):
  found = audit(sizes, strategy=strategy)
  assert failed(found) == set()
  assert found.lower_bound_epsilon <= found.claimed_epsilon


@pytest.mark.parametrize('rounds', [1, 2, 3])
def test_sound_noise_of_few_rounds_passes(rounds):
  schema = schemas.MinSep(num_rounds=rounds)
  assert failed(audit((3000, 2), schema=schema)) == set()
  assert 'coordinates_noised' in failed(audit((3000, 2), scaled([3001], 0.0), schema=schema))


@pytest.mark.parametrize(
  'large, small',
  [(5000, 1), (5000, 5), (5000, 50), pytest.param(25_000, 100, marks=pytest.mark.slow)],
)
def test_a_second_tensor_without_noise_is_found_and_named(large, small):
  found = audit((large, small), scaled(np.arange(large, large + small), 0.0))
  assert {'coordinates_noised', 'noise_scale_of_tensors'} <= failed(found)
  many = f'{small} of {small} coordinate' + 's' * (small > 1)
  assert where(found, 'coordinates_noised') == f'tensor 1: {many}'
  assert where(found, 'noise_scale_of_tensors') == 'tensor 1'
  assert found.lower_bound_epsilon > 1000.0


@pytest.mark.parametrize('coordinates', [[1234], [0, 7, 1999], [4999]])
def test_single_coordinates_without_noise_are_found_and_counted(coordinates):
  found = audit((5000, 50), scaled(coordinates, 0.0))
  assert {'coordinates_noised', 'noise_scale_of_coordinates'} <= failed(found)
  many = f'{len(coordinates)} of 5,000 coordinates'
  assert where(found, 'coordinates_noised') == f'tensor 0: {many}'


def test_a_constant_that_is_not_0_is_no_noise():
  def change(rows):
    rows = rows.copy()
    rows[:, 77] = 1.7
    return rows

  assert where(audit((5000,), change), 'coordinates_noised') == 'tensor 0: 1 of 5,000 coordinates'


@pytest.mark.parametrize('seed', range(3))
def test_a_tenth_of_the_noise_on_five_coordinates_is_found(seed):
  found = audit((5000,), scaled([3, 900, 901, 2500, 4999], 0.1), seed=seed)
  assert 'noise_scale_of_coordinates' in failed(found)
  assert where(found, 'noise_scale_of_coordinates').startswith('tensor 0, coordinate ')
  assert 'coordinates_noised' not in failed(found)


@pytest.mark.slow
def test_another_scale_of_one_coordinate_is_found_in_many_rows():
  assert failed(audit((300, 20), schema=LONG, draws=2560)) == set()
  for factor in (0.5, 2 / 3, 1.5):
    found = audit((300, 20), scaled([310], factor), schema=LONG, draws=2560)
    assert failed(found) >= {'noise_scale_of_coordinates'}
    assert where(found, 'noise_scale_of_coordinates') == 'tensor 1, coordinate 10'


@pytest.mark.parametrize('factor', [2 / 3, 1.5])
def test_another_scale_of_a_tensor_is_found(factor):
  found = audit((5000, 50), scaled(np.arange(5000, 5050), factor))
  assert 'noise_scale_of_tensors' in failed(found)
  assert where(found, 'noise_scale_of_tensors') == 'tensor 1'


@pytest.mark.parametrize('factor', [0.6, 1.5])
def test_another_scale_of_scattered_coordinates_is_found_by_their_number(factor):
  found = audit((5000,), scaled(np.arange(0, 5000, 100), factor))
  assert 'coordinates_alike' in failed(found)


@pytest.mark.parametrize('sign', [1.0, -0.5])
@pytest.mark.parametrize('one, other', [(17, 4000), (0, 5049), (5000, 5001)])
def test_two_coordinates_with_one_noise_are_found(one, other, sign):
  def change(rows):
    rows = rows.copy()
    rows[:, other] = sign * rows[:, one]
    return rows

  found = audit((5000, 50), change)
  assert 'pairs_uncorrelated' in failed(found)
  names = [f'tensor {int(c >= 5000)}, coordinate {c % 5000}' for c in (one, other)]
  assert where(found, 'pairs_uncorrelated') == ' and '.join(names)


@pytest.mark.parametrize('first', [0, 3001])
def test_a_tensor_with_a_copy_of_anothers_noise_is_found(first):
  def change(rows):
    rows = rows.copy()
    rows[:, 5000:] = rows[:, first : first + 50]
    return rows

  assert 'pairs_uncorrelated' in failed(audit((5000, 50), change))


def test_coordinates_that_share_a_part_of_their_noise_are_found_in_many_rows():
  def change(rows):
    rows = rows.copy()
    rows[:, 310] = 0.8 * rows[:, 40] + 0.6 * rows[:, 310]
    return rows

  found = audit((300, 20), change, schema=LONG, draws=2560)
  assert 'pairs_uncorrelated' in failed(found)


def test_a_tensor_of_one_coordinate_has_a_canary():
  sent = np.zeros(5001)

  class Watched(changed.Changed):
    def run(self, cohorts, num_rounds):
      for t in range(num_rounds):
        total = np.abs(sum(cohorts(t)))
        sent[:] = np.maximum(sent, total * (total.max() == 1.0))  # Not the target of the last test.
      return super().run(cohorts, num_rounds)

  changed.audit(Watched(BANDED, (5000, 1), lambda rows: rows), BANDED, SCHEMA)
  assert sent[5000] == 1.0
  assert 0 < np.count_nonzero(sent) <= 5001 // 8


def test_no_noise_at_all_keeps_to_json():
  found = audit((5000, 50), np.zeros_like)
  assert where(found, 'coordinates_noised') == (
    'tensor 0: 5,000 of 5,000 coordinates, tensor 1: 50 of 50 coordinates'
  )
  json.dumps(found.to_json(), allow_nan=False)
