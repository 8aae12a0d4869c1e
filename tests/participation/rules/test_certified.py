"""Certified ε: beside integration and PLD, and claims that are false."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

import fl_dpftrl as dpftrl
from fl_dpftrl.participation import bins
from fl_dpftrl.participation.accounting import bound, certified, gaussian, sampled_gaussian
from tests.participation.rules import adversaries

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


@pytest.mark.slow
def test_whole_certificates_are_too_small_no_more_often_than_said(monkeypatch):
  """80 of them, with β = 0.05; claims of the mean itself are too small in half."""
  monkeypatch.setattr(certified, '_PILOT', 1000)
  monkeypatch.setattr(certified, '_STEPS', np.geomspace(1.06, 0.985, 60))
  beta, delta = 0.05, 1e-2
  excess = lambda e: math.log(max(delta_of(PAIR, e, absent=a) for a in (False, True)) / delta)
  truth = optimize.brentq(excess, 0.1, 8.0)
  found = lambda seed: certified.certified(
    PAIR, HALVES, delta, beta, 2.0 * truth, 1000, *generators(seed)
  )
  ratios = np.array([found(seed) for seed in range(80)]) / truth
  low = int((ratios < 1.0).sum())
  assert stats.binomtest(low, 80, beta, alternative='greater').pvalue > 1e-4
  assert np.median(ratios) < 1.03
  monkeypatch.setattr(certified, 'accepted', lambda values, d, *_: values.mean() <= d)
  low = sum(found(seed) < truth for seed in range(20))
  assert stats.binomtest(low, 20, beta, alternative='greater').pvalue < 1e-4


def test_moments_of_the_likelihood_ratio_are_closed_forms_and_rise_with_the_gram():
  """E_Q L^α for α = 2 and 3 by samples, with bins of unequal chances."""
  p, rows = np.array([0.5, 0.3, 0.2]), np.random.default_rng(3).uniform(0.2, 0.6, (3, 3))
  gram, before = rows.T @ rows, (0.0, 0.0)
  for larger in (gram, gram + 0.15):
    logs = certified.present(certified.enlarged(larger), p, 1.0).draw(
      np.random.default_rng(0), 100_000
    )
    e = np.exp(larger)
    exact = p @ e @ p, np.einsum('i,j,k,ij,ik,jk', p, p, p, e, e, e)
    for alpha, right, less in zip((2, 3), exact, before):
      values = np.exp(alpha * logs[0] - logs[1])
      off = 5.0 * values.std() / math.sqrt(len(values))
      assert abs(values.mean() - right) < off < 0.03 * right and less + off < values.mean()
    before = exact


@pytest.mark.parametrize('absent', [False, True])
def test_larger_entries_and_what_is_revealed_never_lower_delta(absent):
  """By samples of three bins, beside the integral for two of them."""
  make = certified.absent if absent else certified.present

  def delta(gram, p, epsilon=1.2):
    proposal = make(certified.enlarged(gram), p, epsilon)
    values = proposal.values(proposal.draw(np.random.default_rng(0), 50_000), epsilon)
    return values.mean(), 4.0 * values.std() / math.sqrt(len(values))

  gram, p = 0.2 + np.diag([0.9, 0.7, 0.8]), np.array([0.3, 0.3, 0.4])
  (whole, off), pair = delta(gram, p), delta(gram[:2, :2], HALVES)
  assert abs(pair[0] - delta_of(gram[:2, :2], 1.2, absent=absent)) < pair[1]
  revealed = 0.6 * pair[0] + 0.4 * delta_of(
    gram[2:, 2:].repeat(2, 0).repeat(2, 1), 1.2, absent=absent
  )
  assert whole + off < revealed - pair[1]
  for more in (np.full((3, 3), 0.2), np.diag([0.0, 0.3, 0.3])):
    assert sum(delta(gram + more, p) * np.array([1.0, -1.0])) > whole + off


def test_three_rounds_in_two_bins():
  """Beside integration, which each wrong way to compute it falls short of."""
  c, delta = np.array([[1.0, 0.0, 0.0], [0.6, 1.0, 0.0], [0.3, 0.6, 1.0]]) / 1.1, 1e-6
  patterns = ((0, 2), (1,))
  gram = adversaries.gram(c, patterns)
  root = lambda g, absent: optimize.brentq(
    lambda e: math.log(max(delta_of(g, e, absent=absent), 1e-300) / delta), 0.1, 11.0
  )
  truth = root(gram, False)
  assert truth == pytest.approx(7.4402, abs=5e-5)
  found = certified.certified(gram, HALVES, delta, 1e-9, 10.0, 200_000, *generators(1))
  assert truth <= found <= 1.01 * truth and truth <= bound.epsilon(gram, delta)
  column = 1.0 / np.linalg.norm(c, axis=0).max()
  wrong = [
    gaussian.epsilon(float(HALVES @ gram @ HALVES) ** -0.5, delta),  # mean Gram
    root(gram, True),  # `absent` alone
    root(adversaries.gram(c, ((0,), (1,))), False),  # one participation
    sampled_gaussian.epsilon(column, delta, probability=0.5, count=1),  # Poisson, as if banded
  ]
  assert wrong == pytest.approx([6.12, 5.63, 4.80, 4.58], rel=4e-3)


def test_poisson_within_a_part_of_banded_noise():
  """Rounds 0, 2, 4 and 6 of a part share no row of C, so their PLD composes."""
  q, noise, delta = 0.3, 1.2, 1e-6
  c, drawn = np.eye(8) + 0.5 * np.eye(8, k=-1), list(itertools.product((0, 1), repeat=4))
  patterns = [[2 * t for t in range(4) if mark[t]] for mark in drawn]
  chances = np.array([math.prod(q if x else 1.0 - q for x in mark) for mark in drawn])
  gram = certified.enlarged(adversaries.gram(c / noise, patterns))
  truth = sampled_gaussian.epsilon(noise / 1.25**0.5, delta, probability=q, count=4)
  assert truth == pytest.approx(4.989, abs=5e-4)
  proposal = certified.present(gram, chances, truth)
  found = certified._descend(proposal, delta, 1e-9, 2.0 * truth, 100_000, *generators(2))
  assert truth * (1.0 - 1e-6) <= found <= 1.02 * truth
  assert sampled_gaussian.epsilon(noise, delta, probability=q, count=4) < 0.97 * truth


@pytest.mark.slow
@pytest.mark.parametrize(
  'delta, truth, most, seen', [(1e-5, 4.582, 4.9, math.inf), (1e-8, 6.981, 9.0, 0.5)]
)
def test_eight_poisson_rounds_by_256_patterns(delta, truth, most, seen):
  """DP-SGD, whose PLD is known; samples whose patterns have chances p_i see little of the loss."""
  q, rng = 0.2, np.random.default_rng(0)
  assert sampled_gaussian.epsilon(1.0, delta, probability=q, count=8) == pytest.approx(
    truth, abs=2e-3
  )
  patterns = (np.arange(256)[:, None] >> np.arange(8)) & 1
  chances = np.prod(np.where(patterns, q, 1.0 - q), axis=1)
  gram = certified.enlarged(patterns @ patterns.T.astype(float))
  proposal = certified.present(gram, chances, truth)
  logs = proposal.draw(rng, 20_000)
  assert certified.estimate(proposal, logs, delta, 2.0 * truth) == pytest.approx(truth, rel=0.02)
  found = certified._descend(proposal, delta, 1e-3 * delta, most, 30_000, *generators(3))
  assert truth - 1e-3 < found <= most
  which = rng.choice(256, 20_000, p=chances)
  h = rng.standard_normal((20_000, 256)) @ np.linalg.cholesky(gram).T + gram[which]
  loss = certified._log_mean(h + (np.log(chances) - 0.5 * gram.diagonal()))
  assert np.maximum(1.0 - np.exp(truth - loss), 0.0).mean() < seen * delta


@pytest.mark.slow
@pytest.mark.parametrize('row', [
  ('blt-b342-rms', 14.32, 1e-10, 1.304),
  pytest.param(('blt-b342-rms', 19.99, 1e-6, 0.645), marks=pytest.mark.thorough),
  pytest.param(('blt-b342-rms', 3.089, 1e-6, 5.112), marks=pytest.mark.thorough),
  pytest.param(('blt-b400', 11.66, 1e-6, 1.419), marks=pytest.mark.thorough),
  pytest.param(('tree_full', 7.09, 1e-6, 6.03), marks=pytest.mark.thorough),
  pytest.param(('blt-b342-rms', 3.946, 1e-10, 5.195), marks=pytest.mark.thorough),
])  # fmt: skip
def test_published_estimates(row):
  name, noise, delta, epsilon = row
  entries = bins.gram(dpftrl.load_strategy(name), dpftrl.SecretBins(2052, 342)) / noise**2
  found = certified.approximate(entries, delta, bound.epsilon(entries, delta))
  assert found == pytest.approx(epsilon, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize('name, noise, estimate, most', [
  pytest.param('blt-b342-rms', 10.55, 1.283, 1.45, marks=pytest.mark.thorough),
  pytest.param('blt-b400', 11.66, 1.419, 1.50, marks=pytest.mark.thorough),
])  # fmt: skip
def test_published_certificates(name, noise, estimate, most):
  """Of fewer samples than the published 1.290 and 1.425: above the estimate all the same."""
  scheme = dpftrl.SecretBins(2052, 342)
  entries = bins.gram(dpftrl.load_strategy(name), scheme) / noise**2
  proven = bound.epsilon(entries, 1e-6)
  found = certified.certificate(entries, 1e-6, most=proven, num_samples=30_000)[0]
  assert estimate * 0.998 < found < most < proven


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
  found = dpftrl.calibrate('tree_full', scheme, method='certified', num_samples=20_000, **options)
  assert found.epsilon() <= 3.0 and found.method == 'certified'
  assert 0.8 * plain.noise_multiplier < found.noise_multiplier < plain.noise_multiplier
  failed = dpftrl.calibrate('tree_full', scheme, method='certified', num_samples=10, **options)
  assert failed.assumptions[:-1] == plain.assumptions and failed.to_json() == plain.to_json()
  assert failed.assumptions[-1][1:] == ' certificates failed and count as tries of this run'


@pytest.mark.parametrize('change, words', [
  ({'delta': [1e-5, 1e-6]}, 'a certificate is of one'),
  ({'num_samples': 0}, 'num_samples must be at least 1'),
  ({'tries': 0}, 'tries must be at least 1'),
  ({'method': 'bound', 'tries': 2}, "go with method 'certified'"),
])  # fmt: skip
def test_a_wrong_certificate_is_refused(change, words):
  options = {'noise_multiplier': 4.0, 'delta': 1e-5, 'method': 'certified', **change}
  with pytest.raises(ValueError, match=words):
    dpftrl.account('identity', dpftrl.SecretBins(8, 2), **options).epsilon()
