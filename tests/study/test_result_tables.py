"""Chosen rates, intervals, paired comparisons and their correction, and what is shown of them."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fl_dpftrl.study import comparing, designs, result_tables, study_tables
from fl_dpftrl.study.result_tables import DIVERGED, DONE, FAILED, VOID, WAITING, Metric
from tests import made

ACCURACY, LOSS = Metric(), Metric('squared error', lower_is_better=True)


def result(mechanism, value, seed=0, epsilon=1.0, rate=0.5, status=DONE, **others):
  known = {'validation': value, 'test': value} if status == DONE else {'reason': f'why {status}'}
  return result_tables.Result(
    mechanism=mechanism,
    epsilon=epsilon,
    server_learning_rate=rate,
    seed=seed,
    status=status,
    **{'epsilon_of_run': epsilon, 'noise_multiplier': 2.0, **known, **others},
  )


def level(values, epsilon=1.0):
  """Results of mechanisms by their values, one a seed."""
  return [result(m, v, seed, epsilon) for m, own in values.items() for seed, v in enumerate(own)]


def by_label(found, metric=ACCURACY):
  return {(row.mechanism, row.epsilon): row for row in result_tables.rows(found, metric)}


def test_the_interval_is_that_of_student():
  values = [0.31, 0.28, 0.35, 0.30]
  low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
  assert result_tables.margin(values) == pytest.approx((high - low) / 2)
  assert result_tables.margin([0.1, 0.3]) == pytest.approx(12.7062 * 0.1, rel=1e-5)  # Of tables.
  assert result_tables.margin([0.1]) is None


def test_holm_corrects_as_in_its_definition():
  assert result_tables.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  assert result_tables.holm([]) == [] and result_tables.holm([0.7, 0.6]) == [1.0, 1.0]
  draws = np.random.default_rng(0)
  for size in (1, 2, 5, 9):
    p_values = draws.uniform(0, 0.1, size)
    corrected = result_tables.holm(p_values)
    for level in (0.01, 0.05, 0.2):
      rejected = set()
      for step, index in enumerate(np.argsort(p_values)):
        if p_values[index] * (size - step) >= level:
          break
        rejected.add(index)
      assert {i for i, p in enumerate(corrected) if p < level} == rejected


def test_comparisons_are_paired_t_tests_of_all_pairs_of_all_levels():
  draws = np.random.default_rng(1)
  seeds = draws.normal(0, 0.05, 6)
  values = {
    e: {m: 0.3 + 0.004 * i + seeds + draws.normal(0, 0.004, 6) for i, m in enumerate('abcd')}
    for e in (1.0, 4.0)
  }
  found = by_label([r for e, own in values.items() for r in level(own, e)])
  pairs = [(e, a, b) for e in values for a, b in itertools.combinations('abcd', 2)]
  p_values = [stats.ttest_rel(values[e][a], values[e][b]).pvalue for e, a, b in pairs]
  apart = {pair for pair, p in zip(pairs, result_tables.holm(p_values)) if p < 0.05}
  assert 2 < len(apart) < 12
  for e, a, b in pairs:
    assert (b in found[a, e].distinguished) == ((e, a, b) in apart)
    assert (a in found[b, e].distinguished) == ((e, a, b) in apart)
  row = found['a', 1.0]
  expected = stats.ttest_rel(values[1.0]['a'], values[1.0]['d'])
  assert np.mean(row.differences) == pytest.approx(np.mean(values[1.0]['a'] - values[1.0]['d']))
  interval = expected.confidence_interval(0.95)
  assert result_tables.margin(row.differences) == pytest.approx((interval.high - interval.low) / 2)
  assert row.is_clear == ((1.0, 'a', 'd') in apart) and found['d', 1.0].differences is None


def test_equal_mechanisms_are_told_apart_in_few_studies_and_others_in_most():
  draws = np.random.default_rng(2)
  told = {0.0: 0, 0.05: 0}
  for better in told:
    for _ in range(100):
      values = draws.normal(0.3, 0.01, (2, 4, 5))
      values[:, 0] += better
      found = [r for i, e in enumerate((1.0, 4.0)) for r in level(dict(zip('abcd', values[i])), e)]
      rows = result_tables.rows(found, ACCURACY)
      told[better] += any(row.distinguished for row in rows)
  assert told[0.0] <= 0.05 * 100 + 7  # Three standard errors.
  assert told[0.05] > 83


def test_the_first_seed_chooses_the_rate_on_validation_data():
  tried = [result('a', v, rate=rate) for rate, v in ((0.1, 0.2), (0.5, 0.3), (1.0, 0.25))]
  later = [result('a', 0.9, seed=1, rate=0.1), result('a', 0.1, test=0.9, rate=2.0)]
  assert result_tables.chosen_rate([*tried, *later], ACCURACY) == 0.5
  assert result_tables.chosen_rate(tried, LOSS) == 0.1
  for status, chosen in ((DIVERGED, 1.0), (VOID, 1.0), (FAILED, 1.0), (WAITING, None)):
    changed = result('a', 0.0, status=status)
    assert result_tables.chosen_rate([tried[0], changed, tried[2]], ACCURACY) == chosen
  found = by_label([*tried, result('a', 0.31, seed=1)])['a', 1.0]
  assert found.tests == {0: 0.3, 1: 0.31} and not found.at_end
  assert by_label([*tried[:2], result('a', 0.31, seed=1)])['a', 1.0].at_end


@pytest.mark.parametrize('status', [DIVERGED, VOID, FAILED])
def test_a_run_that_proves_nothing_is_shown_as_such_and_is_no_number(status):
  found = [
    *level({'a': [0.3, 0.31], 'b': [0.2, 0.21]}),
    *level({'c': [0.99]}),
    result('c', None, seed=1, status=status, epsilon_of_run=None),
  ]
  row = by_label(found)['c', 1.0]
  assert row.mean is None and not row.others and row.tests == {}
  (line,) = (
    line
    for line in study_tables.cells(result_tables.rows(found, ACCURACY), ACCURACY)
    if 'c' in line
  )
  assert line[2:6] == (f'1 {status}', '–', '–', '0') and line[8] == 'none'
  assert line[9] == f'seed 1 {status}: why {status}' and '99' not in ' '.join(line)
  assert by_label(found)['a', 1.0].others == ('b',)


def test_runs_that_are_not_there_yet_leave_a_mean_of_the_others():
  found = [*level({'a': [0.3, 0.31]}), result('a', None, seed=2, status=WAITING)]
  (row,) = result_tables.rows(found, ACCURACY)
  assert row.tests == {0: 0.3, 1: 0.31}
  line = study_tables.cells([row], ACCURACY)[1]
  assert line[5] == '2' and line[9] == '1 not run'


def test_a_study_without_noise_or_results_has_no_figures():
  waiting = result('a', None, status=WAITING, epsilon_of_run=None)
  for found in ([waiting], [result('no noise', 0.4, epsilon=None)]):
    study = comparing.Study(title='None', metric=ACCURACY, results=tuple(found))
    assert study.figures == {} and study.page.startswith('# None\n\n| ε |')


@made.cases(
  'fields, label',
  (('mine=blt-b100',), 'mine'),
  (('mine=a=b.json',), 'mine'),
  (('blt:2',), 'blt:2'),
  (('mine=blt-b100', 'yours'), 'yours'),
  (('=x',), '=x'),
)
def test_a_mechanism_has_the_label_of_its_name(fields, label):
  assert designs.Mechanism(**dict(zip(('mechanism', 'label'), fields))).label == label
