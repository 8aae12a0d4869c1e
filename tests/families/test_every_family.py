"""Properties of every family of the registry, and brute force at few rounds."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import sensitivity, workloads
from fl_dpftrl.families import base, registry
from fl_dpftrl.participation import schemas
from tests import drawn, every_family, oracle

ROUNDS = (1, 2, 3, 7, 8, 21)
MOST = max(ROUNDS) + 1


@pytest.fixture(params=every_family.NAMES)
def strategy(request):
  return every_family.example(request.param, MOST)


def test_there_is_an_example_of_every_family():
  """Without a line in tests/every_family.py a family must need no parameters."""
  for family in registry.FAMILIES:
    assert every_family.example(family, 5).family == family


def test_is_a_strategy_under_its_own_name(strategy):
  assert isinstance(strategy, base.Strategy)
  assert registry.FAMILIES[strategy.family] is type(strategy)


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_the_noising_matrix_undoes_the_strategy_matrix(strategy, num_rounds):
  matrix = strategy.strategy_matrix(num_rounds)
  noising = strategy.noising_matrix(num_rounds)
  rows = strategy.num_noise_rows(num_rounds)
  assert matrix.shape == (rows, num_rounds)
  assert noising.shape == (num_rounds, rows)
  assert matrix.dtype == noising.dtype == np.float64
  prefix = workloads.prefix_sums(num_rounds)
  np.testing.assert_allclose(prefix @ noising @ matrix, prefix, atol=1e-9)


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_a_longer_run_begins_as_a_shorter_one(strategy, num_rounds):
  rows = strategy.num_noise_rows(num_rounds)
  longer = strategy.strategy_matrix(num_rounds + 1)
  np.testing.assert_allclose(longer[:rows, :num_rounds], strategy.strategy_matrix(num_rounds))
  assert not longer[:rows, num_rounds:].any()
  longer = strategy.noising_matrix(num_rounds + 1)
  np.testing.assert_allclose(
    longer[:num_rounds, :rows], strategy.noising_matrix(num_rounds), atol=1e-9
  )
  assert not longer[:num_rounds, rows:].any()


def test_its_parameters_rebuild_it(strategy):
  again = type(strategy)(**strategy.parameters())
  np.testing.assert_array_equal(again.strategy_matrix(7), strategy.strategy_matrix(7))


def test_is_immutable(strategy):
  for field in dataclasses.fields(strategy):
    with pytest.raises(dataclasses.FrozenInstanceError):
      setattr(strategy, field.name, None)
    value = getattr(strategy, field.name)
    with pytest.raises((TypeError, ValueError)):
      value[0] = 0.5


@pytest.mark.parametrize('num_rounds', [0, -1])
def test_refuses_runs_without_rounds(strategy, num_rounds):
  for method in (strategy.strategy_matrix, strategy.noising_matrix):
    with pytest.raises(ValueError, match=f'num_rounds.*{num_rounds}'):
      method(num_rounds)


def test_refuses_runs_beyond_its_last_round(strategy):
  if strategy.max_rounds is None:
    assert strategy.strategy_matrix(3 * MOST).shape[1] == 3 * MOST
  else:
    with pytest.raises(ValueError, match='num_rounds'):
      strategy.strategy_matrix(strategy.max_rounds + 1)


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_memory_is_a_count(strategy, num_rounds):
  assert 0 <= strategy.memory_copies(num_rounds) <= num_rounds + 3


@pytest.mark.parametrize('name', every_family.NAMES)
@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data(), st.integers(0, 10**6))
def test_sensitivity_is_what_it_says(name, cls, data, seed):
  schema = data.draw(drawn.schemas(cls, most_rounds=10))
  strategy = every_family.drawn(name, schema.num_rounds, np.random.default_rng(seed))
  result = sensitivity.sensitivity(strategy, schema)
  truth = oracle.worst_of_vectors(strategy.strategy_matrix(schema.num_rounds), schema)
  if result.kind == sensitivity.EXACT:
    assert result.value == pytest.approx(truth, rel=1e-5)
  # Ascent may stop short of the truth, but never goes beyond it.
  if result.kind in (sensitivity.EXACT, sensitivity.UPPER_BOUND):
    assert result.value >= truth * (1.0 - 1e-10)
  else:
    assert result.value <= truth * (1.0 + 1e-5)


@pytest.mark.parametrize('name', every_family.NAMES)
@hypothesis.given(st.integers(1, 10), st.integers(0, 10**6))
def test_gram_entries_are_those_of_the_matrix(name, num_rounds, seed):
  strategy = every_family.drawn(name, num_rounds, np.random.default_rng(seed))
  matrix = strategy.strategy_matrix(num_rounds)
  expected = matrix.T @ matrix
  rounds = np.arange(num_rounds)
  entries = strategy.gram_entries(num_rounds)
  tolerance = {'rtol': 1e-10, 'atol': 1e-12 * np.abs(expected).max()}
  np.testing.assert_allclose(entries(rounds[:, None], rounds), expected, **tolerance)
  np.testing.assert_allclose(strategy.gram_matrix(num_rounds), expected, **tolerance)


@pytest.mark.parametrize('name', every_family.NAMES)
@hypothesis.given(drawn.schemas(schemas.MinSep, most_rounds=10), st.integers(0, 10**6))
def test_observed_patterns_are_what_they_say(name, schema, seed):
  rng = np.random.default_rng(seed)
  strategy = every_family.drawn(name, schema.num_rounds, rng)
  gram = strategy.strategy_matrix(schema.num_rounds)
  gram = gram.T @ gram
  every = oracle.patterns(schema)
  chosen = [every[i] for i in rng.integers(0, len(every), 5)] + [()]
  values, kind = sensitivity.pattern_sensitivity(strategy, schema.num_rounds, chosen)
  truth = np.sqrt([oracle.ascent(gram[np.ix_(p, p)]) if p else 0.0 for p in chosen])
  assert (values >= truth * (1.0 - 1e-10)).all()
  if kind == sensitivity.EXACT:
    np.testing.assert_allclose(values, truth, rtol=1e-5)
