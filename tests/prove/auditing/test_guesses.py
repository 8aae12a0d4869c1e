"""The bound by guesses: never above the truth in exact laws, and no weaker than simulations."""

import itertools
import math

import numpy as np
import pytest
import scipy

from fl_dpftrl.prove.auditing import guesses


def f_bar(x, mu):
  """The most mass that an event of mass x can have under a neighbour, where μ-GDP holds."""
  return float(scipy.special.ndtr(scipy.special.ndtri(x) + mu))


def least_mu(p, q):
  """The least μ for which two laws of finitely many releases are μ-GDP, by their likelihoods."""
  largest = 0.0
  for first, second in ((p, q), (q, p)):
    order = np.argsort(-np.divide(first, second))
    gained, paid = np.cumsum(first[order])[:-1], np.cumsum(second[order])[:-1]
    largest = max(largest, *(scipy.special.ndtri(gained) - scipy.special.ndtri(paid)))
  return float(largest)


def law(generator, num_coins, num_outcomes):
  """Laws of a mechanism, shape [2^coins, outcomes], from nearly private to nearly open."""
  weights = generator.gamma(generator.choice([0.1, 1.0, 10.0]), size=(2**num_coins, num_outcomes))
  return (weights + 1e-6) / (weights + 1e-6).sum(axis=1, keepdims=True)


def moments(laws, guess, num_coins):
  """P(W = w) of right guesses w, over coins and releases; a guess of −1 is none."""
  chances = np.zeros(num_coins + 1)
  for place, coins in enumerate(itertools.product((0, 1), repeat=num_coins)):
    for outcome, row in enumerate(guess):
      right = sum(one == coin for one, coin in zip(row, coins))
      chances[right] += laws[place, outcome] / 2**num_coins
  return chances


@pytest.mark.parametrize('num_coins', [1, 2, 3, 4])
def test_the_inequality_and_the_bound_hold_for_exact_laws(num_coins):
  generator = np.random.default_rng(num_coins)
  closest = 0.0
  for _ in range(75):
    laws = law(generator, num_coins, int(generator.integers(2, 7)))
    every = list(itertools.product((0, 1), repeat=num_coins))
    mu = max(
      least_mu(laws[i], laws[j])
      for (i, one), (j, other) in itertools.combinations(enumerate(every), 2)
      if sum(a != b for a, b in zip(one, other)) == 1
    )
    num_guesses = int(generator.integers(1, num_coins + 1))
    # The best guesses of coins by a release, of its likeliest coins; the others are not guessed.
    guess = []
    for outcome in range(laws.shape[1]):
      ones = laws[:, outcome] @ np.array(every)
      share = ones / laws[:, outcome].sum()
      chosen = np.argsort(-np.abs(share - 0.5))[:num_guesses]
      guess.append([int(share[j] > 0.5) if j in chosen else -1 for j in range(num_coins)])
    chances = moments(laws, guess, num_coins)
    right = np.arange(num_coins + 1)
    for i in range(1, num_guesses + 1):
      gained = (chances * right)[i:].sum() / num_coins
      paid = (chances * (num_guesses - right))[i - 1 : num_guesses].sum() / num_coins
      assert gained <= f_bar(paid, mu) * (1 + 1e-9)
      closest = max(closest, gained / f_bar(paid, mu))
      level = float(chances[i:].sum())
      if 0.0 < level < 1.0:
        assert guesses.lower_bound(i, num_guesses, num_coins, level) <= mu
  assert closest > 0.6  # The laws come close to the limit.


def test_guesses_of_biased_coins_would_refute_what_is_true():
  """With coins that are 1 with chance 0.9, guesses of 1 are right 900 times of 1,000."""
  assert guesses.lower_bound(900, 1000, 1000, 0.05) > 0.8


@pytest.mark.parametrize(
  'mu, num_canaries, least', [(0.448, 8192, 0.25), (1.0, 8192, 0.6), (1.6, 1000, 0.95)]
)
def test_power_is_near_three_quarters_of_the_truth(mu, num_canaries, least):
  generator, num_guesses = np.random.default_rng(1), guesses.number_of(num_canaries)
  bounds = []
  for _ in range(5):
    coins = generator.integers(0, 2, num_canaries)
    ratio = mu * (generator.normal(size=num_canaries) + mu * coins) - mu * mu / 2
    chosen = np.argsort(-np.abs(ratio), kind='stable')[:num_guesses]
    correct = int(((ratio > 0) == coins)[chosen].sum())
    bounds.append(guesses.lower_bound(correct, num_guesses, num_canaries, 0.05))
  assert least < np.mean(bounds) and max(bounds) < mu


def test_more_right_guesses_refute_more_and_none_refute_nothing():
  bounds = [guesses.lower_bound(c, 100, 1000, 0.05) for c in (0, 50, 60, 70, 90, 100)]
  assert bounds == sorted(bounds) and bounds[:2] == [0.0, 0.0] and bounds[-1] > bounds[-2]
  assert guesses.lower_bound(80, 100, 1000, 1e-3) < guesses.lower_bound(80, 100, 1000, 0.05)
  assert not math.isnan(guesses.lower_bound(1, 1, 1, 0.999))


def test_all_coins_guessed_at_mu_0_is_a_binomial_test():
  """With R = m and μ = 0, guesses are at most as good as those of fair coins."""
  tail = scipy.stats.binom.sf(59, 100, 0.5)  # P(W ≥ 60)
  assert not guesses.is_refuted(0.0, 60, 100, 100, float(tail) * 1.001)
