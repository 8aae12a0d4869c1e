"""A mean with independent noise has the distribution of what other frameworks make of it."""

import numpy as np
import pytest
from scipy import stats

import fl_dpftrl as dpftrl

CLIP, MULTIPLIER, COUNT, SIZE = 0.5, 2.0, 4, 20_000
ZEROS = np.zeros(SIZE, np.float32)


def of_pfl() -> np.ndarray:
  pytest.importorskip('pfl')
  import torch
  from pfl.internal.ops import pytorch_ops
  from pfl.internal.ops.selector import set_framework_module
  from pfl.privacy.gaussian_mechanism import GaussianMechanism
  from pfl.stats import MappedVectorStatistics

  set_framework_module(pytorch_ops)
  statistics = MappedVectorStatistics({'w': torch.from_numpy(ZEROS)}, weight=COUNT)
  noised, _ = GaussianMechanism(CLIP, MULTIPLIER).add_noise(statistics, COUNT, seed=3)
  return noised['w'].numpy() / COUNT


def of_optax() -> np.ndarray:
  pytest.importorskip('optax.contrib')
  from optax import contrib

  aggregate = contrib.differentially_private_aggregate(CLIP, MULTIPLIER, key=3)
  made, _ = aggregate.update(np.zeros((COUNT, SIZE), np.float32), aggregate.init(ZEROS))
  return np.asarray(made)


def of_flower() -> np.ndarray:
  pytest.importorskip('flwr')
  from flwr.supercore import differential_privacy

  arrays = [np.zeros(SIZE)]
  deviation = differential_privacy.compute_stdv(MULTIPLIER, CLIP, COUNT)
  np.random.seed(3)
  differential_privacy.add_gaussian_noise_inplace(arrays, deviation)
  return arrays[0]


@pytest.mark.parametrize('peer', [of_pfl, of_optax, of_flower])
def test_noise_has_the_distribution_of_the_peers(peer, tmp_path):
  theirs = peer()
  with dpftrl.PrivateAggregator(
    dpftrl.Identity(),
    template=ZEROS,
    clip_norm=CLIP,
    noise_multiplier=MULTIPLIER,
    report_goal=COUNT,
    folder=tmp_path,
    noise_seed=1,
  ) as aggregator:
    with aggregator.round(range(COUNT)) as round_:
      for _ in range(COUNT):
        round_.add(ZEROS)
  test = lambda a, b: stats.ks_2samp(a, b).pvalue
  assert test(round_.mean, theirs) > 1e-4
  for factor in (2 / 3, 1.5):
    assert test(round_.mean, factor * theirs) < 1e-6
