"""ε of sampled Gaussian releases, against closed forms and brute force."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import optimize, stats

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.centralized import sampled_gaussian


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
  exact = (
    optimize.brentq(lambda e: delta_of_one(e, multiplier, probability) - delta, 1e-9, 100.0)
    if delta_of_one(1e-9, multiplier, probability) > delta
    else 0.0
  )
  found = sampled_gaussian.epsilon(multiplier, delta, probability=probability, count=1)
  assert exact - 1e-9 <= found <= exact * 1.001 + 1e-6


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
  found = sampled_gaussian.epsilon(multiplier, delta, probability=probability, count=2)
  assert epsilon - 1e-5 <= found <= epsilon * 1.001 + 1e-5


@pytest.mark.parametrize('count', [1, 100, 10_000])
@pytest.mark.parametrize('delta', [1e-10, 1e-5])
def test_without_sampling_releases_add_up(count, delta):
  multiplier = 2.0 * math.sqrt(count)
  whole = gaussian.epsilon(2.0, delta)
  found = sampled_gaussian.epsilon(multiplier, delta, probability=1.0, count=count)
  assert found == pytest.approx(whole, rel=1e-12)
  # The general way, where an example is all but sure to be drawn.
  nearly = sampled_gaussian.epsilon(multiplier, delta, probability=1.0 - 1e-9, count=count)
  assert whole * (1.0 - 1e-6) <= nearly <= whole * 1.01


@pytest.mark.slow
@pytest.mark.parametrize('multiplier, probability, count', [(1.0, 0.01, 100), (4.0, 0.5, 64)])
def test_below_renyi_accounting(multiplier, probability, count):
  accountant = rdp_privacy_accountant.RdpAccountant()
  accountant.compose(
    dp_event.PoissonSampledDpEvent(probability, dp_event.GaussianDpEvent(multiplier)), count
  )
  found = sampled_gaussian.epsilon(multiplier, 1e-6, probability=probability, count=count)
  assert 0.5 * accountant.get_epsilon(1e-6) < found
  assert found < accountant.get_epsilon(1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('multiplier, probability, count', [(3.0, 0.01, 20_000), (2.0, 0.5, 100)])
def test_small_deltas_are_not_lost_to_rounding(multiplier, probability, count):
  """ε is concave in ln 1/δ, as of any Gaussian: noise in δ would break it."""
  deltas = [10.0**-i for i in range(4, 11)]
  found = [
    sampled_gaussian.epsilon(multiplier, d, probability=probability, count=count) for d in deltas
  ]
  slopes = np.diff(found)
  assert (slopes > 0.0).all()
  assert (np.diff(slopes) < 0.05 * slopes[:-1]).all()


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [0.05, 1.0, 12.0])
@pytest.mark.parametrize('probability, count', [(0.05, 200), (0.9, 3), (1.0, 7)])
def test_multiplier_meets_epsilon_and_no_more(epsilon, probability, count):
  chances = {'probability': probability, 'count': count}
  found = sampled_gaussian.effective_noise_multiplier(epsilon, 1e-6, **chances)
  assert sampled_gaussian.epsilon(found, 1e-6, **chances) <= epsilon
  less = found * (1.0 - 2e-5)
  assert sampled_gaussian.epsilon(less, 1e-6, **chances) > epsilon


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'multiplier': 0.0}, 'multiplier'),
    ({'multiplier': math.inf}, 'multiplier'),
    ({'delta': 0.0}, 'delta'),
    ({'delta': 1.0}, 'delta'),
    ({'probability': 0.0}, 'probability'),
    ({'probability': 1.5}, 'probability.*1.5'),
    ({'probability': math.nan}, 'probability'),
    ({'count': 0}, 'count'),
    ({'delta': 1e-12, 'count': 10_000}, 'delta=1e-12 is too small.*1e-11'),
  ],
)
def test_refuses(arguments, message):
  arguments = {'multiplier': 1.0, 'delta': 1e-6, 'probability': 0.1, 'count': 10, **arguments}
  with pytest.raises(ValueError, match=message):
    sampled_gaussian.epsilon(**arguments)


@pytest.mark.parametrize('epsilon', [0.0, -1.0, math.inf, math.nan])
def test_refuses_targets_out_of_range(epsilon):
  with pytest.raises(ValueError, match='epsilon'):
    sampled_gaussian.effective_noise_multiplier(epsilon, 1e-6, probability=0.1, count=10)
