"""Guarantees and calibrated noise; tests/golden has published figures."""

import fractions
import json
import math

import hypothesis
import numpy as np
import pytest
from dp_accounting.pld import pld_privacy_accountant
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import banded, identity
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.mechanisms.sensitivities import gram_search
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import gaussian, guarantees
from tests import made

ONCE = dpftrl.MinSep(num_rounds=3, max_participations=1)


def account(noise_multiplier, delta=1e-6, **arguments):
  given = dict(noise_multiplier=noise_multiplier, delta=delta, **arguments)
  return accountant.account(identity.Identity(), ONCE, **given)


def of(noise_multiplier, kind=sensitivities.EXACT, **arguments):
  root_two = sensitivities.Sensitivity(math.sqrt(2.0), kind)
  terms = guarantees.Terms((1e-6, 1e-9), **arguments)
  return guarantees.Guarantee.of(root_two, terms, noise_multiplier=noise_multiplier)


def test_figures_are_those_of_the_effective_noise():
  found = of(3.0, adjacency='replace_one', group_size=2)
  assert (found.sensitivity, found.sensitivity_kind) == (4.0 * math.sqrt(2.0), 'upper_bound')
  effective = 3.0 / found.sensitivity
  exact = [gaussian.epsilon(effective, delta) for delta in (1e-6, 1e-9)]
  assert found.epsilon() == found.epsilon(1e-6) >= exact[0]
  assert [found.epsilon(delta) for delta in found.deltas] == pytest.approx(exact, rel=1e-12)
  assert found.to_json() == {
    'sensitivity': found.sensitivity,
    'sensitivity_kind': 'upper_bound',
    'effective_noise_multiplier': effective,
    'rho': gaussian.rho(effective),
    'mu': 1.0 / effective,
    'epsilon': found.epsilon(),
    'curve': [{'delta': delta, 'epsilon': found.epsilon(delta)} for delta in (1e-6, 1e-9)],
  }
  assert 'curve' not in account(3.0).to_json()


def test_nothing_is_proven_without_noise():
  found = of(0.0)
  assert found.epsilon() == found.rho == found.mu == math.inf
  assert found.void_reason == 'no noise was added' and 'ε = unbounded' in str(found)
  figures = json.loads(json.dumps(found.to_json(), allow_nan=False))
  assert figures['epsilon'] is figures['rho'] is figures['mu'] is None


@pytest.mark.parametrize('mu, proven', [(23.0, True), (30.0, True), (35.0, False), (43.0, False)])
def test_whole_numbers_prove_no_epsilon_beyond_about_600(mu, proven):
  """Their normals are cut, and e^ε times the chance of that is part of δ."""
  plain, covered = account(1.0 / mu), account(1.0 / mu, num_coordinates=1000)
  assert plain.void_reason is None and plain.epsilon() < covered.epsilon()
  assert (covered.epsilon() < 1.001 * plain.epsilon()) == (covered.void_reason is None) == proven
  if not proven:
    assert covered.void_reason == 'there is too little noise for any ε at δ = 1e-06'


def test_text_is_short_and_rounded_up():
  found = of(math.sqrt(2.0))
  assert str(found) == 'ε = 4.887 at δ = 1e-06, ε = 6.174 at δ = 1e-09'
  assert repr(found).startswith(f'Guarantee({found}, ρ = 0.5, noise multiplier 1.41421')


def test_dp_accounting_composes_it_with_others():
  one, other = account(2.0), account(3.0, adjacency='replace_one')
  accountant = pld_privacy_accountant.PLDAccountant()
  accountant.compose(one.to_dp_event()).compose(other.to_dp_event())
  together = 1.0 / math.hypot(one.mu, other.mu)
  assert accountant.get_epsilon(1e-6) == pytest.approx(gaussian.epsilon(together, 1e-6), rel=1e-4)
  accountant.compose(of(0.0).to_dp_event())
  assert accountant.get_epsilon(0.5) == math.inf


