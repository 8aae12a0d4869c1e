"""Rows of noise in integers: exact joint laws of releases against the Gaussian curve."""

import fractions
import itertools
import math

import numpy as np
import pytest
import scipy.stats

from fl_dpftrl.families import banded_inverse, lattice, linear_noise
from fl_dpftrl.noise import reference
from tests import every_family, oracle

_EPSILONS = np.concatenate([np.linspace(0.0, 4.0, 60), np.linspace(4.2, 30.0, 60)])
_NEGLIGIBLE = 1e-13


class _World:
  """A run on inputs x, for many transcripts at once: one coordinate each."""

  def __init__(self, strategy, num_rounds, bits, inputs, size):
    self._stream = reference.lattice_stream(strategy, num_rounds, size, bits, self._take)
    self._rows = lattice.rows(strategy, num_rounds)
    self._inputs, self._bits, self._size = inputs, bits, size

  def _take(self, t, scale):
    del t
    self._scale = scale
    return self._fresh

  def releases(self, fresh):
    """Returns y for given fresh parts [rounds, size], and the log of their probability."""
    state, log, released = self._stream.init(), np.zeros(self._size), []
    for part in fresh:
      self._fresh = part
      row, state = self._stream.next(state)
      log += _log_chance(part, self._scale)
      released.append(row + self._inputs(len(released), released))
    return released, log

  def log_chances(self, released):
    """Returns the log of the probability of each transcript."""
    state, log = self._stream.init(), np.zeros(self._size)
    for t, y in enumerate(released):
      self._fresh = np.zeros(self._size, np.int64)
      carried, _ = self._stream.next(state)
      self._fresh = y - self._inputs(t, released[:t]) - carried
      row, state = self._stream.next(state)
      np.testing.assert_array_equal(row + self._inputs(t, released[:t]), y)
      log += _log_chance(self._fresh, self._scale)
    return log


def _log_chance(values, scale):
  """log P(round(scale · ξ) = value), exact in the tails."""
  low, high = (np.abs(values) - 0.5) / scale, (np.abs(values) + 0.5) / scale
  near = np.log(scipy.stats.norm.cdf(high) - scipy.stats.norm.cdf(low) + 1e-300)
  log_low, log_high = scipy.stats.norm.logsf(low), scipy.stats.norm.logsf(high)
  far = log_low + np.log1p(-np.exp(log_high - log_low))
  return np.where(low > 1.0, far, near)


def _worst_ratio(strategy, num_rounds, bits, this, other, mu):
  """The largest δ(ε) of the exact joint law over δ of a Gaussian shifted by μ."""
  rows = lattice.rows(strategy, num_rounds)
  grids = [
    np.arange(-reach, reach + 1)
    for reach in (math.ceil(8.5 * abs(row.spread) * 2.0**bits + 1) for row in rows)
  ]
  fresh = np.array([each.ravel() for each in np.meshgrid(*grids, indexing='ij')])
  size = fresh.shape[1]
  released, log = _World(strategy, num_rounds, bits, this, size).releases(fresh)
  assert abs(np.exp(log).sum() - 1.0) < 1e-12
  log_other = _World(strategy, num_rounds, bits, other, size).log_chances(released)
  excess = np.exp(log)[:, None] * -np.expm1(np.minimum(_EPSILONS + (log_other - log)[:, None], 0.0))
  deltas = excess.sum(axis=0)
  norm = scipy.stats.norm
  gaussian = norm.cdf(mu / 2 - _EPSILONS / mu) - np.exp(
    _EPSILONS + norm.logcdf(-mu / 2 - _EPSILONS / mu)
  )
  return float(((deltas - _NEGLIGIBLE) / np.maximum(gaussian, _NEGLIGIBLE)).max())


def _fixed(values):
  return lambda t, released: np.int64(values[t])


def _shift(strategy, num_rounds, bits, difference, *, extra=True):
  """μ of the theorem for inputs that differ by these integers."""
  matrix = strategy.strategy_matrix(num_rounds)
  mu = float(np.linalg.norm(matrix @ np.asarray(difference, float))) * 2.0**-bits
  if extra:
    norm = lattice.rounding_norm(strategy, num_rounds)
    off = lattice.carried_error(strategy, num_rounds, bits)
    mu += norm * (1.0 + 2.0 * off) * math.sqrt(num_rounds) * 2.0**-bits
  return mu


