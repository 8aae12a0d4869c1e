"""Every family against every pattern and vector updates, for few rounds."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import participation, sensitivity
from fl_dpftrl.families import (
  banded,
  banded_inverse,
  banded_toeplitz,
  blt,
  dense,
  identity,
  lambda_cgd,
  low_rank,
  registry,
  stamped,
  tree_full,
  tree_online,
)


def _lower(rng, n, low):
  """A lower-triangular matrix with a positive diagonal."""
  matrix = np.tril(rng.uniform(low, 1.0, (n, n)))
  matrix[np.diag_indices(n)] = rng.uniform(0.3, 1.5, n)
  return matrix


def _banded(rng, n):
  bands = rng.integers(1, n + 1)
  matrix = _lower(rng, n, rng.choice([-1.0, 0.0]))
  coefficients = np.zeros((n, bands))
  for j in range(bands):
    coefficients[j:, j] = np.diagonal(matrix, -j)
  return banded.Banded(coefficients)


def _blt(rng, n):
  del n
  size = rng.integers(1, 4)
  scales = rng.uniform(0.0, 1.0, size)
  return blt.BLT(rng.uniform(1e-3, 0.999, size), scales / max(1.0, 1.0001 * scales.sum()))


def _toeplitz(rng, n):
  low = rng.choice([-1.0, 0.0])
  coefficients = rng.uniform(low, 1.0, rng.integers(1, n + 3))
  coefficients[0] = rng.uniform(0.3, 1.5)
  if rng.random() < 0.3:
    coefficients = np.sort(np.abs(coefficients))[::-1]
  normalized = n + rng.integers(0, 3) if rng.random() < 0.5 else None
  return banded_toeplitz.BandedToeplitz(coefficients, normalized)


def _banded_inverse(rng, n):
  column = rng.uniform(-0.5, rng.choice([0.0, 0.5]), rng.integers(1, n + 2))
  column[0] = rng.uniform(0.5, 1.5)
  return banded_inverse.BandedInverse(column)


def _low_rank(rng, n):
  near = np.zeros((n, rng.integers(1, n + 1)))
  for j in range(near.shape[1]):
    near[j:, j] = np.diagonal(_lower(rng, n, -0.5), -j)
  rank = rng.integers(1, 3)
  return low_rank.LowRank(
    near, rng.uniform(-0.3, 0.3, (n, rank)), rng.uniform(-0.3, 0.3, (n, rank))
  )


def _stamped(rng, n):
  inner = rng.choice([name for name in sorted(EXAMPLES) if name != 'stamped'])
  strategy = EXAMPLES[inner](rng, n)
  most = n if strategy.max_rounds is None else strategy.max_rounds
  return stamped.Stamped(strategy, int(rng.integers(1, min(n, most) + 1)))


EXAMPLES = {
  'banded': _banded,
  'lambda_cgd': lambda rng, n: lambda_cgd.LambdaCGD(rng.choice([0.0, rng.uniform(), 1.0])),
  'banded_inverse': _banded_inverse,
  'banded_toeplitz': _toeplitz,
  'blt': _blt,
  'dense': lambda rng, n: dense.Dense(_lower(rng, n, rng.choice([-1.0, 0.0]))),
  'low_rank': _low_rank,
  'identity': lambda rng, n: identity.Identity(),
  'stamped': _stamped,
  'tree_full': lambda rng, n: tree_full.TreeFull(
    rng.choice([None, n, n + int(rng.integers(1, 9))])
  ),
  'tree_online': lambda rng, n: tree_online.TreeOnline(rng.choice([None, n])),
}


def test_there_is_an_example_of_every_family():
  assert set(EXAMPLES) == set(registry.FAMILIES)


@st.composite
def schemas(draw, cls):
  num_rounds = draw(st.integers(1, 10))
  min_sep = draw(st.integers(1, num_rounds + 1))
  most = draw(st.one_of(st.none(), st.integers(1, num_rounds + 1)))
  return cls(num_rounds=num_rounds, min_sep=min_sep, max_participations=most)


@pytest.mark.parametrize('family', sorted(registry.FAMILIES))
@pytest.mark.parametrize('cls', [participation.MinSep, participation.FixedSeparation])
@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=40)
def test_sensitivity_is_what_it_says(brute, family, cls, data):
  schema = data.draw(schemas(cls))
  rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
  strategy = EXAMPLES[family](rng, schema.num_rounds)
  result = sensitivity.sensitivity(strategy, schema)
  matrix = strategy.strategy_matrix(schema.num_rounds)
  truth = brute.worst_of_vectors(matrix, schema)
  if result.kind == sensitivity.EXACT:
    assert result.value == pytest.approx(truth, rel=1e-5)
  # Ascent may stop short of the truth, but never goes beyond it.
  if result.kind in (sensitivity.EXACT, sensitivity.UPPER_BOUND):
    assert result.value >= truth * (1.0 - 1e-10)
  else:
    assert result.value <= truth * (1.0 + 1e-5)


@pytest.mark.parametrize('family', sorted(registry.FAMILIES))
@hypothesis.given(st.integers(1, 10), st.integers(0, 10**6))
@hypothesis.settings(deadline=None, max_examples=25)
def test_gram_entries_are_those_of_the_matrix(family, num_rounds, seed):
  strategy = EXAMPLES[family](np.random.default_rng(seed), num_rounds)
  matrix = strategy.strategy_matrix(num_rounds)
  expected = matrix.T @ matrix
  rounds = np.arange(num_rounds)
  entries = sensitivity.gram_entries(strategy, num_rounds)
  tolerance = {'rtol': 1e-10, 'atol': 1e-12 * np.abs(expected).max()}
  np.testing.assert_allclose(entries(rounds[:, None], rounds), expected, **tolerance)
  np.testing.assert_allclose(sensitivity.gram_matrix(strategy, num_rounds), expected, **tolerance)


@pytest.mark.parametrize('family', sorted(registry.FAMILIES))
@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=20)
def test_observed_patterns_are_what_they_say(brute, family, data):
  schema = data.draw(schemas(participation.MinSep))
  rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
  strategy = EXAMPLES[family](rng, schema.num_rounds)
  gram = strategy.strategy_matrix(schema.num_rounds)
  gram = gram.T @ gram
  every = brute.patterns(schema)
  chosen = [every[i] for i in rng.integers(0, len(every), 5)] + [()]
  values, kind = sensitivity.pattern_sensitivity(strategy, schema.num_rounds, chosen)
  truth = np.sqrt([brute.ascent(gram[np.ix_(p, p)]) if p else 0.0 for p in chosen])
  assert (values >= truth * (1.0 - 1e-10)).all()
  if kind == sensitivity.EXACT:
    np.testing.assert_allclose(values, truth, rtol=1e-5)
