"""Meters of devices against a slow meter of all pairs, in numbers of many digits."""

import mpmath
import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.families import stamped
from fl_dpftrl.mechanisms.sensitivities import endless
from fl_dpftrl.participation.counts import meter
from fl_dpftrl.participation.rules import loss_budgets


def slow_x(strategy, s: int, t: int):
  """Returns X[s, t] in 50 digits, from the parameters."""
  lag = t - s
  if isinstance(strategy, stamped.Stamped):
    size = strategy.block_rounds
    if s // size != t // size:
      return mpmath.mpf(0)
    column = strategy.strategy.column(size)[: size - t % size + lag].tolist()
    return abs(mpmath.fsum(mpmath.mpf(a) * b for a, b in zip(column, column[lag:])))
  if isinstance(strategy, dpftrl.BLT):
    decays = [mpmath.mpf(d) for d in strategy.buffer_decay]
    scales = [mpmath.mpf(w) for w in strategy.output_scale]
    pairs = list(zip(decays, scales))
    series = lambda d: mpmath.fsum(w * v * p**d / (1 - p * q) for p, w in pairs for q, v in pairs)
    if not lag:
      return 1 + series(0)
    return mpmath.fsum(w * p ** (lag - 1) for p, w in pairs) + series(lag)
  if isinstance(strategy, dpftrl.LambdaCGD):
    decay = mpmath.mpf(strategy.decay)
    return decay**lag / (1 - decay**2)
  if isinstance(strategy, dpftrl.BandedToeplitz):
    c = strategy.coefficients.tolist()
    return abs(mpmath.fsum(mpmath.mpf(a) * b for a, b in zip(c, c[lag:])))
  return mpmath.mpf(int(not lag))


def drawn_strategy(rng):
  kind = rng.integers(5)
  if kind == 0:
    return dpftrl.Identity()
  if kind == 1:
    return dpftrl.LambdaCGD(float(rng.uniform(0.0, 0.99)))
  if kind == 2:
    return dpftrl.BandedToeplitz(np.append(1.0, rng.uniform(-1.0, 1.0, rng.integers(1, 6))))
  size = int(rng.integers(1, 4))
  blt = dpftrl.BLT(1.0 - 10.0 ** -rng.uniform(0.1, 4.0, size), rng.dirichlet(np.ones(size + 1))[1:])
  return blt if kind == 3 else stamped.Stamped(blt, int(rng.integers(2, 9)))


def check_gate(seed: int) -> tuple[int, int]:
  """Runs a drawn gate beside the slow meter; returns how often it admitted and refused."""
  rng = np.random.default_rng(seed)
  strategy, gram = (drawn := drawn_strategy(rng)), drawn.endless_gram()
  limit = loss_budgets.LossBudget(squared=gram.own * rng.uniform(1.0, 6.0)).square(strategy)
  meters, past = meter.Meters(gram), {i: ([], mpmath.mpf(0)) for i in range(3)}
  counts = [0, 0]
  with mpmath.workdps(50):
    for t in range(24):
      ids = np.flatnonzero(rng.random(3) < 0.6)
      after = meters.losses(ids) + meters.charges(ids)
      cohort = ids[after <= limit]
      for i, value in zip(ids.tolist(), after.tolist()):
        rounds, loss = past[i]
        crossed = mpmath.fsum(slow_x(strategy, s, t) for s in rounds)
        exact = loss + slow_x(strategy, t, t) + 2 * crossed
        assert exact <= value <= exact * (1 + mpmath.mpf('1e-12'))
        if abs(exact - limit) > 1e-12 * limit:
          assert (value <= limit) == (exact <= limit)
        counts[value > limit] += 1
        if value <= limit:
          past[i] = [*rounds, t], exact
      meters.add(cohort)
  return counts[0], counts[1]


def test_drawn_gates_decide_as_a_slow_meter():
  admitted, refused = np.sum([check_gate(seed) for seed in range(12)], axis=0)
  assert admitted > 90 and refused > 90


@pytest.mark.thorough
def test_two_thousand_drawn_gates():
  for seed in range(12, 2012):
    check_gate(seed)


def test_every_pattern_of_the_named_schema_is_admitted():
  for name, strategy in {
    'blt': dpftrl.BLT([0.95, 0.4], [0.2, 0.3]),
    'id': dpftrl.Identity(),
  }.items():
    for most in range(1, 14):
      budget = loss_budgets.LossBudget(max_participations=most, min_sep=5)
      meters, limit = meter.Meters(strategy.endless_gram()), budget.square(strategy)
      for t in range(5 * most):
        come = np.array(['a']) if t % 5 == 0 else np.zeros(0, str)
        assert (meters.losses(come) + meters.charges(come) <= limit).all(), (name, most, t)
        meters.add(come)
      assert not (meters.losses(['a']) + meters.charges(['a']) <= limit).any()


class _DearAtFirst:
  """X of a stream whose row 0 costs 2⁵⁴ times as much as any other, without cross terms."""

  least = 1.0

  def tabulated(self, num_rounds):
    return self

  def entries(self, earlier, later):
    own = np.where(later == 0, 2.0**54, 1.0)
    return np.where(np.equal(earlier, later), own, 0.0)


def test_sums_of_any_number_are_not_too_small():
  tiny = 2.0**-54  # Less than half of what separates float64 at 1.
  meters = meter.Meters(_DearAtFirst(), weight=tiny)
  for count in range(51):
    meters.add([7])
    assert mpmath.mpf(float(meters.losses([7])[0])) >= 1 + count * mpmath.mpf(2) ** -54


def test_numbered_devices_start_anew():
  numbered = meter.Meters(dpftrl.BLT([0.9], [0.3]).endless_gram(), numbered=True)
  numbered.add(np.array([5, 7]))
  (loss, same, other) = numbered.losses(np.array([5, 7, 9]))
  assert loss == same > 1.0 and other == 0.0
  numbered.forget(np.array([5]))
  assert numbered.losses(np.array([5, 7, 9])).tolist() == [0.0, loss, 0.0]


def test_another_gram_lowers_losses_and_raises_none():
  """X of the rows that a run had is no more than that of all of them."""
  strategy, rng = dpftrl.BLT([0.9], [0.3]), np.random.default_rng(3)
  meters = meter.Meters(strategy.endless_gram(), numbered=True)
  cohorts = [rng.choice(20, 8, replace=False) for _ in range(12)]
  for cohort in cohorts:
    meters.add(cohort)
  before = meters.losses(np.arange(20))
  matrix = strategy.strategy_matrix(12)
  meters.limit(endless.FiniteGram.of(strategy.gram_entries(12), 12))
  for device, loss, largest in zip(range(20), meters.losses(np.arange(20)), before):
    mine = [t for t, cohort in enumerate(cohorts) if device in cohort]
    truth = float((matrix[:, mine].sum(axis=1) ** 2).sum())
    assert truth <= loss <= truth * (1.0 + 1e-9) and loss <= largest
