"""ε of the best of several runs: beside attacks, every order of six outcomes, and wrong bounds."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import optimize, special, stats

import fl_dpftrl as dpftrl
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import guarantees, tuning
from fl_dpftrl.participation.rules import sampling


def chances(weights):
  """A law with these weights of 1, 2, … runs."""
  total = math.fsum(weights)
  return {k: float(w) / total for k, w in enumerate(weights, 1)}


POISSON = chances(stats.poisson.pmf(np.arange(1, 61), 10.0))
LOG = optimize.brentq(lambda g: (1 / g - 1) / math.log(1 / g) - 10.0, 1e-4, 0.5)
NUMBERS, GAMMA = np.arange(1, 8000), 0.00277
HALF = chances(np.abs(special.binom(NUMBERS - 1.5, NUMBERS)) * (1.0 - GAMMA) ** NUMBERS)  # η = −½

LAWS = {
  'geometric': dpftrl.Tuning('geometric', 10, 400),
  'short': dpftrl.Tuning('geometric', 10, 30),
  'logarithmic': dpftrl.Tuning('logarithmic', 10, 1000),
  'poisson': dpftrl.Tuning(POISSON),
  'ten': dpftrl.Tuning({10: 1.0}),
  'chances': dpftrl.Tuning({1: 0.2, 3: 0.5, 7: 0.3}),
}
OTHERS = {
  'half': dpftrl.Tuning(HALF),
  'geometric 50': dpftrl.Tuning('geometric', 50, 2000),
  'logarithmic 50': dpftrl.Tuning('logarithmic', 50, 10_000),
  'poisson 50': dpftrl.Tuning(chances(stats.poisson.pmf(np.arange(1, 151), 50.0))),
}


def run(mu=1.0, delta=1e-6, **rounding):
  return guarantees.Guarantee(
    sensitivity=1.0, sensitivity_kind='exact', noise_multiplier=1.0 / mu, deltas=(delta,)
  )


def generating(law, z):
  """f(z) = E z^J."""
  return np.polynomial.Polynomial(np.append(0.0, law.chances))(z)


def slope_of(law):
  """f′ from the chances of a law."""
  return np.polynomial.Polynomial(law.chances * np.arange(1, law.most + 1))


def expected(law, mu, epsilon, *, top=None, ratio=None, slope=None):
  """δ by the definition: the largest over t at each x, and the mean over x."""
  slope = slope or slope_of(law)
  z, x = np.linspace(-9.0, 9.0, 1500), np.linspace(-9.0, 12.0, 3000)
  above = special.ndtr(-z - mu) if top is None else 1.0 - top(special.ndtr(z))
  r = np.exp(mu * x - mu**2 / 2) if ratio is None else ratio(x)
  lines = slope(special.ndtr(-z)) * r[:, None] - math.exp(epsilon) * slope(above)
  return float(np.trapezoid(np.maximum(lines.max(axis=1), 0.0) * stats.norm.pdf(x), x))


def attacked(law, mu, goal, *, coin=1.0, fresh=1.0, share=1.0):
  """Largest goal of the chances, with and without the device, that the winner tells of it.

  An order puts {x < −c} on top, then {x > a}, which tells, then the rest. One coin for all runs
  (`coin`), or each run's own (`fresh`), says whether the device is there; x is that of a cell which
  has a `share` of the runs.
  """
  numbers = np.arange(1, law.most + 1)

  def told(best, tells):
    after = np.exp(numbers * math.log1p(-best))
    return law.chances @ (after * -np.expm1(numbers * math.log1p(-tells / (1.0 - best))))

  def lost(at):
    c, a = at
    if a <= -c:
      return math.inf
    absent, present = (share * special.ndtr([-c - shift, shift - a]) for shift in (0.0, mu))
    without = told(*absent)
    present = told(*(fresh * present + (1.0 - fresh) * absent))
    return -goal(coin * present + (1.0 - coin) * without, without)

  return -optimize.brute(lost, ((-2.0, 6.0), (0.01, 7.0)), Ns=30, full_output=True)[1]


def delta_at(epsilon):
  return lambda p, q: p - math.exp(epsilon) * q


def epsilon_at(delta):
  return lambda p, q: math.log(max(p - delta, 1e-300) / q) if q else -math.inf


@pytest.mark.parametrize('name, stated, reached, alone, quantiles', [
  ('geometric', 6.917, 6.882, 0.10, [7, 29]),
  ('logarithmic', 6.567, 6.539, 0.27, [4, 41]),
  ('half', 6.304, 6.283, 0.53, [1, 39]),
  ('poisson', 8.698, 8.621, 0.00, [10, 15]),
  ('geometric 50', 8.277, 8.227, 0.02, [35, 149]),
  ('logarithmic 50', 7.492, 7.458, 0.18, [10, 241]),
  ('poisson 50', 21.937, 21.484, 0.00, [50, 62]),
  ('ten', 17.654, 16.211, 0.00, [10, 10]),
])  # fmt: skip
def test_figures(name, stated, reached, alone, quantiles):
  """Stated ones had coarser cells; the attack shows how little is left."""
  law = {**LAWS, **OTHERS}[name]
  attack = attacked(law, 1.0, epsilon_at(1e-6))
  assert reached <= attack <= reached + 0.003
  assert attack <= law.epsilon(run()) <= stated + 5e-4
  sums = law.chances.cumsum()
  assert law.chances[0] == pytest.approx(alone, abs=0.005)
  assert (np.searchsorted(sums, [0.5, 0.95]) + 1).tolist() == quantiles
  assert law.chances @ np.arange(1, law.most + 1) == pytest.approx(50 if '50' in name else 10, 1e-4)


@pytest.mark.parametrize(
  'most, rho, delta, stated',
  [(60, 0.5, 1e-6, 6.917), (30, 0.5, 1e-6, 6.885), (3000, 0.1, 1e-6, 2.904),
   (3000, 2.0, 1e-6, 14.852), (3000, 2.0, 1e-10, 17.948)],
)  # fmt: skip
def test_figures_of_cut_laws_and_other_runs(most, rho, delta, stated):
  law, mu = dpftrl.Tuning('geometric', 10, most), math.sqrt(2.0 * rho)
  attack = attacked(law, mu, epsilon_at(delta))
  assert stated - 0.06 < attack <= law.epsilon(run(mu, delta)) <= stated + 5e-4
  assert LAWS['short'].chances @ np.arange(1, 31) == pytest.approx(8.67, abs=0.005)


@pytest.mark.parametrize('law, mu, epsilon, exact', [
  (dpftrl.Tuning({2: 1.0}), 1.0, 1.0, 0.2862082119221),
  (dpftrl.Tuning({2: 1.0}), 2.0, 3.0, 0.5043098751584),
  (dpftrl.Tuning({3: 1.0}), 1.0, 1.0, 0.3847265898989),
  (dpftrl.Tuning({4: 1.0}), 1.0, 1.0, 0.4508607619307),
  (dpftrl.Tuning({1: 0.2, 2: 0.5, 3: 0.3}), 1.0, 1.0, 0.2766621040608),
  (dpftrl.Tuning('geometric', 2, 4), 1.0, 1.0, 0.2177962441667),
  (dpftrl.Tuning('geometric', 10, 60), 1.0, 1.0, 0.5072656121732),
  (dpftrl.Tuning('geometric', 10, 60), 1.0, 6.9004238376, 1e-6),
  (dpftrl.Tuning('logarithmic', 10, 60), 1.0, 6.5080649272, 1e-6),
  (dpftrl.Tuning({10: 1.0}), 1.0, 16.5239534972, 1e-6),
])  # fmt: skip
def test_the_bound_is_never_below_the_worst_score(law, mu, epsilon, exact):
  """Source of the exact values: the integral over chains of events, which scores reach."""
  found = math.exp(law.log_delta(mu, epsilon))
  assert exact <= found
  if exact < 1e-5 and law.mean:  # Where the theorem is loose by its cells only.
    assert found < 1.01 * exact


def test_half_has_its_figure_and_composition_is_far_above():
  assert 6.2935 < OTHERS['half'].epsilon(run()) < 6.304
  all_of = [run(math.sqrt(number)).epsilon() for number in (1, 10, 50)]
  assert all_of == pytest.approx([4.887, 19.42, 57.85], abs=5e-3)


@pytest.mark.parametrize('name, right', [
  ('geometric', lambda z: 0.1 / (1 - 0.9 * z) ** 2),
  ('geometric 50', lambda z: 0.02 / (1 - 0.98 * z) ** 2),
  ('logarithmic', lambda z: (1 - LOG) / (1 - (1 - LOG) * z) / -math.log(LOG)),
  ('half', lambda z: 0.5 * (1 - GAMMA) / np.sqrt(1 - (1 - GAMMA) * z) / (1 - math.sqrt(GAMMA))),
  ('poisson', lambda z: 10 * np.exp(10 * (z - 1)) / -math.expm1(-10)),
  ('ten', lambda z: 10 * z**9),
])  # fmt: skip
def test_slopes_are_those_of_generating_functions(name, right):
  z = np.linspace(0.0, 1.0, 101)
  assert slope_of({**LAWS, **OTHERS}[name])(z) == pytest.approx(right(z), rel=1e-6)


@pytest.mark.parametrize('mu', [0.1, 1.0, 2.0])
def test_one_run_for_certain_is_one_run(mu):
  alone = dpftrl.Tuning({1: 1.0}).epsilon(run(mu))
  assert run(mu).epsilon() <= alone <= run(mu).epsilon() * (1.0 + 1e-8)


@pytest.mark.parametrize('name', LAWS)
@pytest.mark.parametrize('mu, epsilon', [(0.5, 1.0), (1.0, 3.0), (1.5, 6.0)])
def test_the_sum_is_the_definition(name, mu, epsilon):
  found = math.exp(LAWS[name].log_delta(mu, epsilon))
  assert attacked(LAWS[name], mu, delta_at(epsilon)) <= found
  assert found == pytest.approx(expected(LAWS[name], mu, epsilon), rel=0.02)


def test_attack_refutes_wrong_bounds():
  law, mean, slope = LAWS['geometric'], 10.0, slope_of(LAWS['geometric'])
  reached = attacked(law, 1.0, epsilon_at(1e-6))
  wrong = {
    'mean left out': dict(slope=slope / mean),
    'η for 1 + η': dict(slope=lambda z: 1.0 / (1.0 - 0.9 * z)),
    'no shift': dict(top=lambda t: t),
    'half the shift': dict(top=lambda t: special.ndtr(special.ndtri(t) + 0.5)),
  }
  least = {name: expected(law, 1.0, reached, **change) for name, change in wrong.items()}
  assert max(least.values()) < 1e-6 < expected(law, 1.0, reached), least
  below, above = (expected(law, 1.0, e, **wrong['η for 1 + η']) for e in (6.136, 6.116))
  assert below < 1e-6 < above
  assert run().epsilon() < run(delta=1e-6 / mean).epsilon() < reached  # mean × one run
  # Ten runs for certain are not geometric ones.
  assert attacked(LAWS['ten'], 1.0, epsilon_at(1e-6)) > 16.211 > law.epsilon(run())
  # Half of the runs have more noise: no mean of both counts.
  mixed = attacked(law, 1.0, epsilon_at(1e-6), share=0.5)
  for other in (0.5, 0.75, math.sqrt(0.625)):
    assert law.epsilon(run(other)) < mixed < law.epsilon(run())


@pytest.mark.parametrize('name', ['short', 'poisson', 'ten', 'chances'])
def test_no_order_of_six_outcomes_exceeds_the_bound(name):
  """All 720 orders, both directions; outcomes are intervals of N(0, 1) and N(1, 1)."""
  law, cuts = LAWS[name], np.array([-np.inf, -2.5, -1.0, 0.5, 2.0, 3.5, np.inf])
  present, absent = np.diff(special.ndtr(cuts - 1.0)), np.diff(special.ndtr(cuts))
  orders = np.array(list(itertools.permutations(range(6))))

  def published(each):
    least = np.cumsum(each[orders], axis=1)
    return np.diff(generating(law, np.minimum(least, 1.0)), axis=1, prepend=0.0)

  laws = published(present), published(absent)
  for epsilon in (0.5, 2.0, 4.0):
    bound = math.exp(law.log_delta(1.0, epsilon))
    for one, other in (laws, laws[::-1]):
      assert np.maximum(one - math.exp(epsilon) * other, 0.0).sum(axis=1).max() <= bound


def test_whole_procedures_have_the_law_of_the_proof():
  """400,000 of them, with ties by lot."""
  law, rng = LAWS['short'], np.random.default_rng(0)
  chances, scores = np.array([0.1, 0.2, 0.3, 0.4]), np.array([2, 0, 1, 1])
  counts = rng.choice(np.arange(1, law.most + 1), 400_000, p=law.chances)
  best = np.full(len(counts), -1.0)
  won = np.zeros(len(counts), int)
  for t in range(law.most):
    drawn = rng.choice(4, len(counts), p=chances)
    score = scores[drawn] + 0.5 * rng.random(len(counts))
    better = (t < counts) & (score > best)
    best, won = np.where(better, score, best), np.where(better, drawn, won)
  lowest = generating(law, 0.2)
  middle = generating(law, 0.9) - lowest
  right = np.array([1.0 - generating(law, 0.9), lowest, middle * 3 / 7, middle * 4 / 7])
  found = np.bincount(won, minlength=4) / len(won)
  assert (np.abs(found - right) < 5.0 * np.sqrt(right / len(won))).all()


@pytest.mark.parametrize('mu', [1e-3, 0.3, 1.0, 4.0])
def test_the_curve_of_one_run_is_never_below_fifty_digits(mu):
  with mpmath.workdps(50):
    for epsilon in (-30.0, -3.0, -0.1, 0.0, 0.5, 4.0, 30.0 * mu):
      a = mpmath.mpf(epsilon) / mu - mpmath.mpf(mu) / 2
      exact = mpmath.ncdf(-a) - mpmath.exp(epsilon) * mpmath.ncdf(-a - mu)
      found = float(tuning._curve(mu, np.array(epsilon)))
      assert exact <= found + mpmath.mpf('1e-200')
      assert found <= exact * (1 + mpmath.mpf('1e-8')) + mpmath.mpf('1e-200')


def test_certain_numbers_of_runs_are_rounded_up_near_one():
  """Φ is 1 from 8.3 on; g there is that of Φ(−z), which is not."""
  bends = tuning._bends_of(LAWS['ten'].chances.tobytes(), 1.0)
  assert np.isfinite(bends[1]).all() and bends[0].min() > 0.0
  with mpmath.workdps(50):
    for z in (-8.0, 0.0, 8.0):
      t = [mpmath.ncdf(-z), mpmath.ncdf(-z - 1)]
      lines = [10 * s**9 for s in t]
      for r in (1.0, 50.0):
        most = sum(float(s) * max(r - math.exp(y), 0.0) for s, y in zip(*bends))
        assert most >= (lines[0] * r - lines[1]) * (1 - mpmath.mpf('1e-12'))


def test_events_of_whole_numbers_count_for_every_run():
  plain = dpftrl.account('identity', dpftrl.MinSep(4), noise_multiplier=4.0, delta=1e-6)
  whole = dpftrl.account(
    'identity', dpftrl.MinSep(4), noise_multiplier=4.0, delta=1e-6, num_coordinates=10**9
  )
  law = dpftrl.Tuning('geometric', 10)
  assert law.epsilon(plain) < law.epsilon(whole) < law.epsilon(plain) + 1e-3
  assert law.most == 60 and LAWS['ten'].log_delta(50.0, 2500.0) >= 0.0  # An attack reaches 1.
  without = guarantees.Guarantee(
    sensitivity=1.0, sensitivity_kind='exact', noise_multiplier=0.0, deltas=(1e-6,)
  )
  assert law.epsilon(without) == math.inf and law.to_json(without)['epsilon'] is None


@pytest.mark.parametrize('make, words', [
  (lambda: dpftrl.Tuning('uniform', 3), 'law must be geometric or logarithmic'),
  (lambda: dpftrl.Tuning('geometric', 1), 'mean must be above 1'),
  (lambda: dpftrl.Tuning('geometric'), 'mean must be positive'),
  (lambda: dpftrl.Tuning('geometric', math.nan), 'mean must be positive'),
  (lambda: dpftrl.Tuning('geometric', 3, -1), 'most must be at least 1'),
  (lambda: dpftrl.Tuning({1: 0.5}), 'add up to 1, got 0.5'),
  (lambda: dpftrl.Tuning({0: 0.5, 1: 0.5}), 'law must be at least 1'),
  (lambda: dpftrl.Tuning({1: 1.0}, 3), 'mean and most are not for a law'),
  (lambda: dpftrl.Tuning.parse('geometric'), 'LAW:MEAN:MOST'),
  (lambda: dpftrl.Tuning.parse('geometric:1:2:3'), 'LAW:MEAN:MOST'),
  (lambda: LAWS['ten'].epsilon(run(), 1e-200), 'delta must be at least 1e-100'),
])  # fmt: skip
def test_wrong_ways_are_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()


def test_a_coin_that_runs_share_breaks_the_bound():
  """So runs with secret draws are refused."""
  law, q, epsilon = dpftrl.Tuning({7: 1.0}), 0.1, 2.0
  z = np.linspace(-9.0, 8.0, 20_001)
  ends = special.ndtri((1 - q) * special.ndtr(z) + q * special.ndtr(z - 1.0))  # with the device
  top = lambda t: special.ndtr(np.interp(special.ndtri(t), ends, z))
  own = expected(law, 1.0, epsilon, top=top, ratio=lambda x: 1 - q + q * np.exp(x - 0.5))
  fresh, shared = (attacked(law, 1.0, delta_at(epsilon), **{of: q}) for of in ('fresh', 'coin'))
  assert (own, fresh, shared) == pytest.approx((2.03e-5, 1.65e-5, 1.05e-2), rel=0.01)
  assert fresh < own < shared
  scheme = sampling.CyclicPoisson(num_rounds=8, num_examples=100, batch_size=10)
  for drawn in (scheme, dpftrl.SecretBins(8, 4)):
    amplified = accountant.account('identity', drawn, noise_multiplier=2.0, delta=1e-6)
    with pytest.raises(ValueError, match='drawn in secret are not covered'):
      law.epsilon(amplified)


@pytest.mark.parametrize(
  'name, eta, stated, wrong, reached',
  [('geometric', 1, 8.963, None, 6.882), ('logarithmic', 0, 7.860, 5.671, 6.539)],
)
def test_renyi_bound_is_above_the_attack_and_this_one(name, eta, stated, wrong, reached):
  """Papernot and Steinke 2022, theorem 2; η in place of 1 + η falls below the attack."""
  rho, delta, mean = 0.5, 1e-6, 10.0
  gamma = 0.1 if eta else LOG
  best = min((a - 1) * rho + math.log(1 / gamma) / a for a in np.linspace(1.01, 60, 6000))

  def epsilon(factor):
    def at(alpha):
      renyi = rho * alpha + factor * best + math.log(mean) / (alpha - 1)
      return renyi + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1)

    return min(map(at, np.linspace(1.1, 60, 6000)))

  assert epsilon(1 + eta) == pytest.approx(stated, abs=0.02)
  assert reached < LAWS[name].epsilon(run()) < epsilon(1 + eta)
  if wrong is not None:
    assert epsilon(eta) == pytest.approx(wrong, abs=0.02) and epsilon(eta) < reached
