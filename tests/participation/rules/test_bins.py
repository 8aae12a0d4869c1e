"""Secret bins: the theorem by an adversary, the bound by integration, and what is refused.

Figures are those of `adversaries` and of Gaussians; each wrong way to compute them is exceeded.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import optimize

import fl_dpftrl as dpftrl
from fl_dpftrl.participation import accountant, bins
from fl_dpftrl.participation.accounting import bound, gaussian
from tests import made
from tests.participation.rules import adversaries

HALVES = np.array([0.5, 0.5])


def printed(c, delta):
  """ε of two bins, as `account` prints it."""
  scheme = dpftrl.SecretBins(len(c), 2)
  return dpftrl.account(dpftrl.Dense(c), scheme, noise_multiplier=1.0, delta=delta).epsilon()


@pytest.mark.slow
def test_no_adversary_exceeds_what_is_printed_and_each_wrong_gram_is_exceeded():
  """It adapts to 2 or 3 rows and knows its bin; C is non-negative in every third case."""
  rng, refuted = np.random.default_rng(5), dict.fromkeys(('sign', 'none', 'one', 'mean'), 0)
  for k in range(6):
    n = 3 if k else 4
    c = np.tril(rng.normal(size=(n, n))) * rng.uniform(0.3, 1.0)
    c[-1] = np.sign(c[-1]) * rng.uniform(0.4, 0.9, n)  # It smooths what quadrature sees.
    np.fill_diagonal(c, np.abs(np.diagonal(c)) + 0.1)
    c = c if k % 3 else np.abs(c)
    epsilon, patterns = rng.uniform(0.4, 1.5), [range(i, n, 2) for i in range(2)]
    found = [
      adversaries.best(
        c, patterns, HALVES, epsilon, absent=absent, nodes=30 if k else 16, updates=(-1.0, 1.0)
      )
      for absent in (False, True)
    ]
    for delta in found:
      assert epsilon * (1.0 - 1e-3) <= printed(c, delta)
    gram = adversaries.gram(c, patterns)
    wrong = {
      'sign': np.maximum(adversaries.gram(c, patterns, sign=True), 0.0),
      'none': np.diag(np.diag(gram)),
      'one': adversaries.gram(c, [rounds[:1] for rounds in patterns]),
      'mean': np.array([[gram.mean()]]),
    }
    for name, other in wrong.items():
      refuted[name] += bound.epsilon(other, max(found)) < 0.99 * epsilon
  assert min(refuted.values()) >= 2, refuted


def test_an_adversary_that_adapts_needs_the_absolute_values():
  c, patterns = np.array([[1.0, 0.0], [-0.7, 1.0]]) / 0.8, ((0,), (1,))
  found = adversaries.best(c, patterns, HALVES, 0.5)
  signed = adversaries.bound(adversaries.gram(c, patterns, sign=True), HALVES, 0.5)
  assert (found, signed) == (pytest.approx(0.3395, abs=5e-4), pytest.approx(0.2480, abs=5e-4))
  assert printed(c, found) >= 0.5


@pytest.mark.parametrize('delta, whole', [(1e-6, 9.0509), (1e-10, 11.8443)])
def test_one_bin_is_a_gaussian(delta, whole):
  gram = np.array([[1.7**2]])
  assert bound.epsilon(gram, delta) == pytest.approx(whole, abs=5e-5)


def test_bins_that_share_their_rounds_are_not_amplified():
  """As where phases squeeze into one round in six, at night."""
  square = gaussian.effective_noise_multiplier(13.86, 1e-6) ** -2
  assert bound.epsilon(np.full((6, 6), square), 1e-6) == pytest.approx(13.86, rel=1e-9)
  assert bound.epsilon(square * np.eye(6), 1e-6) < 12.9


def exact(gram, delta, *, most=12.0):
  """ε of two bins, by integration, the larger direction."""

  def excess(epsilon):
    found = max(
      adversaries.bound(gram, HALVES, epsilon, absent=absent, nodes=120) for absent in (False, True)
    )
    return math.log(found / delta)

  return optimize.brentq(excess, 0.0, most)


@pytest.mark.parametrize(
  'between, delta, right, dropped',
  [(0.6, 1e-4, 4.24149, 0.985), (0.6, 1e-8, 6.57457, 0.999), (1.35, 1e-6, 5.993, 0.92)],
)
def test_two_bins_by_integration(between, delta, right, dropped):
  """Published figures; correlations that are dropped fall short of them."""
  gram = np.array([[1.5, between], [between, 1.5]])
  assert bound.epsilon(gram, delta) == pytest.approx(right, abs=5e-5)
  assert bound.epsilon(1.5 * np.eye(2), delta) < dropped * right


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


def test_published_figure_of_the_tree():
  """The closed form of the device's absence, at the noise that has ε = 8 without bins."""
  known = dpftrl.calibrate('tree_full', dpftrl.MinSep(2052, 342), epsilon=8.0, delta=1e-6)
  entries = bins.gram(dpftrl.load_strategy('tree_full'), dpftrl.SecretBins(2052, 342))
  found = bound.absent_epsilon(entries / known.noise_multiplier**2, 1e-6)
  assert (known.noise_multiplier, found) == pytest.approx((7.09, 6.443), rel=5e-4)


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
  assert (found.rho, found.mu, found.adjacency) == (None, None, 'zero_out')
  assert found.epsilon() == found.epsilon(1e-6) < found.epsilon(1e-8)
  assert math.isclose(found.sensitivity, math.sqrt(8.0), rel_tol=1e-9)
  lines = ' '.join(found.assumptions)
  stated = ('8 bins', 'report goal', 'divisor is a constant', 'secret for ever', 'only this run')
  assert all(words in lines for words in stated)
  with pytest.raises(ValueError, match='no event'):
    found.to_dp_event()


@made.cases(
  'change, words',
  ({'adjacency': 'replace_one'}, 'no bound is known'),
  ({'adjacency': 'add_or_remove'}, 'no bound is known'),
  ({'group_size': 2}, 'bounds no group'),
  ({'num_coordinates': 10}, 'rounding of whole numbers'),
  ({'noise_multiplier': 0.0}, 'noise_multiplier must be positive'),
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


@pytest.mark.parametrize('entry', [0.1, 150.0, 1e3, 1e6, 1e12, 1e100, 1e300])
@pytest.mark.parametrize('share', [0.0, 0.5, 1.0])
def test_epsilon_is_computed_for_a_gram_of_any_size(entry, share):
  """It is at most that of a bin that is known, and hardly less where noise is nothing."""
  gram = entry * (np.eye(20) * (1.0 - share) + share)
  for delta in (1e-6, 1e-300):
    known = gaussian.epsilon((1.0 - 1e-12) / math.sqrt(entry), delta)
    found = bound.epsilon(gram, delta)
    assert found <= known and (entry < 1e3 or found == known)
