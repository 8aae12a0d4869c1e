"""Rows of noise in integers: what their roundings cost, and exact joint laws of releases."""

import fractions
import math

import numpy as np
import pytest

from fl_dpftrl.mechanisms import lattice, linear_noise
from fl_dpftrl.mechanisms.families import banded_inverse
from tests import every_family
from tests.noise import joint_law
from tests.noise.joint_law import fixed, shift, worst_ratio

_CASES = [
  pytest.param(name, bits, num_rounds, id=f'{name}, 2^{bits}, {num_rounds} rounds')
  for name in every_family.FAMILIES
  for bits, num_rounds in ((-2, 2), (2, 2), (-2, 3))
]


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'bits', 'num_rounds'), _CASES)
def test_releases_are_as_private_as_one_gaussian(name, bits, num_rounds):
  strategy = every_family.example(name, num_rounds)
  for this, other, mu in joint_law.pairs(strategy, num_rounds, bits):
    assert worst_ratio(strategy, num_rounds, bits, this, other, mu) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize('name', every_family.FAMILIES)
def test_releases_with_rows_of_the_engine_are(name, monkeypatch):
  strategy, executor = every_family.example(name, 3), joint_law.engine_stream(monkeypatch)
  for this, other, mu in joint_law.pairs(strategy, 3, -2, 3):
    assert worst_ratio(strategy, 3, -2, this, other, mu, executor) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize('name', ['blt', 'banded', 'banded_toeplitz', 'tree_online', 'lambda_cgd'])
def test_the_rounding_of_carried_parts_is_needed(name):
  """Without its term in μ, some exact law is above the Gaussian curve by far."""
  strategy = every_family.example(name, 3)
  ratios = [
    worst_ratio(
      strategy,
      3,
      bits,
      fixed(difference),
      fixed((0, 0, 0)),
      shift(strategy, 3, bits, difference, extra=False),
    )
    for bits in (-2, -1, 0)
    for difference in ((1, 0, 0), (1, 1, 0), (0, 1, 1), (2, 1, 0))
  ]
  assert max(ratios) > 1.01


@pytest.mark.slow
def test_the_weights_of_normals_decide_not_the_smallest_spread():
  """C = 1/(4 − 2L): ‖C‖/min s would be too small, ‖B⁻¹‖ is not."""
  strategy = banded_inverse.BandedInverse([4.0, -2.0])
  this, other = fixed((2, 1)), fixed((0, 0))
  right = shift(strategy, 2, -2, (2, 1))
  assert worst_ratio(strategy, 2, -2, this, other, right) <= 1.0
  matrix = strategy.strategy_matrix(2)
  spread = min(abs(row.spread) for row in lattice.rows(strategy, 2))
  wrong = float(np.linalg.norm(matrix @ [2.0, 1.0])) * 4.0
  wrong += float(np.linalg.norm(matrix, 2)) / spread * math.sqrt(2.0) * 4.0
  assert wrong < right
  assert worst_ratio(strategy, 2, -2, this, other, wrong) > 1.01


@pytest.mark.slow
@pytest.mark.parametrize('name', ['identity', 'blt', 'banded', 'tree_full', 'banded_inverse'])
def test_inputs_may_depend_on_what_was_released(name):
  """A device takes part in the second round in one way or another, after the first release."""
  strategy = every_family.example(name, 2)

  def adaptive(t, released):
    return np.int64(1) if t == 0 else np.where(released[0] > 0, 2, -1)

  for bits in (-2, 0, 2):
    mu = max(shift(strategy, 2, bits, difference) for difference in ((1, 2), (1, -1)))
    for this, other in ((adaptive, fixed((0, 0))), (fixed((0, 0)), adaptive)):
      assert worst_ratio(strategy, 2, bits, this, other, mu) <= 1.0


