"""The best dense strategies, and the bounds that prove them so."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import optimize as optimize_lib

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import blt, identity, tree_online
from fl_dpftrl.families import dense as dense_strategies
from fl_dpftrl.optimization import banded, certificate, dense, factorization
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from tests import oracle

OBJECTIVES = ('rms', 'max')


def once(num_rounds):
  return schemas.MinSep(num_rounds=num_rounds, max_participations=1)


def loss(strategy, schema, objective='rms', workload=workloads.Workload()):
  file = files.describe(strategy, schema=schema, workload=workload)
  return file.figures[f'{objective}_loss']


def triangle(size, seed, spread=1.0):
  generator = np.random.default_rng(seed)
  matrix = np.tril(generator.normal(size=(size, size)) * spread, -1)
  return matrix + np.diag(generator.uniform(0.3, 1.5, size))


@pytest.mark.slow
def test_the_published_optimum_with_a_certificate():
  """512 rounds, one participation (Denisov et al. 2022)."""
  steps = []
  found = dense.solve(once(512), objective='rms', progress=lambda i, l: steps.append(i))
  assert found.loss == pytest.approx(2.7393846561, abs=5e-7)
  assert found.bound <= 2.7393846561 + 1e-9
  assert 0.0 <= found.gap <= 1e-6
  assert len(steps) <= 20
  assert sensitivity.sensitivity(found.strategy, once(512)) == (
    pytest.approx(1.0, abs=1e-12),
    'exact',
  )
  assert loss(found.strategy, once(512)) == pytest.approx(found.loss)


@pytest.mark.parametrize('objective', OBJECTIVES)
@pytest.mark.parametrize('num_rounds', [1, 2, 3, 33])
def test_one_participation_at_any_size(num_rounds, objective):
  found = dense.solve(once(num_rounds), objective=objective)
  assert found.gap <= 2e-7
  assert loss(found.strategy, once(num_rounds), objective) == pytest.approx(found.loss)
  squares = np.square(found.strategy.coefficients).sum(axis=0)
  np.testing.assert_allclose(squares, 1.0)


def test_equals_a_general_minimiser():
  """Over all C with columns of norm 1, with numerical gradients."""
  size = 6
  lower, queries = np.tril_indices(size), np.tri(size)

  def objective(entries):
    matrix = np.zeros((size, size))
    matrix[lower] = entries
    matrix /= np.linalg.norm(matrix, axis=0)
    return np.linalg.norm(queries @ np.linalg.inv(matrix))

  result = optimize_lib.minimize(objective, np.eye(size)[lower], method='L-BFGS-B', tol=1e-14)
  found = dense.solve(once(size), objective='rms', tolerance=1e-10)
  assert found.loss * math.sqrt(size) == pytest.approx(result.fun, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('signs', [False, True])
def test_many_participations_equal_a_general_minimiser(signs):
  """Over all C, where X may be negative between rounds of a pattern or not."""
  size, schema = 4, schemas.FixedSeparation(num_rounds=4, min_sep=2)
  lower, queries = np.tril_indices(size), np.tri(size)

  def objective(entries):
    matrix = np.zeros((size, size))
    matrix[lower] = entries
    gram = matrix.T @ matrix
    worst = max(gram[i, i] + gram[i + 2, i + 2] + 2.0 * abs(gram[i, i + 2]) for i in range(2))
    return math.sqrt(worst) * np.linalg.norm(queries @ np.linalg.inv(matrix))

  found = dense.solve_multi_epoch(schema, objective='rms', tolerance=1e-10)
  best = math.inf
  for seed in range(4):
    start = triangle(size, seed, 0.5 if signs else 0.0)[lower]
    for _ in range(3):  # The maximum has corners, at which simplices get stuck.
      start = optimize_lib.minimize(
        objective,
        start,
        method='Nelder-Mead',
        options={'maxiter': 4000, 'xatol': 1e-9, 'fatol': 1e-12},
      ).x
    best = min(best, objective(start))
  scale = math.sqrt(size)
  assert best >= found.bound * scale * (1.0 - 1e-9)
  assert best == pytest.approx(found.loss * scale, rel=1e-3)


@pytest.mark.slow
@hypothesis.given(
  st.integers(1, 7),
  st.integers(1, 7),
  st.integers(1, 4),
  st.sampled_from([schemas.MinSep, schemas.FixedSeparation]),
  st.sampled_from(OBJECTIVES),
  st.sampled_from([0.0, 0.9]),
  st.integers(0, 99),
)
def test_nothing_is_better_than_the_bound(n, b, k, cls, objective, beta, seed):
  """Whatever the signs of X, and with vectors for updates."""
  schema = cls(num_rounds=n, min_sep=b, max_participations=k)
  workload = workloads.Workload(beta, cooldown_fraction=0.5)
  strategy = dense_strategies.Dense(triangle(n, seed))
  gap = certificate.optimality_gap(strategy, schema, workload, objective=objective)
  bound = loss(strategy, schema, objective, workload) / math.sqrt(1.0 + gap)
  best = dense.optimize(schema, objective=objective, workload=workload)
  for other in (*(triangle(n, seed + i, 0.3 * i) for i in range(3)), best.coefficients):
    errors = error.error(dense_strategies.Dense(other), n, workload)
    found = errors.rms if objective == 'rms' else errors.max
    assert oracle.worst_of_vectors(other, schema) * found >= bound * (1.0 - 1e-7)


@pytest.mark.parametrize('objective', OBJECTIVES)
@pytest.mark.parametrize('n, b', [(36, 6), (40, 9), (24, 24), (17, 2)])
def test_many_participations(n, b, objective):
  """A device comes back every b rounds until the end."""
  schema = schemas.FixedSeparation(num_rounds=n, min_sep=b)
  found = dense.solve_multi_epoch(schema, objective=objective, tolerance=1e-5)
  assert found.gap <= 1e-3  # of max, where few queries are the worst
  assert loss(found.strategy, schema, objective) == pytest.approx(found.loss)
  assert sensitivity.sensitivity(found.strategy, schema) == (pytest.approx(1.0), 'exact')
  gram = found.strategy.gram_matrix(n)
  for lag in range(b, n, b):
    np.testing.assert_allclose(np.diagonal(gram, lag), 0.0, atol=1e-14)
  alike = dense.solve_multi_epoch(schema, objective=objective, equal_norms=True, tolerance=1e-5)
  squares = np.square(alike.strategy.coefficients).sum(axis=0)
  np.testing.assert_allclose(squares, 1.0 / schema.participations)
  assert alike.loss >= found.bound
  bands = banded.optimize(schemas.MinSep(num_rounds=n, min_sep=b), objective=objective)
  assert loss(bands, schema, objective) >= alike.bound * (1.0 - 1e-9)


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_fewer_participations_than_would_fit(objective):
  schema = schemas.FixedSeparation(num_rounds=40, min_sep=8, max_participations=3)
  strategy = dense.optimize_multi_epoch(schema, objective=objective)
  assert sensitivity.sensitivity(strategy, schema) == (pytest.approx(1.0), 'exact')
  gap = certificate.optimality_gap(strategy, schema, objective=objective)
  assert 0.0 < gap < 0.5
  best = dense.optimize_multi_epoch(
    schemas.FixedSeparation(num_rounds=40, min_sep=8), objective=objective
  )
  assert loss(strategy, schema, objective) < loss(best, schema, objective)


@pytest.mark.slow
@pytest.mark.parametrize('objective', OBJECTIVES)
def test_momentum_and_cooldown_are_worth_optimising_for(objective):
  workload = workloads.Workload(0.95, cooldown_fraction=0.25)
  schema = once(128)
  prefix = dense.optimize(schema, objective=objective)
  found = dense.optimize(schema, objective=objective, workload=workload)
  ours = loss(found, schema, objective, workload)
  assert ours < 0.99 * loss(prefix, schema, objective, workload)
  assert loss(prefix, schema, objective) < loss(found, schema, objective)
  assert dense.solve(schema, objective=objective, workload=workload).gap <= (
    2e-7 if objective == 'rms' else 1e-3
  )


def test_any_queries_will_do_that_tell_rounds_apart():
  generator = np.random.default_rng(0)
  queries = workloads.Matrix(generator.normal(size=(20, 12)))
  found = dense.solve(once(12), objective='rms', workload=queries)
  assert found.gap <= 2e-7
  few = workloads.Matrix(generator.normal(size=(11, 12)))
  for optimize in (dense.optimize, dense.optimize_multi_epoch):
    with pytest.raises(ValueError, match='workload must tell all rounds apart'):
      optimize(once(12), objective='rms', workload=few)
  assert certificate.optimality_gap(identity.Identity(), once(12), few) is None


def test_gaps_of_other_families():
  schema = once(64)
  best = dense.solve(schema, objective='rms', tolerance=1e-10).loss
  for strategy in (identity.Identity(), tree_online.TreeOnline(), blt.BLT([0.97, 0.6], [0.2, 0.4])):
    gap = certificate.optimality_gap(strategy, schema)
    expected = (loss(strategy, schema) / best) ** 2 - 1.0
    assert gap == pytest.approx(expected, rel=1e-6)


def test_no_certificate_for_very_many_rounds():
  schema = once(certificate.MAX_ROUNDS + 1)
  assert certificate.optimality_gap(identity.Identity(), schema) is None


def test_groups_of_rounds():
  schema = schemas.MinSep(num_rounds=7, min_sep=2, max_participations=3)
  chains = factorization.chains(schema)
  assert chains.rounds.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
  tiles = factorization.tiles(schema)
  assert tiles.rounds.tolist() == [[0, 2, 4], [6, 7, 7], [1, 3, 5]]
  assert tiles.order.tolist() == [0, 2, 4, 6, 1, 3, 5]


@pytest.mark.parametrize('optimize', [dense.optimize, dense.optimize_multi_epoch])
def test_refuses_other_arguments(optimize):
  with pytest.raises(ValueError, match="objective must be rms or max, got 'x'"):
    optimize(once(3), objective='x')
  with pytest.raises(ValueError, match='tolerance must be positive'):
    optimize(once(3), objective='rms', tolerance=0.0)
  with pytest.raises(ValueError, match="objective must be rms or max, got 'x'"):
    certificate.optimality_gap(identity.Identity(), once(3), objective='x')
