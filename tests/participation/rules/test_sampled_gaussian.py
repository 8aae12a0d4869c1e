"""ε of sampled Gaussian releases, also of replaced examples, by closed forms and brute force."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import optimize, stats

from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import adjacencies, gaussian, sampled_gaussian
from fl_dpftrl.participation.rules import sampling
from tests import made

STEP = 0.02


def delta_of_one(epsilon, multiplier, probability):
  """δ(ε) of one release: the worse of one example more and one less."""
  p = probability

  def tail(x, mean):
    return stats.norm.sf(x, mean, multiplier)

  # 1 − p + p exp((2x − 1) / 2σ²) crosses e^ε, or e^−ε, at one x.
  def crossing(ratio):
    return 0.5 + multiplier**2 * math.log((ratio - 1.0 + p) / p)

  x = crossing(math.exp(epsilon))
  less = (1 - p) * tail(x, 0) + p * tail(x, 1) - math.exp(epsilon) * tail(x, 0)
  if math.exp(-epsilon) <= 1.0 - p:
    return less
  x = crossing(math.exp(-epsilon))
  mixture = (1 - p) * (1 - tail(x, 0)) + p * (1 - tail(x, 1))
  return max(less, 1 - tail(x, 0) - math.exp(epsilon) * mixture)


@pytest.mark.parametrize('multiplier', [0.3, 1.0, 5.0])
@pytest.mark.parametrize('probability', [1e-3, 0.1, 0.9])
@pytest.mark.parametrize('delta', [1e-9, 1e-5])
def test_one_release_is_closed_form(multiplier, probability, delta):
  exact = 0.0
  if delta_of_one(1e-9, multiplier, probability) > delta:
    excess = lambda epsilon: delta_of_one(epsilon, multiplier, probability) - delta
    exact = optimize.brentq(excess, 1e-9, 100.0)
  epsilon = sampled_gaussian.epsilon(multiplier, delta, probability=probability, count=1)
  assert exact - 1e-9 <= epsilon <= exact * 1.001 + 1e-6


def hockey_stick(first, second, epsilon):
  return np.maximum(first - math.exp(epsilon) * second, 0.0).sum()


@pytest.mark.slow
@pytest.mark.parametrize('multiplier, probability', [(0.8, 0.3), (2.0, 0.7)])
@pytest.mark.parametrize('epsilon', [0.1, 1.0, 2.0])
def test_two_releases_by_brute_force(multiplier, probability, epsilon):
  """All draws of an example, and the density of both releases on a grid."""
  step = 0.01 * multiplier
  x = np.arange(-9.0 * multiplier, 1.0 + 9.0 * multiplier, step)
  one = stats.norm.pdf(x[:, None], [0.0, 1.0], multiplier) * step
  without = np.outer(one[:, 0], one[:, 0])
  weights = (1.0 - probability, probability)
  drawn = sum(
    weights[i] * weights[j] * np.outer(one[:, i], one[:, j])
    for i, j in itertools.product((0, 1), repeat=2)
  )
  delta = max(hockey_stick(drawn, without, epsilon), hockey_stick(without, drawn, epsilon))
  bound = sampled_gaussian.epsilon(multiplier, delta, probability=probability, count=2)
  assert epsilon - 1e-5 <= bound <= epsilon * 1.001 + 1e-5


@pytest.mark.parametrize('count', [1, 100, 10_000])
@pytest.mark.parametrize('delta', [1e-10, 1e-5])
def test_without_sampling_releases_add_up(count, delta):
  whole = gaussian.epsilon(2.0, delta)
  certain, nearly = (
    sampled_gaussian.epsilon(2.0 * math.sqrt(count), delta, probability=probability, count=count)
    for probability in (1.0, 1.0 - 1e-9)
  )
  assert certain == pytest.approx(whole, rel=1e-12)
  # The general way, where an example is all but sure to be drawn.
  assert whole * (1.0 - 1e-6) <= nearly <= whole * 1.01


@pytest.mark.slow
@pytest.mark.parametrize('multiplier', [0.02, 0.3, 5.0])
@pytest.mark.parametrize('probability', [1.0, 1.0 - 1e-9])
def test_whole_parts_with_replaced_examples_add_up(multiplier, probability):
  whole = gaussian.epsilon(multiplier, 1e-6)
  epsilon = sampled_gaussian.epsilon(
    2.0 * multiplier, 1e-6, probability=probability, count=4, pair=adjacencies.REPLACED
  )
  assert whole * (1.0 - 1e-6) <= epsilon <= whole * 1.01


@pytest.mark.slow
@pytest.mark.parametrize(
  'multiplier, batch, count', [(0.5, 10, 100), (1.0, 100, 64), (2.0, 500, 64), (5.0, 10, 1000)]
)
def test_replaced_examples_are_between_poisson_and_renyi(multiplier, batch, count):
  """Above one more or less; below Wang et al. 2019, of the same relation."""
  accountant = rdp_privacy_accountant.RdpAccountant(
    neighboring_relation=privacy_accountant.NeighboringRelation.REPLACE_ONE
  )
  sampled = dp_event.SampledWithoutReplacementDpEvent(
    1000, batch, dp_event.GaussianDpEvent(multiplier)
  )
  accountant.compose(sampled, count)
  chances = {'probability': batch / 1000, 'count': count}
  poisson, replaced = (
    sampled_gaussian.epsilon(multiplier, 1e-6, **chances, pair=p)
    for p in (adjacencies.ONE, adjacencies.REPLACED)
  )
  assert poisson < replaced < accountant.get_epsilon(1e-6)


@pytest.mark.slow
@made.cases(
  'multiplier, probability, count, pair',
  (3.0, 0.01, 20_000, 'one'),
  (2.0, 0.5, 100, 'one'),
  (3.0, 0.01, 10_000, 'replaced'),
  (3.0, 0.01, 10_000, 'opposite'),
)
def test_small_deltas_are_not_lost_to_rounding(multiplier, probability, count, pair):
  """ε is concave in ln 1/δ, as of any Gaussian: noise in δ would break it."""
  chances = {'probability': probability, 'count': count, 'pair': pair}
  slopes = np.diff(
    [sampled_gaussian.epsilon(multiplier, 10.0**-i, **chances) for i in range(4, 11)]
  )
  assert (slopes > 0.0).all()
  assert (np.diff(slopes) < 0.05 * slopes[:-1]).all()


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [0.05, 1.0, 12.0])
@made.cases(
  'probability, count, pair',
  (0.05, 200, 'one'),
  (0.9, 3, 'one'),
  (1.0, 7, 'one'),
  (0.05, 200, 'replaced'),
  (0.05, 200, 'opposite'),
)
def test_multiplier_meets_epsilon_and_no_more(epsilon, probability, count, pair):
  chances = {'probability': probability, 'count': count, 'pair': pair}
  least = sampled_gaussian.effective_noise_multiplier(epsilon, 1e-6, **chances)
  assert sampled_gaussian.epsilon(least, 1e-6, **chances) <= epsilon
  assert sampled_gaussian.epsilon(least * (1.0 - 2e-5), 1e-6, **chances) > epsilon


@made.cases(
  'arguments, message',
  ({'multiplier': 0.0}, 'multiplier'),
  ({'multiplier': math.inf}, 'multiplier'),
  ({'delta': 0.0}, 'delta'),
  ({'delta': 1.0}, 'delta'),
  ({'probability': 0.0}, 'probability'),
  ({'probability': 1.5}, 'probability.*1.5'),
  ({'probability': math.nan}, 'probability'),
  ({'count': 0}, 'count'),
  ({'delta': 1e-12, 'count': 10_000}, 'delta=1e-12 is too small.*1e-11'),
)
def test_refuses(arguments, message):
  arguments = {'multiplier': 1.0, 'delta': 1e-6, 'probability': 0.1, 'count': 10, **arguments}
  with pytest.raises(ValueError, match=message):
    sampled_gaussian.epsilon(**arguments)


@pytest.mark.parametrize('epsilon', [0.0, -1.0, math.inf, math.nan])
def test_refuses_targets_out_of_range(epsilon):
  with pytest.raises(ValueError, match='epsilon'):
    sampled_gaussian.effective_noise_multiplier(epsilon, 1e-6, probability=0.1, count=10)


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
  'sample, argument, share',
  [(fixed_size, 1, 0.25), (fixed_size, 2, 0.5), (poisson, 0.25, 0.25), (poisson, 0.5, 0.5)],
)
@pytest.mark.parametrize('sigma', [1.0, pytest.param(3.0, marks=pytest.mark.thorough)])
def test_no_release_of_a_replaced_example_spends_more(pair, sample, argument, share, sigma):
  """One release and two, in both directions and with one in each."""
  p, q = (release(sample(e, argument), sigma) for e in pair)
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
          0.5 * sigma, delta, probability=share, count=count, pair=adjacencies.REPLACED
        )
        assert bound >= epsilon - 1e-6


@pytest.mark.parametrize('batch', [1, 2, 3, 4])
def test_one_release_of_a_fixed_size_is_tight(batch):
  sigma, epsilon = 2.0, 0.7
  p, q = (release(fixed_size(e, batch), sigma) for e in NEIGHBOURS[0])
  delta = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
  bound = sampled_gaussian.epsilon(
    0.5 * sigma, delta, probability=batch / 4, count=1, pair=adjacencies.REPLACED
  )
  assert epsilon - 1e-6 <= bound <= epsilon * 1.001


def test_the_noise_of_poisson_samples_would_not_do():
  """Neither its ε, nor that with half the multiplier, is a bound here."""
  chances = {'probability': 0.5, 'count': 10}
  replaced = sampled_gaussian.epsilon(1.0, 1e-6, **chances, pair=adjacencies.REPLACED)
  assert replaced > 1.005 * sampled_gaussian.epsilon(1.0, 1e-6, **chances)
  assert replaced > 2.0 * sampled_gaussian.epsilon(2.0, 1e-6, **chances)


@pytest.mark.parametrize('share, sigma, epsilon', [(0.3, 1.0, 0.2), (0.5, 2.0, 1.0)])
def test_opposite_updates_are_the_worst_of_poisson_samples(share, sigma, epsilon):
  """One round over a grid of updates, and a second that follows from the first release."""
  spent = lambda delta, count, pair=adjacencies.OPPOSITE, noise=0.5 * sigma: (
    sampled_gaussian.epsilon(noise, delta, probability=share, count=count, pair=pair)
  )
  laws = {u: release([(1.0 - share, 0.0), (share, u)], sigma) for u in np.linspace(-1.0, 1.0, 9)}
  sticks = {
    (u, v): hockey_stick(laws[u], laws[v], epsilon) for u, v in itertools.product(laws, repeat=2)
  }
  worst = max(sticks, key=sticks.get)
  assert sorted(worst) == [-1.0, 1.0]
  assert epsilon - 1e-6 <= spent(sticks[worst], 1) <= epsilon * 1.001
  zeroed = max(delta for pair, delta in sticks.items() if 0.0 in pair)
  assert max(zeroed, 1e-12) < 0.6 * sticks[worst]
  assert spent(sticks[worst], 1, adjacencies.ONE, sigma) < 0.7 * epsilon
  pairs = list(itertools.product((-1.0, 0.0, 1.0), repeat=2))
  adaptive = max(
    np.max(
      [
        np.maximum(
          np.outer(laws[u], laws[x]) - math.exp(epsilon) * np.outer(laws[v], laws[y]), 0.0
        ).sum(axis=1)
        for x, y in pairs
      ],
      axis=0,
    ).sum()
    for u, v in pairs
  )
  assert epsilon - 1e-6 <= spent(adaptive, 2) <= epsilon * 1.001


def test_published_figure_of_poisson_with_replaced_examples():
  """By the worst pair; that of samples of a fixed size has to allow more."""
  draws = {'num_rounds': 4, 'num_examples': 1000, 'batch_size': 300}
  for scheme, figure in ((sampling.CyclicPoisson, 2.851), (sampling.CyclicFixedSize, 5.616)):
    found = accountant.account(
      'identity', scheme(**draws), noise_multiplier=2.0, delta=1e-6, adjacency='replace_one'
    )
    assert found.epsilon() == pytest.approx(figure, abs=1e-3)
