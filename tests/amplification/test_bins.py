"""Secret bins: the theorem by an adversary, the bound by integration, and what is refused.

Figures are those of `adversaries` and of Gaussians; each wrong way to compute them is exceeded.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import optimize

import fl_dpftrl as dpftrl
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.amplification import accountant, bins, bound
from tests.amplification import adversaries

HALVES = np.array([0.5, 0.5])


def drawn_matrix(rng, n, *, sign=True):
  c = np.tril(rng.normal(size=(n, n))) * rng.uniform(0.3, 1.0)
  c[-1] = np.sign(c[-1]) * rng.uniform(0.4, 0.9, n)  # A last row that smooths what quadrature sees.
  return c if sign else np.abs(c)


@pytest.mark.slow
@pytest.mark.parametrize('absent', [False, True])
def test_no_adversary_exceeds_the_bound_and_each_wrong_bound_is_exceeded(absent):
  rng, refuted = np.random.default_rng(5), dict.fromkeys(('sign', 'none', 'mean', 'one'), 0)
  for k in range(12):
    c = drawn_matrix(rng, 3, sign=k % 3)
    patterns = ((0, 2), (1,)) if k % 4 else ((0, 2), (1, 2))  # Knows which: the last round too.
    chances = HALVES if k % 2 else rng.dirichlet([2, 2])
    epsilon, gram = rng.uniform(0.0, 1.5), adversaries.gram(c, patterns)
    wrong = {
      'sign': adversaries.gram(c, patterns, sign=True),
      'none': np.diag(np.diag(gram)),
      'one': adversaries.gram(c, [rounds[:1] for rounds in patterns]),
    }
    allowed = adversaries.bound(gram, chances, epsilon, absent=absent)
    found = adversaries.best(c, patterns, chances, epsilon, absent=absent, updates=(-1.0, 1.0))
    assert found <= allowed * (1.0 + 1e-3)
    for name, other in wrong.items():
      refuted[name] += found > 1.01 * adversaries.bound(other, chances, epsilon, absent=absent)
    mean = np.array([[chances @ gram @ chances]])
    refuted['mean'] += found > 1.01 * adversaries.bound(mean, [1.0], epsilon, absent=absent)
  if absent:
    del refuted['mean']  # It is too small in the other direction.
  assert min(refuted.values()) >= 2, refuted


@pytest.mark.slow
@pytest.mark.parametrize('absent', [False, True])
def test_four_rounds_in_two_bins_spend_what_is_printed(absent):
  """`account` itself, beside an adversary that adapts to three rows."""
  c = drawn_matrix(np.random.default_rng(1), 4)
  rows = bins.gram(Own(np.abs(c)), dpftrl.SecretBins(4, 2))
  signed = bins.gram(Own(c), dpftrl.SecretBins(4, 2))
  np.testing.assert_array_equal(rows, signed)
  found = adversaries.best(
    c, ((0, 2), (1, 3)), HALVES, 1.0, absent=absent, nodes=20, updates=(-1.0, 1.0)
  )
  assert bound.epsilon(signed, found) >= 1.0 - 1e-4
  wrong = adversaries.gram(c, ((0, 2), (1, 3)), sign=True)
  assert found > 1.01 * adversaries.bound(wrong, HALVES, 1.0, absent=absent)


class Own:
  """What `bins.gram` needs of a strategy."""

  max_rounds, family = None, 'own'

  def __init__(self, c):
    self._c = c

  def num_noise_rows(self, num_rounds):
    return len(self._c)

  def strategy_matrix(self, num_rounds):
    return self._c


def test_an_adversary_that_adapts_needs_the_absolute_values():
  c = np.array([[1.0, 0.0], [-0.7, 1.0]])
  found = adversaries.best(c, ((0,), (1,)), HALVES, 0.5)
  right, wrong = (
    adversaries.bound(adversaries.gram(c, ((0,), (1,)), sign=sign), HALVES, 0.5)
    for sign in (False, True)
  )
  assert found == pytest.approx(right, rel=1e-6) and found > 1.5 * wrong


@pytest.mark.parametrize('delta', [1e-6, 1e-10])
@pytest.mark.parametrize('mu', [0.3, 1.5, 1.8])
def test_one_bin_is_a_gaussian(mu, delta):
  whole = gaussian.epsilon(1.0 / mu, delta)
  assert bound.epsilon(np.array([[mu**2]]), delta) == pytest.approx(whole, rel=1e-9)


def exact(gram, delta, *, most=12.0):
  """ε of two bins, by integration, the larger direction."""

  def excess(epsilon):
    found = max(
      adversaries.bound(gram, HALVES, epsilon, absent=absent, nodes=120) for absent in (False, True)
    )
    return math.log(found / delta)

  return optimize.brentq(excess, 0.0, most)


@pytest.mark.parametrize('square, between, delta', [(2.0, 1.0, 1e-5), (0.2, 0.1, 1e-8)])
def test_two_bins_by_integration(square, between, delta):
  gram = np.array([[square, between], [between, square]])
  right = exact(gram, delta)
  assert right <= bound.epsilon(gram, delta) <= right * 1.001
  assert bound.epsilon(np.diag([square, square]), delta) < right * 0.99


def test_published_pair():
  gram = np.array([[1.5, 1.35], [1.35, 1.5]])
  assert bound.epsilon(gram, 1e-6) == pytest.approx(5.99, abs=0.006)
  assert bound.epsilon(np.diag([1.5, 1.5]), 1e-6) == pytest.approx(5.48, abs=0.01)


# |C|, σ, δ, deterministic ε; n = 2052 and 342 bins.
FIGURES = [
  ('blt-b342-rms', 19.99, 1e-6, 0.739),
  ('blt-b342-rms', 10.55, 1e-6, 1.476),
  ('blt-b342-rms', 3.089, 1e-6, 6.075),
  ('blt-b400', 11.66, 1e-6, 1.587),
  ('blt-b342-rms', 14.32, 1e-10, 1.490),
  ('blt-b342-rms', 3.946, 1e-10, 6.093),
]


@pytest.mark.slow
@pytest.mark.parametrize('name, noise, delta, epsilon', FIGURES)
def test_published_figures(name, noise, delta, epsilon):
  entries = bins.gram(dpftrl.load_strategy(name), dpftrl.SecretBins(2052, 342))
  found = bound.epsilon(entries / noise**2, delta)
  assert epsilon * 0.999 <= found <= epsilon + 5e-4  # Some class sizes are better than theirs.


@pytest.mark.slow
@pytest.mark.parametrize('before, after', [(8, 2.274), (2, 0.0925)])
def test_published_figures_of_the_identity(before, after):
  mu = 1.0 / gaussian.effective_noise_multiplier(before, 1e-6)
  assert bound.epsilon(np.eye(342) * mu**2, 1e-6) == pytest.approx(after, abs=6e-4)


@pytest.mark.slow
def test_published_figure_of_sixteen_bands():
  """ε = 8 without bins. Classes of 24 or 32 bins are worse than those of 28."""
  once = dpftrl.MinSep(2052, max_participations=1)
  strategy = dpftrl.optimize('banded_toeplitz', once, objective='rms', num_bands=16)
  known = dpftrl.calibrate(strategy, dpftrl.FixedSeparation(2052, 342), epsilon=8.0, delta=1e-6)
  entries = bins.gram(strategy, dpftrl.SecretBins(2052, 342)) / known.noise_multiplier**2
  assert 3.67 < bound.epsilon(entries, 1e-6) <= 4.795  # The first is an estimate.


@pytest.mark.parametrize('square, delta', [(0.3, 1e-5), (0.1, 1e-3), (1.0, 1e-2)])
def test_bins_that_are_left_over_join_no_class(square, delta):
  """Five bins a, a, b, b and between: {0, 2} and {1, 3} share nothing, yet the fifth is in play."""
  directions = math.sqrt(square) * np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0.5**0.5, 0.5**0.5]])
  gram = directions @ directions.T

  def excess(epsilon):
    found = adversaries.best(
      np.eye(2), [()] * 5, np.full(5, 0.2), epsilon, fixed=directions.T, nodes=200
    )
    return math.log(found / delta)

  truth = optimize.brentq(excess, 0.0, 8.0)
  joined = bound._Law(0.0, square, 2, delta).epsilon(8.0, absent=False)
  assert joined < 0.98 * truth
  assert bound.epsilon(gram, delta) >= truth
  assert bound._spread(gram, 2)[0] > 0.7 * square  # With those that wrap around.


@pytest.mark.parametrize('seed', range(3))
def test_both_directions_are_covered(seed):
  """Also where bins have different numbers of rounds, or different ones."""
  rows = np.random.default_rng(seed).uniform(0.3, 1.2, (3, 2))
  gram = rows.T @ rows
  assert exact(gram, 1e-4) <= bound.epsilon(gram, 1e-4) * (1.0 + 1e-6)

  def excess(epsilon):
    return math.log(adversaries.bound(gram, HALVES, epsilon, absent=True, nodes=120) / 1e-4)

  assert optimize.brentq(excess, 0.0, 8.0) <= bound.absent_epsilon(gram, 1e-4)


@pytest.mark.parametrize('size', [2, 7])
@pytest.mark.parametrize('absent', [False, True])
def test_transforms_agree_with_fifty_digits(size, absent):
  law = bound._Law(0.4, 0.8, size, 1e-4, grid=64)
  masses, error, _ = law._absent if absent else law._present
  with mpmath.workdps(50):
    one = [mpmath.mpf(float(p)) for p in law._x]
    last = [
      mpmath.mpf(float(p)) for p in law._x * (1.0 if absent else law._step * np.arange(len(one)))
    ]
    for _ in range(size - 1):
      sums = [mpmath.mpf(0)] * 64
      for i, p in enumerate(last):
        for j, q in enumerate(one):
          sums[(i + j) % 64] += p * q
      last = sums
    off = mpmath.sqrt(sum((a - mpmath.mpf(float(b))) ** 2 for a, b in zip(last, masses)))
  assert off <= error + 1e-16 * np.linalg.norm(masses)


def test_gaps_that_do_not_depend_on_the_phase_are_dominated():
  """A uniform phase, then gaps of at least b: no entry of their mean Gram matrix is above bins'."""
  strategy, b, n, rng = dpftrl.load_strategy('blt-b100'), 20, 200, np.random.default_rng(0)
  c = strategy.strategy_matrix(n)
  gaps = np.concatenate([[0], np.cumsum(rng.integers(b, 2 * b, 12))])
  marks = np.zeros((n, b))
  for phase in range(b):
    rounds = phase + gaps
    marks[rounds[rounds < n], phase] = 1.0
  assert ((c @ marks).T @ (c @ marks) <= bins.gram(strategy, dpftrl.SecretBins(n, b))).all()