@pytest.mark.parametrize('num_rounds', [1, 2, 7, 33])
def test_roundings_move_the_normals_by_at_most_the_norm(example, num_rounds):
  strategy = example(num_rounds)
  made = list(lattice.rows(strategy, num_rounds))
  weights = lattice._weights(strategy.noise(num_rounds), made)
  exact = float(np.linalg.norm(np.linalg.inv(weights), 2))
  assert exact <= lattice.rounding_norm(strategy, num_rounds) <= 1.001 * exact


def test_norms_of_long_runs_are_upper_bounds(monkeypatch):
  for strategy in (
    every_family.example('lambda_cgd', 9),
    every_family.example('banded_inverse', 9),
  ):
    exact = lattice.rounding_norm(strategy, 300)
    monkeypatch.setattr(lattice, '_MAX_EXACT_ROUNDS', 100)
    assert exact <= lattice.rounding_norm(strategy, 300) <= 3.0 * exact
    monkeypatch.setattr(lattice, 'MAX_DENSE_ROUNDS', 100)
    assert exact <= lattice.rounding_norm(strategy, 300) <= 3.0 * exact
    monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.parametrize('num_rounds', [2, 40])
def test_float64_moves_carried_parts_less_than_said(example, num_rounds):
  """A is computed from the same rows in fractions, where every number is meant exactly."""
  strategy, bits = example(num_rounds), 40
  normals = np.random.default_rng(num_rounds).normal(size=(num_rounds, 3))
  normals[0, 0], normals[-1, 1] = 36.0, -36.0
  off = lattice.carried_error(strategy, num_rounds, bits)
  worst = max(_carried_errors(strategy, num_rounds, bits, normals))
  assert worst <= off
  assert off < 10.0 or worst > 0.0


def _carried_errors(strategy, num_rounds, bits, normals):
  """|A before its rounding − its value in fractions|, by round."""
  noise, rows = strategy.noise(num_rounds), lattice.rows(strategy, num_rounds)
  fraction = np.vectorize(fractions.Fraction, otypes=[object])
  floats, exacts, drawn, exact_drawn = linear_noise.start(noise, 3), None, [], []
  exacts = fraction(floats)
  for t, row in enumerate(rows):
    if row.step.restart:
      floats = linear_noise.start(noise, 3)
      exacts = fraction(floats)
    carried = []
    for buffers, values in ((floats, drawn), (exacts, exact_drawn)):
      below = np.asarray(row.step.below)[: len(buffers)]
      exactly = buffers is exacts
      below = fraction(below) if exactly and below.size else below
      total = -(below @ buffers[: len(below)]) if len(below) else buffers[:0].sum(axis=0)
      for group, weight in row.reads:
        total = total + (fractions.Fraction(weight) if exactly else weight) * values[group]
      factor = fractions.Fraction(row.step.scale) / fractions.Fraction(row.step.diagonal)
      carried.append(total * (factor if exactly else row.factor))
    yield max(abs(float(fractions.Fraction(a) - b)) for a, b in zip(*carried))
    made = np.rint(abs(row.spread) * 2.0**bits * normals[t])
    result = np.rint(carried[0].astype(float)) + made
    drawn.append(made / row.spread)
    exact_drawn.append(fraction(made) / fractions.Fraction(row.spread))
    oldest = [
      row.oldest[1] * values[row.oldest[0]] if row.oldest else np.zeros(3)
      for values in (drawn, exact_drawn)
    ]
    y = result / row.step.scale
    floats = linear_noise.entered(noise, row.step, y, oldest[0], floats)
    exact_y = fraction(result) / fractions.Fraction(row.step.scale)
    exact_step = row.step
    if isinstance(row.step.update, linear_noise.Add):
      exact_step = row.step._replace(
        update=linear_noise.Add(*(fraction(np.asarray(each, float)) for each in row.step.update))
      )
    exacts = linear_noise.entered(noise, exact_step, exact_y, fraction(oldest[1]), exacts)
