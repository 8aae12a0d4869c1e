"""Predictions are accounts of settings that were not run."""

import math

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.accounting import extrapolation

DELTA = 1e-10


def deployment(**kwargs):
  return extrapolation.Deployment(**{'report_goal': 6500, 'num_rounds': 2000, **kwargs})


def test_noise_in_proportion_to_the_report_goal():
  # McMahan, Xu, Zhang 2024: pt-BR at report goals of 6.5K and 12K, as rounded
  # there.
  reference = extrapolation.Reference(noise_multiplier=8.681, report_goal=6500)
  assert reference.at(6500) == 8.681
  assert reference.at(13000) == 2 * 8.681
  assert reference.at(12000) == pytest.approx(16.1, abs=0.1)


@pytest.mark.parametrize(
  'population, report_goal, min_sep, most',
  [
    (13_000_000, 6500, 2000, 1),
    (13_000_000, 6501, 1999, 2),
    (13_000_000, 12_000, 1083, 2),
    (6500, 6500, 1, 2000),
    (26_000_000, 6500, 4000, 1),
  ],
)
def test_optimistic_participation(population, report_goal, min_sep, most):
  schema = deployment(population=population, report_goal=report_goal).schema
  assert (schema.min_sep, schema.participations) == (min_sep, most)


def test_what_is_given_is_not_estimated():
  given = deployment(population=13_000_000, min_sep=300, max_participations=4)
  assert given.schema == dpftrl.MinSep(num_rounds=2000, min_sep=300, max_participations=4)
  assert deployment(min_sep=300).schema.participations == 7


@pytest.mark.parametrize('name', ['blt-b400', 'tree_online', 'identity'])
def test_predictions_are_accounts(name):
  strategy = dpftrl.load_strategy(name)
  reference = extrapolation.Reference(noise_multiplier=7.0, report_goal=6500)
  found = extrapolation.predict(
    strategy,
    deployment(report_goal=9000, population=3_000_000, num_rounds=1000),
    reference,
    delta=DELTA,
  )
  assert found == dpftrl.account(
    strategy,
    dpftrl.MinSep(num_rounds=1000, min_sep=333),
    noise_multiplier=7.0 * (9000 / 6500),
    delta=DELTA,
  )


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({}, 'population or min_sep'),
    ({'population': 6499}, 'population=6499 is below report_goal=6500'),
    ({'population': 0}, 'population.*0'),
    ({'population': 2.5}, 'population.*2.5'),
    ({'report_goal': 0, 'min_sep': 1}, 'report_goal.*0'),
    ({'min_sep': 0}, 'min_sep.*0'),
    ({'min_sep': 5, 'num_rounds': 0}, 'num_rounds.*0'),
    ({'min_sep': 5, 'max_participations': 0}, 'max_participations.*0'),
    (
      {'population': 65_000, 'min_sep': 11},
      'population=65000 is too small.*min_sep=11.*need 71500',
    ),
    (
      {'population': 65_000, 'max_participations': 199},
      'population=65000 is too small.*max_participations=199.*need 65327',
    ),
  ],
)
def test_refuses_deployments_that_cannot_be(arguments, message):
  with pytest.raises(ValueError, match=message):
    deployment(**arguments)


def test_devices_that_just_suffice():
  deployment(population=65_000, min_sep=10, max_participations=200)
  deployment(population=13_000_000, min_sep=2001)  # beyond the last round


@pytest.mark.parametrize('noise', [0.0, -1.0, math.inf, math.nan])
def test_refuses_noise_that_is_none(noise):
  with pytest.raises(ValueError, match=f'noise_multiplier.*{noise}'):
    extrapolation.Reference(noise_multiplier=noise, report_goal=1)


def test_no_further_than_the_strategy():
  reference = extrapolation.Reference(noise_multiplier=1.0, report_goal=6500)
  with pytest.raises(ValueError, match='256 rounds'):
    extrapolation.predict(
      dpftrl.load_strategy('banded-b16'), deployment(min_sep=16), reference, delta=DELTA
    )
  with pytest.raises(ValueError, match='delta.*2'):
    extrapolation.predict(dpftrl.Identity(), deployment(min_sep=16), reference, delta=2.0)
