"""The expected ratio of noise to signal, against matrices that are written out and drawn noise."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import noise_to_signal
from fl_dpftrl.participation.accounting import arithmetics
from tests import every_family, made

SIZES = dict(noise_multiplier=3.0, report_goal=5, num_coordinates=49)


def _claim(**changes):
  settings = dict(
    strategy=dpftrl.Identity(),
    noise_multiplier=3.0,
    clip_norm=0.5,
    report_goal=5,
    participation=dpftrl.MinSep(num_rounds=6, min_sep=3),
    arithmetic=arithmetics.Arithmetic.covered(49),
  )
  return dpftrl.Claim(**settings | changes)


@pytest.mark.parametrize('name', every_family.NAMES)
def test_norms_are_those_of_the_noising_matrix(name):
  strategy = every_family.example(name, 7)
  for n in (1, 5, 7):
    ratio = noise_to_signal.noise_to_signal(strategy, num_rounds=n, **SIZES)
    rows = strategy.noising_matrix(n)
    noise_of_round, noise_of_all = np.linalg.norm(rows[-1]), np.linalg.norm(rows.sum(0))
    assert ratio.mean == pytest.approx(3 * 7 * noise_of_round / 5, rel=1e-9)
    assert ratio.total == pytest.approx(3 * 7 * noise_of_all / 5 / n, rel=1e-9)


def test_a_run_has_the_noise_that_is_expected(tmp_path):
  """Without updates, a mean is its noise; the longest signal of a mean is the clip norm."""
  schema = dpftrl.MinSep(num_rounds=6, min_sep=3)
  strategy, means = dpftrl.optimize('blt', schema), []
  with dpftrl.PrivateAggregator(
    strategy,
    template=np.zeros(20_000, np.float32),
    noise_multiplier=2.0,
    clip_norm=0.25,
    report_goal=4,
    folder=tmp_path / 'run',
    participation=schema,
    delta=1e-6,
    noise_seed=3,
  ) as aggregator:
    ratio = noise_to_signal.expected(aggregator.claim)
    assert aggregator.status().noise_to_signal == ratio.total
    for t in range(6):
      with aggregator.round([4 * t + i for i in range(4)]) as round_:
        round_.add_batch(np.zeros((4, 20_000), np.float32))
      means.append(round_.mean.astype(float))
  assert np.linalg.norm(means[-1]) / 0.25 == pytest.approx(ratio.mean, rel=0.02)
  assert np.linalg.norm(np.sum(means, 0)) / (6 * 0.25) == pytest.approx(ratio.total, rel=0.02)


def test_the_clip_norm_does_not_count_and_counts_of_clipping_take_a_share():
  fixed = noise_to_signal.expected(_claim())
  assert fixed == noise_to_signal.expected(_claim(clip_norm=70.0))
  adaptive = noise_to_signal.expected(_claim(clip_norm=dpftrl.AdaptiveClipping(0.5)))
  assert 1.0 < adaptive.total / fixed.total < 1.5


@made.cases(
  'changes',
  dict(report_goal=None),
  dict(clip_norm=None),
  dict(participation=None),
  dict(participation=dpftrl.MinSep(None, 3, 2)),
  dict(participation=dpftrl.MinSep(20_000, 3)),
  dict(arithmetic=arithmetics.Arithmetic()),
)
def test_a_claim_that_does_not_say_enough_has_no_ratio(changes):
  assert noise_to_signal.expected(_claim(**changes)) is None


def test_a_warning_says_what_to_do_where_there_is_no_hope():
  ratio = noise_to_signal.NoiseToSignal(39.6, 10.4)
  assert ratio.warning(2.0) == (
    "at ε = 2 each round's mean has 40 times as much noise as signal, and all rounds together 10"
    ' times: use more people, a larger ε or a smaller model'
  )
  assert ratio.warning().startswith("each round's mean")
  assert noise_to_signal.NoiseToSignal(39.6, 9.9).warning(2.0) is None


@made.cases(
  'name, value',
  ('noise_multiplier', -1.0),
  ('report_goal', 0),
  ('num_coordinates', 0),
  ('num_rounds', 0),
  ('num_rounds', 2**14 + 1),
)
def test_arguments_out_of_range_are_named(name, value):
  arguments = {**SIZES, 'num_rounds': 5, name: value}
  with pytest.raises(ValueError, match=name):
    noise_to_signal.noise_to_signal(dpftrl.Identity(), **arguments)
