"""Properties of every family of the registry, and brute force at few rounds."""

import copy
import dataclasses
import pickle

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.mechanisms import base, family_registry, sensitivities, workload_error, workloads
from fl_dpftrl.mechanisms.families import dense, stamped, tree_full, tree_online
from fl_dpftrl.mechanisms.files import documents
from tests import drawn, every_family, oracle

ROUNDS = (1, 2, 3, 7, 8, 21)
MOST = max(ROUNDS) + 1


@pytest.fixture(params=every_family.NAMES)
def strategy(request):
  return every_family.example(request.param, MOST)


def test_there_is_an_example_of_every_family():
  """Without a line in tests/every_family.py a family must need no parameters."""
  for family in family_registry.FAMILIES:
    assert every_family.example(family, 5).family == family


@pytest.mark.parametrize(
  'copied', [copy.copy, copy.deepcopy, lambda whole: pickle.loads(pickle.dumps(whole))]
)
def test_copies_cannot_be_changed_either(strategy, copied):
  claim = copied(run_claim.Claim(strategy=strategy, noise_multiplier=1.0))
  assert claim == run_claim.Claim(strategy=claim.strategy, noise_multiplier=1.0)
  assert documents.strategy_digest(claim.strategy) == documents.strategy_digest(strategy)
  left = [claim.strategy]
  while left:
    for value in vars(left.pop()).values():
      left += [value] if isinstance(value, base.Strategy) else []
      assert not (isinstance(value, np.ndarray) and value.flags.writeable)


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_the_noising_matrix_undoes_the_strategy_matrix(strategy, num_rounds):
  matrix = strategy.strategy_matrix(num_rounds)
  noising = strategy.noising_matrix(num_rounds)
  rows = strategy.num_noise_rows(num_rounds)
  assert matrix.shape == (rows, num_rounds)
  assert noising.shape == (num_rounds, rows)
  assert matrix.dtype == noising.dtype == np.float64
  prefix = np.tri(num_rounds)
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


def test_its_parameters_cannot_be_changed(strategy):
  for field in dataclasses.fields(strategy):
    with pytest.raises((TypeError, ValueError)):
      getattr(strategy, field.name)[0] = 0.5


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


def stamped_dense(draw):
  matrix, length = draw.triangle(), draw.length()
  return stamped.Stamped(dense.Dense(np.abs(matrix) if draw.one_in_two() else matrix), length)


# Further forms: families in blocks, whose sensitivities have ways of their own.
FORMS = {
  'stamped dense': stamped_dense,
  'stamped tree_full': lambda draw: stamped.Stamped(
    tree_full.TreeFull(length := draw.length()), length
  ),
  'stamped tree_online': lambda draw: stamped.Stamped(tree_online.TreeOnline(), draw.length()),
  'stamped twice': lambda draw: stamped.Stamped(
    stamped.Stamped(tree_online.TreeOnline(), draw.length()), draw.length()
  ),
}
ALWAYS_EXACT = {
  'blt',
  'identity',
  'lambda_cgd',
  'stamped blt',
  'stamped tree_online',
  'tree_online',
}


def must_be_exact(name, strategy, schema, gram):
  """True where the sensitivity has to be exact, not only a bound."""
  if name in ALWAYS_EXACT:
    return True
  if isinstance(schema, dpftrl.FixedSeparation) and (gram >= 0.0).all():
    return True
  if name.startswith('stamped'):
    fits = min(schema.participations, -(-strategy.block_rounds // schema.min_sep))
    return name == 'stamped dense' and fits <= 2
  if schema.participations <= 2:
    return True
  if name == 'banded_toeplitz' and (np.diff(strategy.coefficients) <= 0.0).all():
    return strategy.coefficients[-1] >= 0.0
  return name.startswith('banded') and getattr(strategy, 'num_bands', np.inf) <= schema.min_sep


@pytest.mark.parametrize('name', [*every_family.NAMES, *FORMS])
@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data(), st.integers(0, 2), st.integers(0, 10**6))
def test_sensitivity_is_what_it_says(name, cls, data, more, seed):
  """Also of a run that ends before the last round of the strategy."""
  schema = data.draw(drawn.schemas(cls, most_rounds=10))
  draw = every_family.Draw(schema.num_rounds + more, np.random.default_rng(seed), tame=False)
  strategy = FORMS[name](draw) if name in FORMS else every_family.made(name, draw)
  matrix = strategy.strategy_matrix(schema.num_rounds)
  gram = matrix.T @ matrix
  result = sensitivities.sensitivity(strategy, schema)
  truth = oracle.worst_of_vectors(matrix, schema)
  # Ascent may stop short of the truth, but never goes beyond it.
  assert result.value >= truth * (1.0 - 1e-10)
  if must_be_exact(name, strategy, schema, gram):
    assert result.kind == sensitivities.EXACT
  if result.kind == sensitivities.EXACT:
    assert result.value == pytest.approx(truth, rel=1e-11 if (gram >= 0.0).all() else 1e-5)
  assert result.kind in (sensitivities.EXACT, sensitivities.UPPER_BOUND)


@pytest.mark.parametrize('name', every_family.NAMES)
@hypothesis.given(st.integers(1, 10), st.integers(0, 2), st.integers(0, 10**6))
def test_entries_of_x_and_observed_patterns(name, num_rounds, more, seed):
  rng = np.random.default_rng(seed)
  strategy = every_family.drawn(name, num_rounds + more, rng)
  matrix = strategy.strategy_matrix(num_rounds)
  gram = matrix.T @ matrix
  rounds = np.arange(num_rounds)
  tolerance = {'rtol': 1e-10, 'atol': 1e-12 * np.abs(gram).max()}
  entries = strategy.gram_entries(num_rounds)
  np.testing.assert_allclose(entries(rounds[:, None], rounds), gram, **tolerance)
  np.testing.assert_allclose(strategy.gram_matrix(num_rounds), gram, **tolerance)
  every = oracle.patterns(dpftrl.MinSep(num_rounds))
  chosen = [every[i] for i in rng.integers(0, len(every), 5)] + [()]
  values, kind = oracle.pattern_sensitivity(strategy, num_rounds, chosen)
  truth = np.sqrt([oracle.ascent(gram[np.ix_(p, p)]) if p else 0.0 for p in chosen])
  assert (values >= truth * (1.0 - 1e-10)).all()
  if kind == sensitivities.EXACT:
    np.testing.assert_allclose(values, truth, rtol=1e-5)


WORKLOADS = {
  'prefix': workloads.Workload(),
  'momentum': workloads.Workload(0.9),
  'schedule': workloads.Workload(0.5, 0.2, 0.3),
}


@pytest.mark.parametrize('name', every_family.NAMES)
@pytest.mark.parametrize('workload', WORKLOADS)
def test_errors_are_row_norms_of_the_decoder(name, workload):
  for num_rounds in (1, 2, 7, 64):
    strategy = every_family.example(name, num_rounds + 1)
    a = WORKLOADS[workload]
    expected = oracle.per_query_error(strategy, num_rounds, a)
    result = workload_error.per_query_error(strategy, num_rounds, a)
    np.testing.assert_allclose(result, expected, rtol=1e-11, err_msg=f'{num_rounds} rounds')
    mean = np.sqrt(np.mean(expected**2))
    assert workload_error.error(strategy, num_rounds, a) == pytest.approx(
      (mean, expected.max()), rel=1e-11
    )
