"""The stated distance of ε from the best attack, against decimals of 40 digits."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.participation.accounting import arithmetics, guarantees
from fl_dpftrl.prove.replaying import opened_runs, tightness
from tests import every_participation, made
from tests.prove.replaying.in_memory import log_of

mpmath = pytest.importorskip('mpmath')
DIGITS = 40


def epsilon_of(mu, delta):
  """ε of a Gaussian shift, the root of δ(ε), in decimals."""
  with mpmath.workdps(DIGITS):
    mu, delta, phi = mpmath.mpf(mu), mpmath.mpf(delta), mpmath.ncdf
    gap = lambda e: phi(mu / 2 - e / mu) - mpmath.exp(e) * phi(-mu / 2 - e / mu) - delta
    low, high = mpmath.mpf(0), mpmath.mpf(1)
    if gap(low) <= 0:
      return low
    while gap(high) > 0:
      high *= 2
    for _ in range(120):
      middle = (low + high) / 2
      low, high = (middle, high) if gap(middle) > 0 else (low, middle)
    return high


def norm_of(columns, pattern):
  """‖C 1‖ of a pattern; columns: a function from a round to its column, from that round on."""
  with mpmath.workdps(DIGITS):
    total = None
    for t in pattern:
      column = [mpmath.mpf(0)] * t + columns(t)
      total = column if total is None else [a + b for a, b in zip(total, column)]
    return mpmath.sqrt(mpmath.fsum(x * x for x in total))


def of_matrix(strategy, n):
  matrix = strategy.strategy_matrix(n)
  return lambda t: [mpmath.mpf(float(x)) for x in matrix[t:, t]]


def patterns(n, b, k):
  for size in range(1, k + 1):
    for pattern in itertools.combinations(range(n), size):
      if all(t - s >= b for s, t in itertools.pairwise(pattern)):
        yield pattern


EXACT = {
  'identity': dpftrl.Identity(),
  'tree': dpftrl.TreeOnline(),
  'blt': made.BLT,
  'banded': dpftrl.BandedToeplitz([1.0, 0.5, 0.3]),
}


@pytest.mark.parametrize('delta', [1e-3, 1e-10])
@pytest.mark.parametrize('noise_multiplier', [0.5, 7.0])
@pytest.mark.parametrize('name', EXACT)
def test_an_exact_figure_is_as_close_as_it_says(name, noise_multiplier, delta):
  strategy, (n, b, k) = EXACT[name], (9, 3, 3)
  guarantee = dpftrl.account(
    strategy, dpftrl.MinSep(n, b, k), noise_multiplier=noise_multiplier, delta=delta
  )
  assert guarantee.sensitivity_kind == 'exact'
  columns = of_matrix(strategy, n)
  norm = max(norm_of(columns, pattern) for pattern in patterns(n, b, k))
  true = epsilon_of(norm / noise_multiplier, delta)
  result = tightness.tightness(guarantee)
  assert abs(guarantee.epsilon() - true) <= result.distance <= 1e-8 * (1 + guarantee.epsilon())
  assert result.kind == 'exact' and str(result).startswith('exact to ')


@pytest.mark.slow
@pytest.mark.parametrize('noise_multiplier', [1.0, 7.379])
def test_a_long_run_is_as_close_as_it_says(noise_multiplier):
  strategy, (n, b, k) = dpftrl.load_strategy('blt-b400'), (2052, 342, 6)
  guarantee = dpftrl.account(
    strategy, dpftrl.MinSep(n, b, k), noise_multiplier=noise_multiplier, delta=1e-10
  )
  with mpmath.workdps(DIGITS):
    parameters = (strategy.buffer_decay, strategy.output_scale)
    decays, scales = ([mpmath.mpf(float(x)) for x in part] for part in parameters)
    column = [mpmath.mpf(1)]
    powers = [mpmath.mpf(1) for _ in decays]
    for _ in range(n - 1):
      column.append(mpmath.fsum(w * p for w, p in zip(scales, powers)))
      powers = [p * d for p, d in zip(powers, decays)]
  norm = norm_of(lambda t: column[: n - t], range(0, k * b, b))
  true = epsilon_of(norm / noise_multiplier, 1e-10)
  assert abs(guarantee.epsilon() - true) <= tightness.tightness(guarantee).distance <= 1e-7


class Loose(dpftrl.BandedToeplitz):
  """Bands whose sensitivity is known only up to a tenth."""

  family = 'loose'
  endless_gram = dpftrl.Strategy.endless_gram

  def sensitivity(self, schema):
    value = super().sensitivity(schema).value
    return sensitivities.Sensitivity(1.1 * value, sensitivities.UPPER_BOUND)


def replayed(strategy=made.BLT, rows=((0, 'a'), (3, 'a'), (1, 'b')), n=9, **claim):
  claim = {'noise_multiplier': 3.0, 'participation': dpftrl.MinSep(9, 3, 3)} | claim
  options = {name: claim.pop(name) for name in ('group_size', 'adjacency') if name in claim}
  run = opened_runs.RecordedRun.of(log_of(list(rows), n), strategy, **claim)
  return dpftrl.replay(run, delta=[1e-6, 1e-9], **options)


@made.cases(
  'strategy, options',
  (Loose([1.0, 0.5, 0.3]), {}),
  (Loose([1.0, -0.5, 0.3]), {}),
  (Loose([1.0, 0.5, 0.3]), dict(adjacency='replace_one')),
  (dpftrl.BandedToeplitz([1.0, 0.5, 0.3]), dict(group_size=2)),
  (Loose([1.0, 0.9, 0.8, 0.7, 0.6]), {}),
)
def test_an_upper_bound_is_no_farther_above_the_truth_than_it_says(strategy, options):
  part = replayed(strategy, **options).planned
  factor = 2 if options else 1
  columns = of_matrix(strategy, 9)
  most = max(norm_of(columns, pattern) for pattern in patterns(9, 3, 3))
  assert part.attack <= factor * most * (1 + 1e-12)  # Updates reach it.
  result = part.tightness
  for delta in part.guarantee.deltas:
    true, stated = epsilon_of(factor * most / 3.0, delta), part.guarantee.epsilon(delta)
    assert true - 1e-12 <= stated <= true + result.distance
  assert result.kind == 'upper_bound' and 'above a known attack' in str(result)
  is_loose = isinstance(strategy, Loose)
  assert (result.distance > 0.05) == is_loose and (is_loose or result.distance < 1e-8)


@pytest.mark.parametrize('num_coordinates', [10, 10**9])
def test_whole_numbers_are_a_bound_by_what_rounding_adds(num_coordinates):
  covered = arithmetics.Arithmetic.covered(num_coordinates)
  part = replayed(arithmetic=covered).planned
  plain = replayed().planned
  result, guarantee = part.tightness, part.guarantee
  assert str(result).endswith('above the exact one, without rounding')
  for delta in guarantee.deltas:
    gap = guarantee.epsilon(delta) - epsilon_of(plain.guarantee.sensitivity / 3.0, delta)
    assert 0 <= gap <= result.distance
  assert result.distance <= 1e-3 and result.kind == 'upper_bound'


@pytest.mark.parametrize('name', ['loss_budget', 'bins'])
def test_no_number_stands_where_no_attack_is_known(name):
  participation = every_participation.EXAMPLES[name].participation
  statement = replayed(rows=[(0, 'a')], n=6, participation=participation)
  assert statement.planned.tightness == tightness.Tightness('upper_bound')
  assert str(statement.planned.tightness) == 'upper bound'


def test_a_statement_has_a_distance_beside_each_figure():
  statement = replayed()
  document = json.loads(json.dumps(statement.to_json()))
  for name in ('worst_case', 'observed', 'declared'):
    assert document[name]['tightness']['kind'] == 'exact'
    assert 0 < document[name]['tightness']['distance'] < 1e-8
  for part, public in zip(
    (statement.parts[0], statement.planned), statement.publishable().parts, strict=True
  ):
    assert part.tightness == public.tightness
  void = replayed(noise_multiplier=0.0)
  assert void.worst_case.void_reason and void.parts[0].tightness is None
  assert void.to_json()['worst_case']['tightness'] is None


def test_the_attack_follows_no_rounding_of_the_bound():
  guarantee = replayed().planned.guarantee
  assert isinstance(guarantee, guarantees.Guarantee)
  bound = dataclasses.replace(guarantee, sensitivity_kind='upper_bound')
  distances = [
    tightness.tightness(bound, attack * guarantee.sensitivity).distance
    for attack in np.linspace(0.5, 1.0, 6)
  ]
  assert distances == sorted(distances, reverse=True) and distances[-1] < 1e-8