@made.cases(
  'arguments, words',
  *(((value,), f'noise_multiplier.*{value}') for value in (0.0, -1.0, math.inf, math.nan)),
  *(((1.0, delta), 'delta') for delta in (0.0, 1.0, 2.0, math.nan, '1e-6', [], [1e-6, 1.0])),
  ((1e-160,), 'is too little noise'),
)
def test_refuses_noise_and_delta_out_of_range(arguments, words):
  with pytest.raises(ValueError, match=words):
    account(*arguments)


def test_an_upper_bound_is_named_so_and_a_lower_bound_guarantees_nothing(monkeypatch):
  monkeypatch.setattr(gram_search, '_MOST_STEPS', -1)  # leaves the bound by rows
  given = banded.Banded(np.tri(20)), dpftrl.MinSep(num_rounds=20, min_sep=3)
  found = accountant.account(*given, noise_multiplier=50.0, delta=1e-6)
  assert found.sensitivity_kind == 'upper_bound'
  with pytest.raises(ValueError, match='lower_bound'):
    of(1.0, sensitivities.LOWER_BOUND)


@pytest.mark.slow
@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.floats(-6.0, 6.0), st.floats(-300.0, math.log10(0.99)), st.floats(1e-3, 1e3))
def test_calibrated_noise_meets_any_epsilon_and_rho(digits, small, value):
  target, delta = 10.0**digits, 10.0**small
  strategy, once = banded.Banded(value * np.eye(1)), dpftrl.MinSep(num_rounds=1)
  found = accountant.calibrate(strategy, once, epsilon=target, delta=delta)
  given = dict(noise_multiplier=found.noise_multiplier, delta=delta)
  assert accountant.account(strategy, once, **given).epsilon() == found.epsilon() <= target
  by_rho = accountant.calibrate(strategy, once, rho=target, delta=delta)
  assert target * (1.0 - 3e-9) < by_rho.rho <= target


@pytest.mark.parametrize('epsilon', [1e-3, 1.0, 40.0, 590.0])
@pytest.mark.parametrize('num_coordinates', [1, 10**6, 10**10])
def test_calibrated_noise_leaves_room_for_whole_numbers(epsilon, num_coordinates):
  given = files.load_strategy('blt-b400'), dpftrl.MinSep(50, 10)
  others = dict(delta=1e-6, num_coordinates=num_coordinates)
  found = accountant.calibrate(*given, epsilon=epsilon, **others)
  assert accountant.account(*given, noise_multiplier=found.noise_multiplier, **others) == found
  assert epsilon * (1.0 - 1e-9) < found.epsilon() <= epsilon
  with pytest.raises(ValueError, match='epsilon=700 is more than releases in whole numbers'):
    accountant.calibrate(*given, epsilon=700.0, **others)


@made.cases(
  'changes, words',
  ({}, 'epsilon or rho'),
  ({'epsilon': 1.0, 'rho': 1.0}, 'epsilon or rho'),
  ({'epsilon': 1.0, 'delta': 0.0}, 'delta'),
  *(({n: v}, f'{n}.*{v}') for n in ('epsilon', 'rho') for v in (0.0, -1.0, math.inf, '4')),
)
def test_refuses_a_target_out_of_range(changes, words):
  with pytest.raises(ValueError, match=words):
    accountant.calibrate(identity.Identity(), ONCE, **{'delta': 1e-6, **changes})


def test_epsilon_covers_what_a_sum_of_squares_rounds():
  """S of falling columns, exactly, is never above the one whose ε is stated."""
  rng, below = np.random.default_rng(3), 0
  for _ in range(200):
    column = np.sort(rng.random(24))[::-1]
    strategy, schema = dpftrl.BandedToeplitz(column), dpftrl.MinSep(100, 7, 5)
    guarantee = dpftrl.account(strategy, schema, noise_multiplier=3.0, delta=1e-6)
    sums = [fractions.Fraction(0)] * 100
    for start in range(0, 35, 7):
      for i, value in enumerate(column.tolist()):
        sums[start + i] += fractions.Fraction(value)
    square = sum(each * each for each in sums)
    stated = fractions.Fraction(guarantee.sensitivity)
    below += stated * stated < square
    assert (stated / fractions.Fraction(guarantees.SUM_ROUNDING)) ** 2 > square
  assert below  # So that the margin is needed.
