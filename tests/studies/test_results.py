"""Choice of learning rates, comparisons by seed, and what is written of them."""

import csv
import dataclasses
import math
import pathlib
import re
import statistics

import pytest
from scipy import stats

from fl_dpftrl.participation import schemas
from fl_dpftrl.studies import cells, contrasts, intervals, page, results, sentences, study, table
from fl_dpftrl.studies import design as design_lib

STUDY = design_lib.parse(
  {
    'title': 'Mechanisms | compared',
    'flags': ['--report_goal=5'],
    'mechanisms': ['identity', 'blt:2', 'tree_full'],
    'epsilons': [1, 4],
    'server_learning_rates': [0.1, 0.5, 1.0],
    'seeds': [0, 1, 2],
  }
)
IDENTITY, BLT, TREE = STUDY.settings[:3]
SILENT = STUDY.settings[-1]
CONDITIONS = cells.Conditions(
  schema=schemas.MinSep(num_rounds=8, min_sep=2), clip_norm=1.0, report_goal=5
)
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
CELLS = cells.Cells(
  design=STUDY,
  conditions=dict.fromkeys(STUDY.settings, CONDITIONS),
  noises=NOISES,
  folder=pathlib.Path('study'),
)


def result(setting, rate, seed, accuracy, status=results.DONE, validation=None):
  cell = CELLS.cell(setting, rate, seed)
  if status == results.FAILED:
    return results.Result(cell=cell, status=status, reason='no room | left')
  return results.Result(
    cell=cell,
    status=status,
    reason='not finite from round 3 on' if status == results.DIVERGED else '',
    summary={
      'mechanism': (setting.mechanism or design_lib.Mechanism(mechanism='identity')).mechanism,
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
  return results.rows(STUDY, FOUND)


def studied(found, folder=pathlib.Path('study')):
  return study.Study(design=STUDY, results=tuple(found), folder=folder)


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


def test_a_grid_that_is_not_yet_run_has_no_choice():
  found = [*tuned(BLT, (0.1, 0.2, 0.15)), *tuned(TREE, (0.1, 0.2, 0.3))]
  waiting = {'status': results.WAITING, 'summary': {}}
  found[0] = dataclasses.replace(found[0], **waiting)
  beyond = dataclasses.replace(result(TREE, 2.0, 0, 0.4), **waiting)
  assert results.chosen_rates(STUDY, [*found, beyond]) == {TREE: 1.0}


def test_differences_are_paired_by_seed():
  best = {0: 0.30, 1: 0.10, 2: 0.20}
  difference = intervals.paired(best, {0: 0.29, 1: 0.08, 2: 0.19, 7: 0.9})
  values = [0.01, 0.02, 0.01]
  assert difference.mean == pytest.approx(statistics.fmean(values))
  interval = stats.t.interval(
    0.95, 2, loc=difference.mean, scale=statistics.stdev(values) / math.sqrt(3)
  )
  assert difference.mean + difference.margin == pytest.approx(interval[1])
  assert difference.verdict == 'tied with the best'
  assert intervals.paired(best, {0: 0.28}).verdict == 'unknown: one seed'
  assert intervals.paired(best, {9: 0.28}) is None
  clear = intervals.paired(best, {seed: value - 0.05 for seed, value in best.items()})
  assert clear.verdict == 'worse'


def test_a_pair_without_further_seeds_has_the_confidence_of_the_look_that_saw_it():
  best, other = {0: 0.31, 1: 0.32, 2: 0.30}, {0: 0.25, 1: 0.27, 2: 0.24}
  at_first = intervals.paired(best, other, (3,))
  assert intervals.paired(best, other, (3, 5, 8)) == at_first
  more = {**best, 3: 0.31, 4: 0.32}, {**other, 3: 0.25, 4: 0.26}
  second = intervals.paired(*more, (3, 5, 8))
  assert second == intervals.paired(*more, (3, 5)) == intervals.paired(*more, (3,))
  assert at_first.margin > intervals.paired(best, other).margin
  quantile = stats.t.ppf(1 - 0.5 * 0.05 / 6, 4)
  differences = [0.06, 0.05, 0.06, 0.06, 0.06]
  assert second.margin == pytest.approx(quantile * statistics.stdev(differences) / math.sqrt(5))


def test_rows_report_the_chosen_rate_alone():
  identity, blt, tree, *others, silent = rows()
  assert (identity.verdict, blt.verdict, tree.verdict) == ('worse', 'best', 'tied with the best')
  assert blt.mean == pytest.approx((0.20 + 0.211 + 0.221) / 3)
  assert blt.deviation == pytest.approx(statistics.stdev([0.20, 0.211, 0.221]))
  assert blt.margin == pytest.approx(4.3027 * blt.deviation / math.sqrt(3), rel=1e-4)
  assert [row.at_edge for row in (identity, blt, tree, silent)] == [False, False, True, True]
  assert all(row.verdict == 'no result' for row in others)
  assert silent.difference is None and silent.deviation is silent.margin is None


def test_failed_and_diverged_runs_are_lines_of_the_table():
  text = table.text(rows())
  assert '1 diverged, first blt_2-epsilon1-rate1-seed0: not finite from round 3 on' in text
  assert '1 failed, first identity-epsilon4-rate0.1-seed0: no room | left' in text
  lines = table.cells(rows())
  assert [line[1] for line in lines[:3]] == ['blt:2', 'tree_full', 'identity']
  assert lines[0][8] == '8.001'  # Rounded up.
  assert lines[-1][:3] == ('∞', 'no noise', '30.00')
  assert r'no room \| left' in table.markdown(STUDY, rows())


@pytest.mark.slow
def test_everything_is_written(tmp_path):
  studied(FOUND, tmp_path).write(image_kind='svg')
  with (tmp_path / 'results.csv').open(newline='') as stream:
    lines = list(csv.DictReader(stream))
  assert len(lines) == len(FOUND)
  assert [line['status'] for line in lines].count('failed') == 3
  assert lines[1]['chosen'] == 'True' and lines[0]['chosen'] == 'False'
  text = (tmp_path / 'study.html').read_text()
  assert text.count('<img ') == 4  # No run has its metrics.csv here.
  assert '"card warn"' not in text
  answer = text.index('how sure'), text.index('3 seeds tell 2 of 3 pairs apart')
  assert text.index('<img ') < answer[0] < answer[1] < text.index('<img ', answer[1])
  assert text.index('3 mechanisms were trained at ε = 1 and 4, each with up to 3 seeds') < answer[0]
  assert text.index('<h2>Results') < text.index('<h3>ε = 4</h3>') < text.index('alt="difference')
  assert 'Spearman' in text and 'not told apart from it by these seeds: tree_full' in text
  for name in (
    'accuracy_by_epsilon',
    'difference_to_best',
    'accuracy_by_rate',
    'accuracy_by_noise',
  ):
    assert b'<svg' in (tmp_path / f'{name}.svg').read_bytes()
  assert 'its 95 % interval over 3 seeds' in (tmp_path / 'accuracy_by_epsilon.svg').read_text()


def test_the_answer_is_one_line_for_each_epsilon():
  head, first, second = sentences.glance(rows())
  assert head[2] == 'test accuracy (%)'
  assert first == (
    '1',
    'blt:2',
    '21.07 ± 1.05',
    'tree_full',
    'identity',
    '3 seeds tell 2 of 3 pairs apart',
  )
  assert second == ('4', '–', '–', '–', '–', 'no run has ended')
  assert sentences.few_seeds(rows()) == []


@pytest.mark.parametrize(
  'seeds, sure', [(1, 'one seed proves no order'), (2, '2 seeds tell 2 of 3')]
)
def test_few_seeds_are_told_what_to_do(seeds, sure):
  few = [r for r in FOUND if r.cell.seed < seeds]
  found = results.rows(STUDY, few)
  assert sentences.glance(found)[1][-1].startswith(sure)
  (advice,) = sentences.few_seeds(found)
  assert ('12.7' in advice) == (seeds == 2) and 'Add seeds and run the study again' in advice
  assert pytest.approx(stats.t.ppf(0.975, 1), abs=0.01) == 12.7
  assert pytest.approx(stats.t.ppf(0.975, 2), abs=0.01) == 4.3


def test_differences_are_drawn_with_their_certainty():
  figure = contrasts.difference_to_best(STUDY, rows())
  (axes,) = [a for a in figure.axes if a.get_visible()]
  assert [t.get_text() for t in axes.get_yticklabels()] == ['blt:2', 'tree_full', 'identity']
  marks = [line for line in axes.lines if line.get_marker() == 'o']
  places = {line.get_ydata()[0]: line for line in marks}
  hollow = [places[i].get_markerfacecolor() == 'white' for i in range(3)]
  assert hollow == [False, True, False]  # The best, a tied one and a worse one.
  identity = next(r for r in rows() if r.setting == IDENTITY)
  assert places[2].get_xdata()[0] == pytest.approx(-100 * identity.difference.mean)
  alone = [row for row in rows() if row.setting.label == 'identity']
  assert contrasts.difference_to_best(STUDY, alone) is None


def test_verdicts_are_sentences():
  first, second = sentences.verdicts(rows())
  assert first.startswith('ε = 1: blt:2 has the best mean accuracy, 21.07 %')
  assert 'below it by more than seeds explain: identity' in first
  assert 'In order: blt:2 ≈ tree_full > identity, where ≈' in first
  assert first.endswith('; seeds tell 2 of 3 pairs apart.')
  alone = [row for row in rows() if row.setting.label != 'tree_full']
  assert sentences.verdicts(alone)[0].endswith('In order: blt:2 > identity.')
  assert second == 'ε = 4: no run has ended.'


def test_settings_below_the_best_constant_prediction_are_named():
  assert sentences.baseline(rows()) == []
  assert sentences.baseline(known(lambda seed: 0.15)) == [
    'The best constant prediction has 15.00 %. Not above it: identity at ε = 1.'
  ]


def known(of_seed):
  """Returns the rows, with the best constant prediction of each seed."""
  return [
    dataclasses.replace(
      row,
      results=tuple(
        dataclasses.replace(r, summary={**r.summary, 'unigram_accuracy': of_seed(r.cell.seed)})
        for r in row.results
      ),
    )
    for row in rows()
  ]


def test_the_baseline_is_a_mean_where_seeds_divide_the_data():
  assert results.baseline(known(lambda seed: 0.14 + 0.01 * seed)) == pytest.approx(0.15)


def test_runs_that_are_not_tuned_are_said_to_be():
  assert sentences.untuned(rows()) == []  # 30 % without noise.
  (below,) = sentences.untuned(known(lambda seed: 0.31))
  assert below.startswith('Even without noise the model is not above the best constant')
  found = [
    dataclasses.replace(r, summary={**r.summary, 'test': {'accuracy': 0.19}})
    if r.cell.setting == SILENT
    else r
    for r in FOUND
  ]
  (above,) = sentences.untuned(results.rows(STUDY, found))
  assert above.startswith('The runs without noise reach 19.00 %, less than blt:2 at ε = 1, tree')
  assert 'identity' not in above


def test_correlated_noise_is_compared_with_independent_noise():
  overall, first = sentences.against_independent(rows())
  assert overall.startswith('Correlated noise is better than independent noise at every ε')
  mean = intervals.paired(
    {0: (0.20 + 0.198) / 2, 1: (0.211 + 0.210) / 2, 2: (0.221 + 0.222) / 2},
    {0: 0.12, 1: 0.13, 2: 0.14},
  )
  shown = f'+{100 * mean.mean:.2f} ± {100 * mean.margin:.2f} points'
  assert first.startswith('ε = 1: identity reaches 13.00 %') and shown in first
  one = sentences.against_independent(
    [dataclasses.replace(r, results=r.results[:1]) for r in rows()]
  )
  assert one[0] == 'Some ε have one seed so far, which proves no order.'
  assert 'above it in the one seed that both have: blt:2, tree_full' in one[1]
  alone = [row for row in rows() if row.setting.label != 'identity']
  assert sentences.against_independent(alone) == []


def test_independent_noise_is_compared_at_its_own_flags():
  found = []
  for row in rows():
    for hours in (8, 12):
      setting = dataclasses.replace(row.setting, flags=(f'--timer_hours={hours}',))
      found.append(dataclasses.replace(row, setting=setting))
  _, *each = sentences.against_independent(found)
  _, *expected = sentences.against_independent(rows())
  assert each == [sentence for sentence in expected for _ in range(2)]


def test_a_best_rate_at_an_end_asks_for_the_next_one():
  chosen = {TREE: 1.7, SILENT: 0.05882}
  design = dataclasses.replace(STUDY, extend_rates=2)
  uneven = dataclasses.replace(STUDY.settings[0], server_learning_rates=(0.346, 0.5882, 1.0))
  assert results._beyond(uneven.server_learning_rates, 0.346) == 0.2035
  assert results._beyond(uneven.server_learning_rates, 1.0) == chosen[TREE]
  assert results.further(design, FOUND) == {TREE: 2.0, SILENT: 0.02}
  # One more rate, at which it is worse, is the end; a better one goes on, as far as allowed.
  more = [*FOUND, result(TREE, 2.0, 0, 0.19), result(SILENT, 0.02, 0, 0.4)]
  assert results.further(design, more) == {SILENT: 0.004}
  more.append(result(SILENT, 0.004, 0, 0.5))
  assert results.further(design, more) == {}
  tree, silent = (r for r in results.rows(design, more) if r.setting in (TREE, SILENT))
  assert (tree.at_edge, silent.at_edge) == (False, True)
  assert results.further(dataclasses.replace(design, extend_rates=0), FOUND) == {}
  # A rate beyond the grid that failed is still to be tried, and no reason to go on.
  failed = [*FOUND, result(TREE, 2.0, 0, None, results.FAILED)]
  assert TREE not in results.further(design, failed)
  assert [r.at_edge for r in results.rows(design, failed) if r.setting == TREE] == [True]


def test_what_is_published_is_said_to_be_incomplete(tmp_path):
  waiting = [
    dataclasses.replace(r, status=results.WAITING, summary={}) if r.cell.setting == BLT else r
    for r in FOUND
  ]
  target = tmp_path / 'docs' / 'study.md'
  stale = target.with_suffix('') / 'accuracy_by_rate.png'
  stale.parent.mkdir(parents=True)
  stale.write_bytes(b'of an earlier study')
  page.publish(studied(waiting), target, how='make study', image_kind='svg')
  text = target.read_text()
  links = re.findall(r'\]\((.*?)\)', text)
  assert len(links) == 5 and all((target.parent / link).exists() for link in links)
  assert {path.suffix for path in target.with_suffix('').iterdir()} == {'.svg', '.csv'}
  assert '**This study is not complete:** 13 of 29 runs have ended' in text
  assert 'blt:2 at ε = 1 (5), identity at ε = 4 (1)' in text
  assert '| blt:2 | – | 0 | – | no result |' in text
  assert re.match(r'# .*\n\n!\[.*\]\(.*\.svg\)\n\n\d mechanisms were trained at ε = ', text)
  for found, path, kind, words in (
    (waiting[5:8], target, 'png', 'has no run of'),
    (waiting, tmp_path / 'study.html', 'png', 'target='),
    (waiting, target, 'pdf', "image_kind='pdf'"),
  ):
    with pytest.raises(ValueError, match=words):
      page.publish(studied(found), path, how='', image_kind=kind)
