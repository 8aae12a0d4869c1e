"""A run whose noise changes: its releases' covariance, what it proves, and what is refused."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.guarding import guard
from fl_dpftrl.logs import refusals

BLT = dpftrl.BLT((0.9, 0.5), (0.3, 0.2))
SIZE, GOAL = 3000, 2
SCHEMA = dpftrl.MinSep(num_rounds=8, min_sep=2)


def opened(folder, **arguments):
  defaults = dict(
    template=np.zeros(SIZE), noise_multiplier=3.0, clip_norm=0.5, report_goal=GOAL, noise_seed=1
  )
  return dpftrl.PrivateAggregator(BLT, folder=folder, **defaults | arguments)


def secret(folder, **arguments):
  return opened(folder, noise_seed=None, schema=SCHEMA, delta=1e-6, **arguments)


def play(aggregator, update=None):
  update = np.zeros(SIZE) if update is None else update
  t = aggregator.next_round
  with aggregator.round([t % 2 * GOAL + i for i in range(GOAL)]) as round_:
    for _ in range(GOAL):
      round_.add(update)
  return GOAL * round_.mean


def brute_epsilon(rows, changes, delta):
  """Returns ε of the device that is in these rows, of Gaussian noise with the given changes.

  Source: releases are x + σ·N Z, each row with its own standard deviation and bound.
  """
  from scipy import optimize, stats

  n = rows[-1] + 1
  at = lambda t: [change for change in changes if change[0] <= t][-1]
  noise = BLT.noising_matrix(n)
  deviation = np.diag([at(t)[1] * at(t)[2] for t in range(n)]) @ noise
  inverse = np.linalg.inv(deviation)
  shifts = [inverse[:, t] * at(t)[2] for t in rows]
  exact = max(
    np.linalg.norm(sum(sign * shift for sign, shift in zip(signs, shifts)))
    for signs in np.ndindex(*(2,) * len(rows))
    for signs in [2 * np.array(signs) - 1]
  )
  chance = lambda e: (
    stats.norm.cdf(exact / 2 - e / exact)
    - np.exp(e + stats.norm.logcdf(-exact / 2 - e / exact))
    - delta
  )
  return optimize.brentq(chance, 1e-6, 500)


def test_releases_have_the_covariance_of_each_part_over_restarts(tmp_path):
  changes, releases = [(0, 3.0, 0.5)], []
  with opened(tmp_path) as aggregator:
    releases += [play(aggregator) for _ in range(2)]
    aggregator.change_noise(noise_multiplier=1.5)
    releases.append(play(aggregator))
    kept = aggregator.changes
  with opened(tmp_path, changes=kept) as aggregator:
    assert (aggregator.noise_multiplier, aggregator.clip_norm) == (1.5, 0.5)
    aggregator.change_noise(noise_multiplier=2.0, clip_norm=4.0)
    releases += [play(aggregator) for _ in range(2)]
    changes += aggregator.changes
  assert changes == [(0, 3.0, 0.5), (2, 1.5, 0.5), (3, 2.0, 4.0)]
  found = np.array(releases) @ np.array(releases).T / SIZE
  scale = np.diag([1.5, 1.5, 0.75, 8.0, 8.0])
  noise = BLT.noising_matrix(5)
  expected = scale @ noise @ noise.T @ scale
  error = lambda factor: (
    np.abs(found / factor**2 - expected) / np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
  )
  assert error(1.0).max() < 6 * np.sqrt(2 / SIZE)
  assert min(error(2 / 3).max(), error(1.5).max()) > 0.3
  # Updates are bounded by the clip norm of their round.
  with opened(tmp_path / 'other', noise_multiplier=1e-3) as aggregator:
    long = np.eye(1, SIZE)[0] * 100.0
    assert np.linalg.norm(play(aggregator, long)) == pytest.approx(GOAL * 0.5, abs=0.1)
    aggregator.change_noise(clip_norm=2.0)
    assert np.linalg.norm(play(aggregator, long)) == pytest.approx(GOAL * 2.0, abs=0.4)


@pytest.mark.parametrize('budget', [None, 60.0])
def test_replay_and_epsilon_are_never_below_the_truth(budget, tmp_path):
  changes = [(0, 3.0, 0.5)]
  with secret(tmp_path, max_epsilon=budget) as aggregator:
    for t in range(6):
      if t in (2, 3):
        aggregator.change_noise(noise_multiplier=4.0 - t, clip_norm=float(t))
      play(aggregator)
    changes += aggregator.changes
    own = aggregator.epsilon()
    assert aggregator.statement().arithmetic.kind == 'covered'
  run = dpftrl.open_run(tmp_path / 'participation.parquet', tmp_path / 'strategy.json')
  statement = dpftrl.replay(run, deltas=1e-6)
  truth = max(brute_epsilon(rows, changes, 1e-6) for rows in ([0, 2, 4], [1, 3, 5]))
  assert truth <= statement.observed.epsilon <= statement.worst_case.epsilon == own
  # A check with power: noise as it was before the changes would be too little to say.
  unchanged = brute_epsilon([0, 2, 4], changes[:1], 1e-6)
  assert unchanged < 0.8 * truth


def test_planned_changes_come_with_their_rounds(tmp_path):
  planned = [(1, 1e-3, 0.5), (2, 1e-3, 2.0)]
  long = np.eye(1, SIZE)[0] * 100.0
  with opened(tmp_path, noise_multiplier=2e-3, changes=planned) as aggregator:
    norms = [np.linalg.norm(play(aggregator, long)) / GOAL for _ in range(3)]
    assert list(aggregator.changes) == planned
  np.testing.assert_allclose(norms, [0.5, 0.5, 2.0], rtol=0.1)
  for wrong in ([(2, 1.0, 0.5), (1, 1.0, 0.5)], [(-1, 1.0, 0.5)], [(1, -1.0, 0.5)]):
    with pytest.raises(ValueError):
      opened(tmp_path / 'wrong', changes=wrong)


def test_changes_are_refused_where_they_would_not_do(tmp_path):
  with secret(tmp_path / 'run', max_epsilon=10.0) as aggregator:
    play(aggregator)
    for change, message in (
      ({}, 'nothing changes'),
      (dict(noise_multiplier=0.0), 'must stay above 0'),
      (dict(noise_multiplier=-1.0), 'noise_multiplier must be'),
      (dict(clip_norm=0.0), 'clip_norm must be'),
      (dict(noise_multiplier=1e-9), 'too small'),
    ):
      with pytest.raises(ValueError, match=message):
        aggregator.change_noise(**change)
    with pytest.raises(guard.BudgetSpentError, match='would pass max_epsilon'):
      aggregator.change_noise(noise_multiplier=0.3)
    assert aggregator.changes == () and aggregator.noise_multiplier == 3.0
    with aggregator.round([2, 3]) as round_:
      with pytest.raises(ValueError, match='still open'):
        aggregator.change_noise(noise_multiplier=4.0)
      round_.add(np.zeros(SIZE))
      round_.add(np.zeros(SIZE))
    aggregator.change_noise(noise_multiplier=4.0)
  with pytest.raises(ValueError, match='closed'):
    aggregator.change_noise(noise_multiplier=5.0)
  with pytest.raises(refusals.LogError, match='noise_changes'):
    secret(tmp_path / 'run', max_epsilon=10.0)
  secret(tmp_path / 'run', max_epsilon=10.0, changes=[(2, 4.0, 0.5)]).close()
  with opened(tmp_path / 'void', noise_multiplier=0.0) as aggregator:
    with pytest.raises(ValueError, match='without noise, and stays so'):
      aggregator.change_noise(noise_multiplier=4.0)