_CASES = [
  pytest.param(name, bits, num_rounds, id=f'{name}, 2^{bits}, {num_rounds} rounds')
  for name in every_family.FAMILIES
  for bits, num_rounds in ((-2, 2), (0, 2), (2, 2), (-2, 3), (0, 3))
]


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'bits', 'num_rounds'), _CASES)
def test_releases_are_as_private_as_one_gaussian(name, bits, num_rounds):
  strategy = every_family.example(name, num_rounds)
  zero = (0,) * num_rounds
  for difference in itertools.islice(itertools.product((1, 0, 2), repeat=num_rounds), 5):
    mu = _shift(strategy, num_rounds, bits, difference)
    for this, other in ((difference, zero), (zero, difference)):
      assert _worst_ratio(strategy, num_rounds, bits, _fixed(this), _fixed(other), mu) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize('name', ['blt', 'banded', 'banded_toeplitz', 'tree_online', 'lambda_cgd'])
def test_the_rounding_of_carried_parts_is_needed(name):
  """Without its term in μ, some exact law is above the Gaussian curve by far."""
  strategy = every_family.example(name, 3)
  ratios = [
    _worst_ratio(
      strategy,
      3,
      bits,
      _fixed(difference),
      _fixed((0, 0, 0)),
      _shift(strategy, 3, bits, difference, extra=False),
    )
    for bits in (-2, -1, 0)
    for difference in ((1, 0, 0), (1, 1, 0), (0, 1, 1), (2, 1, 0))
  ]
  assert max(ratios) > 1.01


@pytest.mark.slow
def test_the_weights_of_normals_decide_not_the_smallest_spread():
  """C = 1/(4 − 2L): ‖C‖/min s would be too small, ‖B⁻¹‖ is not."""
  strategy = banded_inverse.BandedInverse([4.0, -2.0])
  this, other = _fixed((2, 1)), _fixed((0, 0))
  right = _shift(strategy, 2, -2, (2, 1))
  assert _worst_ratio(strategy, 2, -2, this, other, right) <= 1.0
  matrix = strategy.strategy_matrix(2)
  spread = min(abs(row.spread) for row in lattice.rows(strategy, 2))
  wrong = float(np.linalg.norm(matrix @ [2.0, 1.0])) * 4.0
  wrong += float(np.linalg.norm(matrix, 2)) / spread * math.sqrt(2.0) * 4.0
  assert wrong < right
  assert _worst_ratio(strategy, 2, -2, this, other, wrong) > 1.01


@pytest.mark.slow
@pytest.mark.parametrize('name', ['identity', 'blt', 'banded', 'tree_full', 'banded_inverse'])
def test_inputs_may_depend_on_what_was_released(name):
  """A device takes part in the second round in one way or another, after the first release."""
  strategy = every_family.example(name, 2)

  def adaptive(t, released):
    return np.int64(1) if t == 0 else np.where(released[0] > 0, 2, -1)

  for bits in (-2, 0, 2):
    mu = max(_shift(strategy, 2, bits, difference) for difference in ((1, 2), (1, -1)))
    for this, other in ((adaptive, _fixed((0, 0))), (_fixed((0, 0)), adaptive)):
      assert _worst_ratio(strategy, 2, bits, this, other, mu) <= 1.0


def _stream_of(strategy, num_rounds, bits, normals):
  """Rows in integers for given normals by round."""
  fresh = lambda t, scale: np.rint(scale * normals[t]).astype(np.int64)
  stream = reference.lattice_stream(strategy, num_rounds, normals.shape[1], bits, fresh)
  return oracle.rows(stream, num_rounds)


@pytest.mark.parametrize('num_rounds', [1, 2, 7, 33])
def test_a_fine_lattice_has_the_covariance_of_the_noise(example, num_rounds):
  """Rows follow the normals as the first rows of N follow Z, merged as rounds draw them."""
  strategy = example(num_rounds)
  made = _stream_of(strategy, num_rounds, 36, np.eye(num_rounds)) * 2.0**-36
  noising = strategy.noising_matrix(num_rounds)
  np.testing.assert_allclose(made @ made.T, noising @ noising.T, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('num_rounds', [1, 2, 7, 33])
def test_roundings_move_the_normals_by_at_most_the_norm(example, num_rounds):
  strategy = example(num_rounds)
  weights = lattice.normal_weights(strategy, num_rounds)
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
  normals[:, 0] = 13.9 * np.sign(normals[:, 0])
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
      factor = fractions.Fraction(row.step.scale) / fractions.Fraction(row.step.own)
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
