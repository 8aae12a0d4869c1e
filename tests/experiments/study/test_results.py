"""Choice of learning rates, comparisons by seed, and what is written of them."""

import csv
import dataclasses
import math
import statistics

import pytest
from scipy import stats

from experiments.stackoverflow.study import cells, command, page, results, study_file, table

STUDY = study_file.parse(
  {
    'title': 'Mechanisms | compared',
    'flags': ['--report_goal=5', '--num_rounds=8', '--timer_rounds=2'],
    'mechanisms': ['identity', 'blt:2', 'tree_full'],
    'epsilons': [1, 4],
    'server_learning_rates': [0.1, 0.5, 1.0],
    'seeds': [0, 1, 2],
  }
)
IDENTITY, BLT, TREE = STUDY.settings[:3]
SILENT = STUDY.settings[-1]
NOISES = {
  setting: None
  if setting is SILENT
  else cells.Noise(
    strategy='x.json',
    noise_multiplier=2.0,
    rms=(1.0 + i % 3) / setting.epsilon,
    max=1.0,
    optimiser=-(1.0 + i % 3),
  )
  for i, setting in enumerate(STUDY.settings)
}


def result(setting, rate, seed, accuracy, status=results.DONE, validation=None):
  cell = cells.cell(STUDY, setting, NOISES[setting], rate, seed)
  if status == results.FAILED:
    return results.Result(cell=cell, status=status, reason='no room | left')
  return results.Result(
    cell=cell,
    status=status,
    reason='not finite from round 3 on' if status == results.DIVERGED else '',
    summary={
      'mechanism': 'identity',
      'test': {'accuracy': accuracy},
      'validation': {'accuracy': accuracy if validation is None else validation},
      'epsilon': None if setting is SILENT else 8.0001,
      'seconds': 2.0,
      'dataset': 'synthetic',
    },
  )


def tuned(setting, accuracies):
  return [
    result(setting, rate, 0, accuracy)
    for rate, accuracy in zip(setting.server_learning_rates, accuracies)
  ]


FOUND = [
  *tuned(IDENTITY, (0.10, 0.12, 0.11)),
  *(result(IDENTITY, 0.5, seed, 0.12 + 0.01 * seed) for seed in (1, 2)),
  *tuned(BLT, (0.10, 0.20, 0.19))[:2],
  result(BLT, 1.0, 0, None, results.DIVERGED),
  *(result(BLT, 0.5, seed, 0.201 + 0.01 * seed) for seed in (1, 2)),
  *tuned(TREE, (0.1, 0.15, 0.198)),
  *(result(TREE, 1.0, seed, 0.198 + 0.012 * seed) for seed in (1, 2)),
  *(result(s, 0.1, 0, None, results.FAILED) for s in STUDY.settings[3:-1]),
  *tuned(SILENT, (0.3, 0.2, 0.1)),
]


def rows():
  return results.rows(STUDY, NOISES, FOUND)


def test_rates_are_chosen_on_validation_data_by_the_tuning_seeds_alone():
  more = [
    *FOUND,
    result(IDENTITY, 0.1, 1, 0.9),  # Of another seed.
    result(BLT, 0.1, 0, 0.9, validation=0.1),  # Good on test data.
  ]
  chosen = results.chosen_rates(STUDY, [r for r in more if r is not FOUND[5]])
  assert chosen == {IDENTITY: 0.5, BLT: 0.5, TREE: 1.0, SILENT: 0.1}


def test_a_rate_that_diverged_for_a_seed_is_not_chosen():
  found = [*tuned(BLT, (0.1, 0.2, 0.15)), *tuned(TREE, (0.1, 0.2, 0.3))[:2]]
  found[1] = dataclasses.replace(found[1], status=results.DIVERGED)
  assert results.chosen_rates(STUDY, found) == {BLT: 1.0, TREE: 0.5}


def test_differences_are_paired_by_seed():
  best = {0: 0.30, 1: 0.10, 2: 0.20}
  difference = results.paired(best, {0: 0.29, 1: 0.08, 2: 0.19, 7: 0.9})
  values = [0.01, 0.02, 0.01]
  assert difference.mean == pytest.approx(statistics.fmean(values))
  interval = stats.t.interval(
    0.95, 2, loc=difference.mean, scale=statistics.stdev(values) / math.sqrt(3)
  )
  assert difference.mean + difference.margin == pytest.approx(interval[1])
  assert difference.verdict == 'tied with the best'
  assert results.paired(best, {0: 0.28}).verdict == 'unknown: one seed'
  assert results.paired(best, {9: 0.28}) is None
  clear = results.paired(best, {seed: value - 0.05 for seed, value in best.items()})
  assert clear.verdict == 'worse'


def test_rows_report_the_chosen_rate_alone():
  identity, blt, tree, *others, silent = rows()
  assert (identity.verdict, blt.verdict, tree.verdict) == ('worse', 'best', 'tied with the best')
  assert blt.mean == pytest.approx((0.20 + 0.211 + 0.221) / 3)
  assert blt.deviation == pytest.approx(statistics.stdev([0.20, 0.211, 0.221]))
  assert [row.at_edge for row in (identity, blt, tree, silent)] == [False, False, True, True]
  assert all(row.verdict == 'no result' for row in others)
  assert silent.difference is None and silent.deviation is None


def test_failed_and_diverged_runs_are_lines_of_the_table():
  text = table.text(rows())
  assert '1 diverged, first blt_2-epsilon1-rate1-seed0: not finite from round 3 on' in text
  assert '1 failed, first identity-epsilon4-rate0.1-seed0: no room | left' in text
  lines = table.cells(rows())
  assert [line[1] for line in lines[:3]] == ['blt:2', 'tree_full', 'identity']
  assert lines[0][8] == '8.001'  # Rounded up.
  assert lines[-1][:3] == ('∞', 'no noise', '30.00')
  assert r'no room \| left' in table.markdown(STUDY, rows())


def test_rank_correlation():
  ranked = results.correlation(rows(), 'rms')
  accuracies = [0.13, 0.2107, 0.21]
  expected = stats.spearmanr([1, 2, 3], accuracies).statistic
  assert ranked.pooled == ranked.within == pytest.approx(expected)
  assert ranked.settings == 3
  assert results.correlation(rows(), 'max').pooled is None  # All are equal.
  assert results.correlation(rows(), 'optimiser').pooled == pytest.approx(-expected)


def test_everything_is_written(tmp_path):
  command.write(STUDY, rows(), FOUND, tmp_path)
  with (tmp_path / 'results.csv').open(newline='') as stream:
    lines = list(csv.DictReader(stream))
  assert len(lines) == len(FOUND)
  assert [line['status'] for line in lines].count('failed') == 3
  assert lines[1]['chosen'] == 'True' and lines[0]['chosen'] == 'False'
  text = (tmp_path / 'study.html').read_text()
  assert text.count('<img ') == 3  # No run has its metrics.csv here.
  assert 'Spearman' in text and 'not told apart from it by these seeds: tree_full' in text
  for name in ('accuracy_by_epsilon', 'accuracy_by_rate', 'accuracy_by_noise'):
    assert (tmp_path / f'{name}.png').read_bytes().startswith(b'\x89PNG')


def test_verdicts_are_sentences():
  first, second = page.verdicts(rows())
  assert first.startswith('ε = 1: blt:2 has the best mean accuracy, 21.07 %')
  assert 'below it by more than seeds explain: identity' in first
  assert second == 'ε = 4: no run has ended.'
