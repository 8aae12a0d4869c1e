"""Sampled releases with an example replaced: brute force over all samples."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import stats

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.centralized import sampled_gaussian

STEP = 0.02


def fixed_size(examples, batch):
  """Sums of every sample of a size, each with the same chance."""
  return [(1.0, sum(s)) for s in itertools.combinations(examples, batch)]


def poisson(examples, probability):
  draws = itertools.product((0, 1), repeat=len(examples))
  return [
    (
      math.prod(probability if d else 1.0 - probability for d in draw),
      float(np.dot(draw, examples)),
    )
    for draw in draws
  ]


def release(sums, sigma):
  """Chances of intervals of a release: post-processing, so not less private."""
  weights, values = np.array(sums, dtype=float).T
  edges = np.arange(-4.0 - 8.0 * sigma, 4.0 + 8.0 * sigma, STEP * sigma)
  below = stats.norm.cdf(edges[:, None], values, sigma) @ weights
  return np.diff(below / weights.sum())


def hockey_stick(first, second, epsilon):
  return np.maximum(first - math.exp(epsilon) * second, 0.0).sum()


# From examples to examples with one replaced, of norm 1 at most. The last is
# zeroed out, with others that are as far from it as they can be.
NEIGHBOURS = [
  ((1, -1, -1, -1), (-1, -1, -1, -1)),
  ((1, 1, 1, 1), (-1, 1, 1, 1)),
  ((1, 0, 0, 0), (-1, 0, 0, 0)),
  ((1, -1, -1, 1), (0, -1, -1, 1)),
  ((1, -1, -1, -1), (0, -1, -1, -1)),
]


@pytest.mark.slow
@pytest.mark.parametrize('pair', NEIGHBOURS)
@pytest.mark.parametrize(
  'sample, share',
  [
    (lambda e: fixed_size(e, 1), 0.25),
    (lambda e: fixed_size(e, 2), 0.5),
    (lambda e: poisson(e, 0.25), 0.25),
    (lambda e: poisson(e, 0.5), 0.5),
  ],
)
@pytest.mark.parametrize('sigma', [1.0, 3.0])
def test_no_release_spends_more(pair, sample, share, sigma):
  """One release and two, in both directions and with one in each."""
  p, q = (release(sample(e), sigma) for e in pair)
  for epsilon in (0.2, 1.0):
    deltas = {
      1: [hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)],
      2: [
        hockey_stick(np.outer(a, c), np.outer(b, d), epsilon)
        for (a, b), (c, d) in itertools.product([(p, q), (q, p)], repeat=2)
      ],
    }
    for count, spent in deltas.items():
      delta = max(spent)
      if delta > 1e-12:
        bound = sampled_gaussian.epsilon(
          0.5 * sigma, delta, probability=share, count=count, replaced=True
        )
        assert bound >= epsilon - 1e-6


@pytest.mark.parametrize('batch', [1, 2, 3, 4])
def test_one_release_of_a_fixed_size_is_tight(batch):
  first, second = NEIGHBOURS[0]
  sigma, epsilon = 2.0, 0.7
  p, q = (release(fixed_size(e, batch), sigma) for e in (first, second))
  found = sampled_gaussian.epsilon(
    0.5 * sigma,
    max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)),
    probability=batch / 4,
    count=1,
    replaced=True,
  )
  assert epsilon - 1e-6 <= found <= epsilon * 1.001


def test_the_noise_of_poisson_samples_would_not_do():
  """Neither its ε, nor that with half the multiplier, is a bound here."""
  chances = {'probability': 0.5, 'count': 10}
  replaced = sampled_gaussian.epsilon(1.0, 1e-6, **chances, replaced=True)
  assert replaced > 1.005 * sampled_gaussian.epsilon(1.0, 1e-6, **chances)
  assert replaced > 2.0 * sampled_gaussian.epsilon(2.0, 1e-6, **chances)


@pytest.mark.slow
@pytest.mark.parametrize(
  'multiplier, batch, count', [(0.5, 10, 100), (1.0, 100, 64), (2.0, 500, 64), (5.0, 10, 1000)]
)
def test_between_poisson_and_renyi(multiplier, batch, count):
  """Above one more or less; below Wang et al. 2019, of the same relation."""
  accountant = rdp_privacy_accountant.RdpAccountant(
    neighboring_relation=privacy_accountant.NeighboringRelation.REPLACE_ONE
  )
  sampled = dp_event.SampledWithoutReplacementDpEvent(
    1000, batch, dp_event.GaussianDpEvent(multiplier)
  )
  accountant.compose(sampled, count)
  chances = {'probability': batch / 1000, 'count': count}
  found = sampled_gaussian.epsilon(multiplier, 1e-6, **chances, replaced=True)
  assert sampled_gaussian.epsilon(multiplier, 1e-6, **chances) < found
  assert found < accountant.get_epsilon(1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('multiplier', [0.02, 0.3, 5.0])
def test_whole_parts_add_up(multiplier):
  whole = gaussian.epsilon(multiplier, 1e-6)
  for probability in (1.0, 1.0 - 1e-9):
    found = sampled_gaussian.epsilon(
      2.0 * multiplier, 1e-6, probability=probability, count=4, replaced=True
    )
    assert whole * (1.0 - 1e-6) <= found <= whole * 1.01


def test_small_deltas_are_not_lost_to_rounding():
  deltas = [10.0**-i for i in range(4, 11)]
  found = [
    sampled_gaussian.epsilon(3.0, d, probability=0.01, count=10_000, replaced=True) for d in deltas
  ]
  slopes = np.diff(found)
  assert (slopes > 0.0).all()
  assert (np.diff(slopes) < 0.05 * slopes[:-1]).all()


def test_multiplier_meets_epsilon_and_no_more():
  chances = {'probability': 0.05, 'count': 200, 'replaced': True}
  found = sampled_gaussian.effective_noise_multiplier(1.0, 1e-6, **chances)
  assert sampled_gaussian.epsilon(found, 1e-6, **chances) <= 1.0
  less = found * (1.0 - 2e-5)
  assert sampled_gaussian.epsilon(less, 1e-6, **chances) > 1.0
