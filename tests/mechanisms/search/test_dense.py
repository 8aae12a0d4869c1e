"""The best dense strategies, and the bounds that prove them so."""

import math

import hypothesis
import numpy as np
import pytest
import scipy.optimize
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities, workloads
from fl_dpftrl.mechanisms.families import blt, identity, tree_online
from fl_dpftrl.mechanisms.families import dense as family
from fl_dpftrl.mechanisms.search import banded_search, dense_search
from fl_dpftrl.mechanisms.search.search_problem import Problem
from tests import oracle

OBJECTIVES = ('rms', 'max')


def once(num_rounds, objective='rms', workload=workloads.Workload()):
  return Problem(dpftrl.MinSep(num_rounds, max_participations=1), objective, workload)


def triangle(size, seed, spread=1.0):
  generator = np.random.default_rng(seed)
  matrix = np.tril(generator.normal(size=(size, size)) * spread, -1)
  return matrix + np.diag(generator.uniform(0.3, 1.5, size))


@pytest.mark.slow
def test_the_published_optimum_with_a_certificate():
  """512 rounds, one participation (Denisov et al. 2022)."""
  steps = []
  schema = dpftrl.MinSep(512, max_participations=1)
  best = dense_search.solve(Problem(schema, 'rms', progress=lambda i, _: steps.append(i)))
  assert best.loss == pytest.approx(2.7393846561, abs=5e-7)
  assert best.bound <= 2.7393846561 + 1e-9
  assert 0.0 <= best.gap <= 1e-6
  assert len(steps) <= 20


@pytest.mark.parametrize('objective', OBJECTIVES)
@pytest.mark.parametrize('num_rounds', [1, 2, 3, 33])
def test_one_participation_at_any_size(num_rounds, objective):
  problem = once(num_rounds, objective)
  best = dense_search.solve(problem)
  assert best.gap <= 2e-7
  assert problem.loss(best.strategy) == pytest.approx(best.loss)
  np.testing.assert_allclose(np.square(best.strategy.coefficients).sum(axis=0), 1.0)
  one = pytest.approx(1.0, abs=1e-12)
  assert sensitivities.sensitivity(best.strategy, problem.schema) == (one, 'exact')


@pytest.mark.slow
@hypothesis.given(
  st.integers(1, 7),
  st.integers(1, 7),
  st.integers(1, 4),
  st.sampled_from([dpftrl.MinSep, dpftrl.FixedSeparation]),
  st.sampled_from(OBJECTIVES),
  st.sampled_from([0.0, 0.9]),
  st.integers(0, 99),
)
def test_nothing_is_better_than_the_bound(n, b, k, cls, objective, beta, seed):
  """Whatever the signs of X, and with vectors for updates."""
  schema, workload = cls(n, b, k), workloads.Workload(beta, cooldown_fraction=0.5)
  problem = Problem(schema, objective, workload)
  strategy = family.Dense(triangle(n, seed))
  bound = problem.loss(strategy) / math.sqrt(1.0 + dense_search.optimality_gap(strategy, problem))
  best = dense_search.solve(problem).strategy
  for other in (*(triangle(n, seed + i, 0.3 * i) for i in range(3)), best.coefficients):
    queries = oracle.per_query_error(family.Dense(other), n, workload)
    error = math.sqrt(np.mean(queries**2)) if objective == 'rms' else queries.max()
    assert oracle.worst_of_vectors(other, schema) * error >= bound * (1.0 - 1e-7)


@pytest.mark.parametrize('objective', OBJECTIVES)
@pytest.mark.parametrize('n, b', [(40, 9), (24, 24), (17, 2)])
def test_many_participations(n, b, objective):
  """A device comes back every b rounds until the end."""
  problem = Problem(dpftrl.FixedSeparation(n, b), objective)
  best = dense_search.solve_multi_epoch(problem, tolerance=1e-5)
  assert best.gap <= 1e-3  # of max, where few queries are the worst
  assert problem.loss(best.strategy) == pytest.approx(best.loss)
  assert sensitivities.sensitivity(best.strategy, problem.schema) == (pytest.approx(1.0), 'exact')
  gram = best.strategy.gram_matrix(n)
  for lag in range(b, n, b):
    np.testing.assert_allclose(np.diagonal(gram, lag), 0.0, atol=1e-14)
  alike = dense_search.solve_multi_epoch(problem, equal_norms=True, tolerance=1e-5)
  squares = np.square(alike.strategy.coefficients).sum(axis=0)
  np.testing.assert_allclose(squares, 1.0 / problem.schema.participations)
  assert alike.loss >= best.bound
  bands = banded_search.optimize(Problem(dpftrl.MinSep(n, b), objective))
  assert problem.loss(bands) >= alike.bound * (1.0 - 1e-9)


@pytest.mark.parametrize(
  'strategy', [identity.Identity(), tree_online.TreeOnline(), blt.BLT([0.97, 0.6], [0.2, 0.4])]
)
def test_gaps_of_other_families(strategy):
  problem = once(64)
  best = dense_search.solve(problem, tolerance=1e-10).loss
  expected = (problem.loss(strategy) / best) ** 2 - 1.0
  assert dense_search.optimality_gap(strategy, problem) == pytest.approx(expected, rel=1e-6)


def test_no_certificate_for_very_many_rounds():
  assert dense_search.optimality_gap(identity.Identity(), once(dense_search.MAX_ROUNDS + 1)) is None


@pytest.mark.slow
def test_many_participations_equal_a_general_minimiser():
  """Over all C, where X may be negative between rounds of a pattern."""
  size, schema = 4, dpftrl.FixedSeparation(num_rounds=4, min_sep=2)
  lower, queries = np.tril_indices(size), np.tri(size)

  def objective(entries):
    matrix = np.zeros((size, size))
    matrix[lower] = entries
    gram = matrix.T @ matrix
    worst = max(gram[i, i] + gram[i + 2, i + 2] + 2.0 * abs(gram[i, i + 2]) for i in range(2))
    return math.sqrt(worst) * np.linalg.norm(queries @ np.linalg.inv(matrix))

  found = dense_search.solve_multi_epoch(Problem(schema, 'rms'), tolerance=1e-10)
  best = math.inf
  for seed in range(2):
    start = triangle(size, seed, 0.5)[lower]
    for _ in range(3):  # The maximum has corners, at which simplices get stuck.
      start = scipy.optimize.minimize(
        objective,
        start,
        method='Nelder-Mead',
        options={'maxiter': 4000, 'xatol': 1e-9, 'fatol': 1e-12},
      ).x
    best = min(best, objective(start))
  scale = math.sqrt(size)
  assert best >= found.bound * scale * (1.0 - 1e-9)
  assert best == pytest.approx(found.loss * scale, rel=1e-3)


def test_equals_a_general_minimiser():
  """Over all C with columns of norm 1, with numerical gradients."""
  size = 6
  lower, queries = np.tril_indices(size), np.tri(size)

  def objective(entries):
    matrix = np.zeros((size, size))
    matrix[lower] = entries
    matrix /= np.linalg.norm(matrix, axis=0)
    return np.linalg.norm(queries @ np.linalg.inv(matrix))

  result = scipy.optimize.minimize(objective, np.eye(size)[lower], method='L-BFGS-B', tol=1e-14)
  best = dense_search.solve(once(size), tolerance=1e-10)
  assert best.loss * math.sqrt(size) == pytest.approx(result.fun, rel=1e-6)