@pytest.mark.parametrize('name', ['tree_full', 'blt-b100'])
def test_calibrated_noise_meets_epsilon_and_hardly_more(name):
  scheme = dpftrl.SecretBins(64, 8)
  found = dpftrl.calibrate(name, scheme, epsilon=3.0, delta=1e-6)
  assert 3.0 * (1.0 - 1e-3) <= found.epsilon() <= 3.0
  known = dpftrl.MinSep(num_rounds=64, min_sep=8)
  assert (
    found.noise_multiplier < dpftrl.calibrate(name, known, epsilon=3.0, delta=1e-6).noise_multiplier
  )
  again = dpftrl.account(name, scheme, noise_multiplier=found.noise_multiplier, delta=1e-6)
  assert again == found and again.epsilon() == found.epsilon()


def test_what_a_guarantee_says():
  found = dpftrl.account(
    'identity', dpftrl.SecretBins(64, 8), noise_multiplier=4.0, delta=[1e-6, 1e-8]
  )
  assert (found.rho, found.mu, found.method, found.adjacency) == (None, None, 'bound', 'zero_out')
  assert found.epsilon() == found.epsilon(1e-6) < found.epsilon(1e-8)
  assert math.isclose(found.sensitivity, math.sqrt(8.0), rel_tol=1e-9)
  lines = ' '.join(found.assumptions)
  stated = ('8 bins', 'report goal', 'divisor is a constant', 'secret for ever', 'this run alone')
  assert all(words in lines for words in stated)
  with pytest.raises(ValueError, match='no event'):
    found.to_dp_event()


