"""Rank correlation of accuracies with the noise that is known before training."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
from scipy import stats

from fl_dpftrl.participation import schemas
from fl_dpftrl.studies import cells, intervals, prediction, results, sentences
from fl_dpftrl.studies import design as design_lib

LABELS = ('a', 'b', 'c', 'd', 'e')
STUDY = design_lib.parse(
  {
    'title': 'A study',
    'flags': [],
    'mechanisms': [
      {'mechanism': f'blt:{size}', 'label': label} for size, label in enumerate(LABELS, 1)
    ],
    'epsilons': [1, 4],
    'server_learning_rates': [0.1],
    'seeds': [0, 1, 2],
    'without_noise': False,
  }
)
# Noise of each mechanism, at ε = 1; a quarter of it at ε = 4.
RMS = (1.0, 2.0, 3.0, 4.0, 5.0)
MAX = (2.0, 1.0, 3.0, 5.0, 4.0)


def row(setting, tests, difference=None):
  index, share = LABELS.index(setting.label), 1.0 / setting.epsilon
  noise = cells.Noise(
    strategy='x.json',
    noise_multiplier=1.0,
    rms=RMS[index] * share,
    max=MAX[index] * share,
    optimiser=1.0,
  )
  found = []
  conditions = cells.Conditions(schema=schemas.MinSep(8, 2), clip_norm=1.0, report_goal=5)
  made = cells.Cells(
    design=STUDY, conditions={setting: conditions}, noises={setting: noise}, folder=pathlib.Path()
  )
  for seed, accuracy in enumerate(tests):
    cell = made.cell(setting, 0.1, seed)
    summary = {'test': {'accuracy': accuracy}, 'validation': {'accuracy': accuracy}}
    found.append(results.Result(cell=cell, status=results.DONE, summary=summary))
  return results.Row(
    setting=setting,
    conditions=conditions,
    noise=noise,
    server_learning_rate=0.1,
    at_edge=False,
    results=tuple(found),
    difference=difference,
    problems=(),
  )


def rows(accuracies):
  """Rows of ε = 1 and 4, with seeds that differ by the same for all."""
  return [
    row(setting, [accuracy + 0.01 * seed for seed in range(3)])
    for setting, accuracy in zip(STUDY.settings, accuracies)
  ]


FALLING = rows([0.15, 0.14, 0.13, 0.12, 0.11, 0.25, 0.24, 0.23, 0.22, 0.21])


def test_correlations_are_those_of_scipy():
  found = rows([0.15, 0.11, 0.13, 0.12, 0.14, 0.25, 0.24, 0.21, 0.23, 0.22])
  ranked = prediction.correlation(found, 'rms')
  noises, accuracies = [r.noise.rms for r in found], [r.mean for r in found]
  assert ranked.settings == 10
  assert ranked.pooled.value == pytest.approx(stats.spearmanr(noises, accuracies).statistic)
  parts = [stats.spearmanr(noises[i : i + 5], accuracies[i : i + 5]).statistic for i in (0, 5)]
  assert ranked.by_epsilon == {1.0: pytest.approx(parts[0]), 4.0: pytest.approx(parts[1])}
  assert ranked.within.value == pytest.approx(np.mean(parts))
  assert ranked.within.low < ranked.within.value < ranked.within.high
  assert prediction.correlation(found, 'rms') == ranked  # The seed is fixed.
  assert prediction.correlation(found, 'optimiser').pooled is None  # All are equal.
  assert prediction.correlation(found[:2], 'rms').pooled is None  # Too few.


def test_the_p_value_is_that_of_all_permutations():
  found = rows([0.14, 0.15, 0.13, 0.11, 0.12])
  ranked = prediction.correlation(found, 'rms')
  noises, accuracies = [r.noise.rms for r in found], [r.mean for r in found]
  values = [stats.spearmanr(noises, p).statistic for p in itertools.permutations(accuracies)]
  exact = np.mean(np.abs(values) >= abs(ranked.pooled.value) - 1e-9)
  assert ranked.pooled.p_value == pytest.approx(exact, abs=0.02)
  assert ranked.within.p_value == pytest.approx(exact, abs=0.02)


def test_a_prediction_without_error_is_certain():
  ranked = prediction.correlation(FALLING, 'rms')
  assert (ranked.within.value, ranked.within.low) == (-1.0, pytest.approx(-1.0))
  assert ranked.within.p_value < 0.001 < ranked.within.p_value * 5
  value, low, high = prediction.advantage(FALLING, 'rms', 'max')
  worse = prediction.correlation(FALLING, 'max').within.value
  assert value == pytest.approx(worse + 1.0) and low >= 0.0 and high > value
  opposite = prediction.advantage(FALLING, 'max', 'rms')
  assert opposite == pytest.approx((-value, -high, -low))


def test_the_least_noise_is_chosen():
  behind = intervals.Difference(mean=0.01, margin=0.001)
  found = [
    dataclasses.replace(r, difference=None if r.setting.label == 'a' else behind) for r in FALLING
  ]
  assert [(c.label, c.epsilon, c.difference) for c in prediction.choices(found, 'rms')] == [
    ('a', 1.0, None),
    ('a', 4.0, None),
  ]
  assert [(c.label, c.difference.mean) for c in prediction.choices(found, 'max')] == [
    ('b', 0.01),
    ('b', 0.01),
  ]


def test_pairs_say_from_which_difference_on_a_loss_can_be_relied_on():
  assert prediction.pairs(FALLING, 'rms') == prediction.Pairs(
    total=20, apart=20, right=20, ratio=1.0, beyond=20
  )
  # MaxLoss has a and b, and d and e, the other way round.
  found = prediction.pairs(FALLING, 'max')
  assert (found.right, found.ratio) == (16, 2.0)
  assert (
    found.beyond == 2 * 4
  )  # 3 : 1, 5 : 2, 5 : 1 and 4 : 1; 4 : 2 is no more than the wrong one.


def test_a_loss_that_orders_no_pair_chooses_no_mechanism():
  rising = rows([0.11, 0.12, 0.13, 0.14, 0.15])
  found = prediction.pairs(rising, 'rms')
  assert (found.apart, found.right, found.beyond) == (10, 0, 0)
  assert sentences._selected(rising, 'rms').endswith(
    'in 0 of these the one with less noise has more accuracy. The pair with the largest difference'
    ' in noise is the other way round, so here no mechanism can be chosen by this loss.'
  )


def test_settings_of_one_mechanism_are_not_compared():
  found = [
    dataclasses.replace(
      one,
      setting=dataclasses.replace(
        one.setting, mechanism=dataclasses.replace(one.setting.mechanism, mechanism='blt')
      ),
    )
    for one in FALLING
  ]
  assert prediction.known(FALLING) and not prediction.known(found)
  assert sentences.predictions(found) == [
    'There are too few settings, or mechanisms, for a rank correlation.'
  ]
