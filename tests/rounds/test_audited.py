"""An audit runs a `PrivateAggregator` from the outside, in folders of its own."""

import pathlib

import numpy as np
import pytest

import fl_dpftrl as dpftrl

BLT = dpftrl.BLT((0.9, 0.5), (0.3, 0.2))
SCHEMA = dpftrl.MinSep(num_rounds=6, min_sep=2)


@pytest.mark.parametrize('claimed, passes', [(2.0, True), (3.0, False), (4 / 3, False)])
def test_the_claimed_noise_passes_and_another_does_not(claimed, passes, tmp_path):
  with dpftrl.PrivateAggregator(
    BLT,
    template=np.zeros(3, np.float32),
    noise_multiplier=2.0,
    clip_norm=0.5,
    report_goal=5,
    folder=tmp_path / 'run',
  ) as aggregator:
    audit = dpftrl.audit(
      BLT,
      SCHEMA,
      noise_multiplier=claimed,
      clip_norm=0.5,
      delta=1e-5,
      aggregator=aggregator,
      num_draws=4000,
      seed=3,
    )
    assert aggregator.next_round == 0  # Its own folder is left alone.
  assert audit.passed == passes, audit
  assert [path.name for path in pathlib.Path(tmp_path).iterdir()] == ['run']


@pytest.mark.parametrize('claimed, passes', [(0.5, True), (0.25, False)])
def test_the_claimed_clip_norm_passes_and_a_smaller_one_does_not(claimed, passes, tmp_path):
  with dpftrl.PrivateAggregator(
    BLT,
    template=np.zeros(3, np.float32),
    noise_multiplier=2.0,
    clip_norm=0.5,
    report_goal=1,
    folder=tmp_path / 'run',
  ) as aggregator:
    audit = dpftrl.audit(
      BLT,
      SCHEMA,
      noise_multiplier=1.0 / claimed,  # The noise is the same.
      clip_norm=claimed,
      delta=1e-5,
      aggregator=aggregator,
      num_draws=2000,
      seed=4,
    )
  assert audit.passed == passes, audit