@pytest.mark.parametrize(
  'change, words',
  [
    ({'adjacency': 'replace_one'}, 'no bound is known'),
    ({'adjacency': 'add_or_remove'}, 'no bound is known'),
    ({'group_size': 2}, 'bounds no group'),
    ({'num_coordinates': 10}, 'rounding of whole numbers'),
    ({'method': 'guess'}, 'method must be one of'),
    ({'noise_multiplier': 0.0}, 'noise_multiplier must be positive'),
  ],
)
def test_a_wrong_way_is_refused(change, words):
  options = {'noise_multiplier': 4.0, 'delta': 1e-6, **change}
  with pytest.raises(ValueError, match=words):
    accountant.account('identity', dpftrl.SecretBins(64, 8), **options)


@pytest.mark.parametrize(
  'num_rounds, num_bins, words', [(8, 9, 'more than 8'), (8, 0, 'at least 1'), (9000, 5000, '4096')]
)
def test_more_bins_than_rounds_are_refused(num_rounds, num_bins, words):
  with pytest.raises(ValueError, match=words):
    dpftrl.SecretBins(num_rounds, num_bins)


def test_more_rounds_than_the_strategy_has_are_refused():
  options = {'noise_multiplier': 4.0, 'delta': 1e-6}
  with pytest.raises(ValueError, match='num_rounds'):
    dpftrl.account(dpftrl.Banded([[1.0]] * 8), dpftrl.SecretBins(9, 3), **options)
  with pytest.raises(ValueError, match='too large'):
    dpftrl.account('identity', dpftrl.SecretBins(50_000, 3), **options)
  with pytest.raises(ValueError, match='rho'):
    dpftrl.calibrate('identity', dpftrl.SecretBins(64, 8), rho=1.0, delta=1e-6)
