"""Exact joint laws of releases with noise in integers, against the curve of one Gaussian."""

import itertools
import math
from typing import ClassVar

import numpy as np
import scipy.stats

from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.noise import integer_rows, normals
from tests.noise import plain

_EPSILONS = np.concatenate([np.linspace(0.0, 4.0, 60), np.linspace(4.2, 30.0, 60)])
_NEGLIGIBLE = 1e-13


class _World:
  """A run on inputs x, for many transcripts at once: one coordinate each."""

  def __init__(self, executor, strategy, num_rounds, bits, inputs, size):
    self._stream = executor(strategy, num_rounds, size, self._take, bits=bits)
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


def worst_ratio(strategy, num_rounds, bits, this, other, mu, executor=plain.stream):
  """The largest δ(ε) of the exact joint law over δ of a Gaussian shifted by μ."""
  rows = lattice.rows(strategy, num_rounds)
  grids = [
    np.arange(-reach, reach + 1)
    for reach in (math.ceil(8.5 * abs(row.spread) * 2.0**bits + 1) for row in rows)
  ]
  fresh = np.array([each.ravel() for each in np.meshgrid(*grids, indexing='ij')])
  size = fresh.shape[1]
  released, log = _World(executor, strategy, num_rounds, bits, this, size).releases(fresh)
  assert abs(np.exp(log).sum() - 1.0) < 1e-12
  log_other = _World(executor, strategy, num_rounds, bits, other, size).log_chances(released)
  excess = np.exp(log)[:, None] * -np.expm1(np.minimum(_EPSILONS + (log_other - log)[:, None], 0.0))
  deltas = excess.sum(axis=0)
  norm = scipy.stats.norm
  gaussian = norm.cdf(mu / 2 - _EPSILONS / mu) - np.exp(
    _EPSILONS + norm.logcdf(-mu / 2 - _EPSILONS / mu)
  )
  return float(((deltas - _NEGLIGIBLE) / np.maximum(gaussian, _NEGLIGIBLE)).max())


def fixed(values):
  return lambda t, released: np.int64(values[t])


def shift(strategy, num_rounds, bits, difference, *, extra=True):
  """μ of the theorem for inputs that differ by these integers."""
  matrix = strategy.strategy_matrix(num_rounds)
  mu = float(np.linalg.norm(matrix @ np.asarray(difference, float))) * 2.0**-bits
  if extra:
    norm = lattice.rounding_norm(strategy, num_rounds)
    off = lattice.carried_error(strategy, num_rounds, bits)
    mu += norm * (1.0 + 2.0 * off) * math.sqrt(num_rounds) * 2.0**-bits
  return mu


def pairs(strategy, num_rounds, bits, number=5):
  """Yields (this, other, μ) for some differences of fixed inputs, in both directions."""
  zero = (0,) * num_rounds
  for difference in itertools.islice(itertools.product((1, 0, 2), repeat=num_rounds), number):
    mu = shift(strategy, num_rounds, bits, difference)
    yield fixed(difference), fixed(zero), mu
    yield fixed(zero), fixed(difference), mu


class _Table:
  """Takes the place of `normals.Normals`: what a test says is drawn in each round."""

  def __init__(self, seed=b''):
    del seed

  drawn: ClassVar[dict] = {}

  def fill(self, row, chunk, scale, out):
    first = chunk * normals.CHUNK
    out[:] = self.drawn[row][first : first + out.size]


def engine_stream(monkeypatch):
  """Returns an executor like `plain.stream` whose rows a `RowMaker` makes."""
  monkeypatch.setattr(integer_rows.normals, 'Normals', _Table)
  monkeypatch.setattr(
    integer_rows, '_workspace', lambda seed: (_Table(), np.empty((4, 8 * normals.CHUNK)))
  )

  def stream(strategy, num_rounds, size, fresh, *, bits=lattice.BITS):
    maker = integer_rows.RowMaker(
      strategy, size=size, num_rounds=num_rounds, seed=b'', num_threads=1, bits=bits
    )
    spreads = [abs(row.spread) * 2.0**bits for row in lattice.rows(strategy, num_rounds)]

    def next_fn(state):
      t, buffers, versions, drawn = state
      maker.buffers[:] = buffers
      maker.restore(t, versions)
      drawn = {**drawn, t: fresh(t, spreads[t])}
      _Table.drawn, row = drawn, np.empty(size, np.int64)
      maker.make(row)
      return row, (t + 1, maker.buffers.copy(), list(maker.versions), drawn)

    init = lambda: (0, np.zeros_like(maker.buffers), [-1] * len(maker.buffers), {})
    return plain.Stream(init, next_fn, lambda state: next_fn(state)[1])

  return stream
