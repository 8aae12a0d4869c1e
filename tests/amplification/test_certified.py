"""Certified ε: beside integration and PLD, and claims that are false."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

import fl_dpftrl as dpftrl
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.amplification import bins, bound, certified, sampled_gaussian
from tests.amplification import adversaries

HALVES = np.array([0.5, 0.5])
PAIR = np.array([[1.0, 0.6], [0.6, 1.2]])


def generators(seed):
  return (np.random.default_rng([seed, part]) for part in range(2))


def delta_of(gram, epsilon, *, absent=False):
  return adversaries.bound(gram, HALVES, epsilon, absent=absent, nodes=120)


@pytest.mark.parametrize('epsilon', [1.5, 3.0])
@pytest.mark.parametrize('absent', [False, True])
def test_values_are_unbiased_and_bounded(epsilon, absent):
  """At the ε of the proposal and beside it."""
  gram = certified.enlarged(PAIR)
  make = certified.absent if absent else certified.present
  proposal = make(gram, HALVES, epsilon)
  logs = proposal.draw(np.random.default_rng(0), 200_000)
  for at in (epsilon, 1.1 * epsilon):
    values = proposal.values(logs, at)
    truth = delta_of(PAIR, at, absent=absent)
    assert abs(values.mean() - truth) < 5.0 * values.std() / math.sqrt(len(values))
    assert values.min() >= 0.0 and values.max() <= math.exp(proposal.log_bound(at)) * (1.0 + 1e-6)


@pytest.mark.parametrize('absent', [False, True])
def test_false_claims_are_accepted_no_more_than_said(absent):
  """1,000 claims that are 0.1 % too small; the estimate itself would accept half of them."""
  beta, epsilon, count = 0.05, 2.0, 2000
  proposal = (certified.absent if absent else certified.present)(PAIR, HALVES, epsilon)
  claim = 0.999 * delta_of(PAIR, epsilon, absent=absent)
  known = proposal.draw(np.random.default_rng(1), 20_000)
  bet = certified._bet(proposal, known, epsilon, 1.05 * claim)  # One that true claims would win.
  rng, won, estimated = np.random.default_rng(2), 0, 0
  for _ in range(1000):
    values = proposal.values(proposal.draw(rng, count), epsilon)
    won += certified.accepted(values, claim, beta, bet)
    estimated += values.mean() <= claim
  assert stats.binomtest(won, 1000, beta, alternative='greater').pvalue > 1e-4
  assert estimated > 350
  values = proposal.values(proposal.draw(rng, 20 * count), epsilon)
  assert certified.accepted(values, 1.2 * claim, beta, bet)


@pytest.mark.parametrize('seed', range(2))
def test_certified_is_above_the_truth_and_near(seed):
  delta = 1e-4
  excess = lambda e: math.log(max(delta_of(PAIR, e, absent=a) for a in (False, True)) / delta)
  truth = optimize.brentq(excess, 0.1, 8.0)
  most = bound.epsilon(PAIR, delta)
  found = certified.certified(PAIR, HALVES, delta, 1e-7, 2.0 * most, 100_000, *generators(seed))
  assert truth <= found <= 1.03 * truth
  dropped = np.diag(np.diag(PAIR))  # Correlations of bins are needed.
  assert certified.approximate(dropped, delta, 2.0 * most) < 0.98 * truth


@pytest.mark.parametrize('delta', [1e-6, 1e-10])
def test_three_rounds_in_two_bins(delta):
  """Beside integration, which each wrong way to compute it falls short of."""
  c = np.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]) / 1.1
  patterns = ((0, 2), (1,))
  gram = adversaries.gram(c, patterns)
  deltas = lambda e: [delta_of(gram, e, absent=absent) for absent in (False, True)]
  root = lambda of: optimize.brentq(lambda e: math.log(max(of(e), 1e-300) / delta), 0.1, 11.0)
  truth = root(lambda e: max(deltas(e)))
  most = 1.3 * truth
  found = certified.certified(gram, HALVES, delta, 1e-3 * delta, most, 200_000, *generators(1))
  assert truth <= found <= 1.02 * truth
  alone = root(lambda e: deltas(e)[1])
  mean = gaussian.epsilon(float(HALVES @ gram @ HALVES) ** -0.5, delta)
  one = gaussian.epsilon(1.0 / np.linalg.norm(c, axis=0).max(), delta)
  banded = sampled_gaussian.epsilon(
    1.0 / np.linalg.norm(c, axis=0).max(), delta, probability=0.5, count=2
  )
  assert max(alone, mean, one, banded) < 0.9 * truth


@pytest.mark.parametrize('delta', [1e-6, 1e-10])
def test_poisson_within_a_part_of_banded_noise(delta):
  """Rounds 0 and 2 of a part share no row of C, so their PLD composes."""
  q, noise = 0.3, 0.9
  c = np.eye(4) + 0.5 * np.eye(4, k=-1)
  patterns, chances = ((), (0,), (2,), (0, 2)), np.array([(1 - q) ** 2, q - q**2, q - q**2, q**2])
  gram = adversaries.gram(c / noise, patterns)
  truth = sampled_gaussian.epsilon(noise / 1.25**0.5, delta, probability=q, count=2)
  gram = certified.enlarged(gram)
  proposal = certified.present(gram, chances, truth)
  found = certified._descend(proposal, delta, 1e-3 * delta, 2.0 * truth, 200_000, *generators(2))
  assert truth * (1.0 - 1e-6) <= found <= 1.02 * truth
  one = sampled_gaussian.epsilon(noise, delta, probability=q, count=2)
  assert one < 0.97 * truth


@pytest.mark.slow
def test_eight_poisson_rounds_by_256_patterns():
  """DP-SGD, whose PLD is known; samples whose patterns have chances p_i see little of the loss."""
  q, noise, delta = 0.3, 0.8, 1e-6
  patterns = (np.arange(256)[:, None] >> np.arange(8)) & 1
  chances = np.prod(np.where(patterns, q, 1.0 - q), axis=1)
  gram = certified.enlarged(patterns @ patterns.T / noise**2)
  truth = sampled_gaussian.epsilon(noise, delta, probability=q, count=8)
  proposal = certified.present(gram, chances, truth)
  logs = proposal.draw(np.random.default_rng(0), 50_000)
  assert certified.estimate(proposal, logs, delta, 2.0 * truth) == pytest.approx(truth, rel=0.02)
  rng = np.random.default_rng(0)
  which = rng.choice(256, 50_000, p=chances)
  h = rng.standard_normal((50_000, 256)) @ np.linalg.cholesky(gram).T + gram[which]
  loss = certified._log_mean(h + (np.log(chances) - 0.5 * gram.diagonal()))
  assert np.maximum(1.0 - np.exp(truth - loss), 0.0).mean() < 0.5 * delta


@pytest.mark.slow
@pytest.mark.parametrize(
  'row',
  [
    ('blt-b342-rms', 14.32, 1e-10, 1.304),
    pytest.param(('blt-b342-rms', 19.99, 1e-6, 0.645), marks=pytest.mark.thorough),
    pytest.param(('blt-b342-rms', 3.089, 1e-6, 5.112), marks=pytest.mark.thorough),
    pytest.param(('blt-b400', 11.66, 1e-6, 1.419), marks=pytest.mark.thorough),
    pytest.param(('tree_full', 7.09, 1e-6, 6.03), marks=pytest.mark.thorough),
    pytest.param(('blt-b342-rms', 3.946, 1e-10, 5.195), marks=pytest.mark.thorough),
  ],
)
def test_published_estimates(row):
  name, noise, delta, epsilon = row
  entries = bins.gram(dpftrl.load_strategy(name), dpftrl.SecretBins(2052, 342)) / noise**2
  found = certified.approximate(entries, delta, bound.epsilon(entries, delta))
  assert found == pytest.approx(epsilon, rel=0.01)


@pytest.mark.slow
def test_published_certificate():
  """The Monte Carlo estimate and the certificate of a BLT that has ε = 2 without bins."""
  scheme = dpftrl.SecretBins(2052, 342)
  entries = bins.gram(dpftrl.load_strategy('blt-b342-rms'), scheme) / 10.55**2
  most = bound.epsilon(entries, 1e-6)
  assert certified.approximate(entries, 1e-6, most) == pytest.approx(1.283, rel=0.01)
  found = certified.certificate(entries, 1e-6, most=most, num_samples=60_000)[0]
  assert 1.281 < found < 1.38 < most


def test_account_certifies_and_says_so():
  scheme, options = dpftrl.SecretBins(48, 6), {'noise_multiplier': 4.0, 'delta': 1e-5}
  plain = dpftrl.account('tree_full', scheme, **options)
  found = dpftrl.account('tree_full', scheme, method='certified', num_samples=50_000, **options)
  assert found.epsilon() < plain.epsilon() and found.epsilon() == found.epsilon()
  shown = found.to_json()
  assert (shown['method'], shown['tries'], shown['num_samples']) == ('certified', 1, 50_000)
  assert 0.0 < shown['beta'] <= 0.5e-8 and len(shown['coins']) == 64
  again = dpftrl.account(
    'tree_full', scheme, method='certified', num_samples=50_000, tries=2, **options
  ).to_json()
  assert again['beta'] < shown['beta'] and again['coins'] != shown['coins']
  assert any('too small with probability beta' in sentence for sentence in found.assumptions)


def test_calibrated_noise_is_certified_or_that_of_the_bound():
  options = {'epsilon': 3.0, 'delta': 1e-5}
  scheme = dpftrl.SecretBins(48, 6)
  plain = dpftrl.calibrate('tree_full', scheme, **options)
  found = dpftrl.calibrate('tree_full', scheme, method='certified', num_samples=50_000, **options)
  assert found.epsilon() <= 3.0 and found.method == 'certified'
  assert 0.8 * plain.noise_multiplier < found.noise_multiplier < plain.noise_multiplier


@pytest.mark.parametrize(
  'change, words',
  [
    ({'delta': [1e-5, 1e-6]}, 'a certificate is of one'),
    ({'num_samples': 0}, 'num_samples must be at least 1'),
    ({'tries': 0}, 'tries must be at least 1'),
    ({'method': 'bound', 'tries': 2}, "go with method 'certified'"),
  ],
)
def test_a_wrong_certificate_is_refused(change, words):
  options = {'noise_multiplier': 4.0, 'delta': 1e-5, 'method': 'certified', **change}
  with pytest.raises(ValueError, match=words):
    dpftrl.account('identity', dpftrl.SecretBins(8, 2), **options).epsilon()
