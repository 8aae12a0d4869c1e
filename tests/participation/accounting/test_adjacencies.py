"""Factors of a sensitivity, by brute force over neighbours, and refusals."""

import itertools

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import banded, identity
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import adjacencies
from tests import made

SCHEMA = dpftrl.MinSep(num_rounds=4, min_sep=2)
STRATEGY = banded.Banded([[1.0, 0.0], [1.0, 0.5], [2.0, 0.5], [1.0, 1.0]])


def furthest(pairs):
  """The most that C x moves over ±1 updates in rounds of the schema."""
  c = STRATEGY.strategy_matrix(4)
  patterns = [[0], [1], [2], [3], [0, 2], [0, 3], [1, 3]]
  return max(
    np.linalg.norm(c[:, rounds] @ np.subtract(first, second))
    for rounds in patterns
    for first, second in pairs(len(rounds))
  )


def vectors(count, values):
  return list(itertools.product(values, repeat=count))


def test_zeroed_and_replaced_by_brute_force():
  zeroed = furthest(lambda k: itertools.product(vectors(k, (-1.0, 1.0)), [np.zeros(k)]))
  replaced = furthest(lambda k: itertools.product(vectors(k, (-1.0, 1.0)), repeat=2))
  found = {
    name: accountant.account(STRATEGY, SCHEMA, noise_multiplier=2.0, delta=1e-6, adjacency=name)
    for name in adjacencies.ADJACENCIES
  }
  assert found['zero_out'].sensitivity == pytest.approx(zeroed)
  assert found['replace_one'].sensitivity == pytest.approx(replaced)
  assert found['replace_one'].sensitivity_kind == 'exact'
  assert found['replace_one'].rho == pytest.approx(4.0 * found['zero_out'].rho)
  assert found['replace_one'].adjacency == 'replace_one'
  assert any('doubled' in s for s in found['replace_one'].assumptions)


def test_a_lower_bound_stays_one():
  kind = sensitivities.LOWER_BOUND
  value = sensitivities.Sensitivity(1.0, kind)
  assert adjacencies.scaled(value, 'zero_out', 2) == (2.0, kind)


@made.cases(
  'arguments, message',
  ({'adjacency': 'add_or_remove'}, 'add_or_remove is refused.*cohorts'),
  ({'adjacency': 'add_remove'}, 'add_or_remove is refused.*cohorts'),
  ({'adjacency': 'other'}, "one of zero_out, replace_one, got 'other'"),
  ({'group_size': 0}, 'group_size.*0'),
  ({'group_size': 1.5}, 'group_size.*1.5'),
  ({'group_size': True}, 'group_size.*True'),
)
def test_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    accountant.account(identity.Identity(), SCHEMA, noise_multiplier=1.0, delta=1e-6, **arguments)
  with pytest.raises(ValueError, match=message):
    accountant.calibrate(identity.Identity(), SCHEMA, epsilon=1.0, delta=1e-6, **arguments)


def test_groups_are_an_upper_bound():
  one = accountant.account(STRATEGY, SCHEMA, noise_multiplier=6.0, delta=1e-6)
  three = accountant.account(STRATEGY, SCHEMA, noise_multiplier=6.0, delta=1e-6, group_size=3)
  assert three.sensitivity == pytest.approx(3.0 * one.sensitivity)
  assert (one.sensitivity_kind, three.sensitivity_kind) == ('exact', 'upper_bound')
  assert three.group_size == 3
  assert any('groups of 3 devices' in s for s in three.assumptions)
