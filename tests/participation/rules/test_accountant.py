"""Amplified BandMF, against DP-SGD and unamplified accounts; tests/golden has published figures."""

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_privacy_accountant

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities, workload_error
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import sampled_gaussian
from fl_dpftrl.participation.rules import sampling
from tests import made


def draws(**kwargs):
  defaults = {'num_rounds': 64, 'num_examples': 1000, 'batch_size': 50}
  return sampling.CyclicPoisson(**{**defaults, **kwargs})


@pytest.mark.parametrize('parts', [1, 2])
def test_each_part_is_dp_sgd(parts):
  scheme = draws(num_rounds=100 * parts, num_examples=1000 * parts, batch_size=20, num_parts=parts)
  dp_sgd = accountant.account(dpftrl.Identity(), scheme, noise_multiplier=0.9, delta=1e-5)
  assert dp_sgd.epsilon() == sampled_gaussian.epsilon(0.9, 1e-5, probability=0.02, count=100)
  assert (dp_sgd.sensitivity, dp_sgd.adjacency) == (1.0, 'zero_out')
  theirs = pld_privacy_accountant.PLDAccountant().compose(dp_sgd.to_dp_event())
  assert theirs.get_epsilon(1e-5) == pytest.approx(dp_sgd.epsilon(), rel=1e-3)
  with pytest.raises(ValueError, match='too small for a privacy loss distribution'):
    accountant.account(dpftrl.Identity(), scheme, noise_multiplier=0.9, delta=[1e-5, 1e-16])


ROWS = np.random.default_rng(0).uniform(0.2, 1.0, (64, 4))
ROWS[np.arange(64)[:, None] < np.arange(4)] = 0.0


@pytest.mark.parametrize(
  'strategy',
  [dpftrl.Banded(ROWS), dpftrl.BandedToeplitz(ROWS[-1]), dpftrl.BandedToeplitz(ROWS[-1], 64)],
)
def test_noise_counts_by_the_largest_column(strategy):
  norm = np.linalg.norm(strategy.strategy_matrix(64), axis=0).max()
  guarantee = accountant.account(strategy, draws(num_parts=5), noise_multiplier=2.0, delta=1e-6)
  assert guarantee.sensitivity == pytest.approx(norm, rel=1e-12)
  assert guarantee.effective_noise_multiplier == pytest.approx(2.0 / norm)
  assert guarantee.epsilon() == pytest.approx(
    sampled_gaussian.epsilon(2.0 / norm, 1e-6, probability=0.25, count=13), rel=1e-9
  )


def test_whole_parts_are_not_amplified():
  """A part a round is the fixed separation of an ordinary account."""
  strategy = dpftrl.BandedToeplitz([1.0, 0.5, 0.25, 0.1], 64)
  amplified = accountant.account(
    strategy,
    draws(num_examples=1600, batch_size=100, num_parts=16),
    noise_multiplier=3.0,
    delta=1e-6,
  )
  ordinary = dpftrl.account(
    strategy, dpftrl.FixedSeparation(num_rounds=64, min_sep=16), noise_multiplier=3.0, delta=1e-6
  )
  assert ordinary.sensitivity_kind == 'exact'
  assert amplified.epsilon() == pytest.approx(ordinary.epsilon(), rel=1e-9)


def test_bands_that_overlap_would_break_the_guarantee():
  """More bands than parts: turns of a part share rows of C, and add up there."""
  strategy = dpftrl.Banded([[1.0, 0.0], [1.0, 1.0]])
  with pytest.raises(ValueError, match='num_parts=1 is fewer than the 2 bands'):
    accountant.account(
      strategy, draws(num_rounds=2, batch_size=500), noise_multiplier=4.0, delta=1e-6
    )
  # Drawn twice, an example moves C x by ‖(1, 2)‖: more than separate releases
  # moved by √2 and 1, the norms of its columns, would.
  matrix = strategy.strategy_matrix(2)
  moved = np.linalg.norm(matrix.sum(axis=1))
  assert moved > np.linalg.norm(np.linalg.norm(matrix, axis=0))


class Understated(dpftrl.Banded):
  def sensitivity(self, schema):
    return sensitivities.Sensitivity(0.1, sensitivities.LOWER_BOUND)


@made.cases(
  'strategy, noise, message',
  (Understated(np.ones((64, 1))), 1.0, 'exact column norms or an upper bound'),
  (dpftrl.BLT([0.9], [0.1]), 1.0, "banded strategy .*'blt'"),
  (dpftrl.Banded(np.ones((8, 1))), 1.0, 'num_rounds=64'),
  *((dpftrl.Identity(), x, f'noise_multiplier.*{x}') for x in (0.0, -1.0, math.inf, math.nan)),
)
def test_refuses_strategies_and_noise(strategy, noise, message):
  with pytest.raises(ValueError, match=message):
    accountant.account(strategy, draws(), noise_multiplier=noise, delta=1e-6)


def test_candidates():
  candidates = lambda **run: sampling.CyclicPoisson(**run).candidate_bands()
  many = candidates(num_rounds=2052, num_examples=342_000, batch_size=1000)
  assert many == (*(2**i for i in range(9)), 342)
  assert candidates(num_rounds=3, num_examples=1000, batch_size=1) == (1, 2, 3)
  with pytest.raises(ValueError, match='batch_size=9'):
    candidates(num_rounds=8, num_examples=8, batch_size=9)


@pytest.mark.slow
def test_best_bands_have_least_noise():
  run = {'num_rounds': 32, 'num_examples': 640, 'batch_size': 40}
  once = dpftrl.MinSep(num_rounds=32, max_participations=1)
  bands = sampling.CyclicPoisson(**run).candidate_bands()
  assert bands == (1, 2, 4, 8, 16)
  strategies = [dpftrl.optimize('banded', once, objective='rms', num_bands=b) for b in bands]
  best, guarantee = accountant.choose(
    strategies, sampling.CyclicPoisson(**run), epsilon=4.0, delta=1e-6
  )
  noise = {}
  for b, strategy in zip(bands, strategies):
    scheme = sampling.CyclicPoisson(**run, num_parts=b)
    found = accountant.calibrate(strategy, scheme, epsilon=4.0, delta=1e-6)
    assert 4.0 * (1.0 - 1e-4) <= found.epsilon() <= 4.0
    noise[b] = found.noise_multiplier * workload_error.error(strategy, 32).rms
  least = min(noise, key=noise.get)
  assert best is strategies[bands.index(least)] and 1 < least < 16
  assert guarantee.noise_multiplier == pytest.approx(
    noise[least] / workload_error.error(best, 32).rms
  )
  with pytest.raises(ValueError, match='at least one'):
    accountant.choose([], sampling.CyclicPoisson(**run), epsilon=4.0, delta=1e-6)
