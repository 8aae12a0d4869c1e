"""Strategies whose noise needs few vectors, near the best ones."""

import numpy as np
import pytest

from fl_dpftrl import sensitivity, workloads
from fl_dpftrl.families import blt, tree_online
from fl_dpftrl.optimization import dense, low_rank
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files

SCHEMA = schemas.MinSep(num_rounds=128, max_participations=1)
COOLDOWN = workloads.Workload(0.95, cooldown_fraction=0.25)


def loss(strategy, workload=workloads.Workload()):
  return files.describe(strategy, schema=SCHEMA, workload=workload).figures['rms_loss']


@pytest.mark.parametrize('workload', [workloads.Workload(), COOLDOWN])
def test_few_vectors_come_close_to_the_optimum(workload):
  best = dense.solve(SCHEMA, objective='rms', workload=workload)
  near = low_rank.approximate(best.strategy, 128, num_bands=8, rank=4, workload=workload)
  assert near.memory_copies(128) == 4
  # Its rows are scaled, so that the guarantee is that of the optimum.
  assert sensitivity.sensitivity(near, SCHEMA) == (pytest.approx(1.0), 'exact')
  assert best.bound <= loss(near, workload) <= 1.001 * best.loss
  coarse = low_rank.approximate(best.strategy, 128, num_bands=3, rank=1, workload=workload)
  assert 1.001 * best.loss < loss(coarse, workload) < 1.2 * best.loss


def test_factors_stay_small_enough_for_single_precision():
  strategy = dense.optimize(SCHEMA, objective='rms')
  near = low_rank.approximate(strategy, 128, num_bands=8, rank=4)
  assert np.abs(near.left).max() < 1e3 and np.abs(near.right).max() < 1e3


def test_bands_for_all_rounds_leave_nothing_out():
  strategy = blt.BLT([0.9, 0.5], [0.2, 0.3])
  for num_rounds in (1, 2, 9):
    near = low_rank.approximate(strategy, num_rounds, num_bands=max(num_rounds, 2), rank=1)
    np.testing.assert_allclose(
      near.noising_matrix(num_rounds), strategy.noising_matrix(num_rounds), atol=1e-7
    )


def test_refuses_other_sizes():
  strategy = blt.BLT([0.9], [0.2])
  for num_bands in (1, 10):
    with pytest.raises(ValueError, match='num_bands must be 2 to 9'):
      low_rank.approximate(strategy, 9, num_bands=num_bands, rank=1)
  with pytest.raises(ValueError, match='num_bands must be 3 to 9'):
    low_rank.approximate(strategy, 9, num_bands=2, rank=1, workload=workloads.Workload(0.9))
  for rank in (0, 10):
    with pytest.raises(ValueError, match='rank must be 1 to 9'):
      low_rank.approximate(strategy, 9, num_bands=3, rank=rank)
  with pytest.raises(ValueError, match='square C, but tree_online does not'):
    low_rank.approximate(tree_online.TreeOnline(), 9, num_bands=3, rank=1)
