"""Studies of other metrics than accuracy, in both directions."""

import csv
import dataclasses
import html
import json
import math
import pathlib
import re
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.participation import schemas
from fl_dpftrl.studies import cells, page, prediction, results, sentences, sequential, table
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import metric as metric_lib
from tests.studies import linear

ACCURACY = metric_lib.Metric()
LOSS = metric_lib.Metric('loss', True)
SCORE = metric_lib.Metric('F-score')


@pytest.mark.parametrize(
  'arguments, words',
  [
    *(
      ((name,), 'metric must be a name of 1 to 40 letters')
      for name in ('', ' loss', 'a  b', 'a/b', 'a|b', '$x$', 'x.csv', 'a\nb', 'x' * 41, 7, None)
    ),
    (('loss', 1), 'lower_is_better must be true or false, got 1'),
    (('accuracy', True), 'lower_is_better must be false for the metric accuracy'),
  ],
)
def test_a_metric_that_fits_no_table_is_refused(arguments, words, tmp_path):
  with pytest.raises(ValueError, match=words) as refused:
    metric_lib.Metric(*arguments)
  assert '\n' not in str(refused.value)
  names = dict(zip(('metric', 'lower_is_better'), arguments))
  with pytest.raises(ValueError, match=words):
    study(tmp_path / 'study', **names)
  assert not (tmp_path / 'study').exists()


@pytest.mark.parametrize('name', ['loss', 'squared error', 'F-score', 'recall@5', 'x' * 40, 'R²'])
def test_a_metric_has_the_name_of_a_file_and_a_column(name):
  assert metric_lib.Metric(name).key == name.replace(' ', '_')


@pytest.mark.parametrize(
  'metric, value, spread, digits, shown',
  [
    (ACCURACY, 0.17456, 0.001, 4, '17.46 ± 0.10'),
    (LOSS, 0.693147, None, 4, '0.6931'),
    (LOSS, 0.693147, 0.31, 4, '0.6931 ± 0.3100'),
    (LOSS, 0.693147, 0.000012, 4, '0.693147 ± 0.000012'),
    (LOSS, 1234.5678, 0.5, 4, '1234.57 ± 0.50'),
    (LOSS, 12345.678, 321.0, 4, '12346 ± 321'),
    (LOSS, 0.00123, 0.5, 3, '0.001 ± 0.500'),
    (LOSS, -0.02, 0.001, 3, '-0.0200 ± 0.0010'),
    (LOSS, 0.5, 1e-16, 3, '0.50000000 ± 0.00000000'),
    (LOSS, 0.0, 0.0, 4, '0 ± 0'),
    (LOSS, 2.5e-9, 1e-10, 3, '2.50e-09 ± 1.00e-10'),
    (LOSS, 1.5e12, None, 4, '1.500e+12'),
    (LOSS, 2e-6, None, 4, '0.000002000'),
  ],
)
def test_numbers_have_the_decimals_of_their_spread(metric, value, spread, digits, shown):
  assert metric.number(value, spread, digits) == shown


def test_words_fit_the_direction():
  assert (ACCURACY.shown(0.1746), LOSS.shown(0.1746)) == ('17.46 %', '0.1746')
  assert ACCURACY.axis('test', ', mean') == 'test accuracy (%), mean'
  assert LOSS.axis('test', ', mean') == 'test loss, mean\n(lower is better)'
  assert [(m.better, m.worse) for m in (SCORE, LOSS)] == [('above', 'below'), ('below', 'above')]
  assert (LOSS.gain(2.0), SCORE.gain(2.0)) == (-2.0, 2.0)


DESIGN = design_lib.parse(
  {
    'title': 'Mirrored',
    'flags': [],
    'mechanisms': ['identity', 'blt:2', 'tree_full'],
    'epsilons': [1, 4],
    'server_learning_rates': [0.1, 0.5],
    'seeds': [0, 1, 2],
    'extend_rates': 0,
  }
)
CONDITIONS = cells.Conditions(
  schema=schemas.MinSep(num_rounds=8, min_sep=2), clip_norm=1.0, report_goal=5
)
NOISES = {
  setting: cells.Noise(
    strategy='x.json',
    noise_multiplier=2.0,
    rms=(1.0 + place % 3) / setting.epsilon,
    max=(2.0 + (place + 1) % 3) / setting.epsilon,
    optimiser=1.0 + place % 2,
  )
  if setting.mechanism
  else None
  for place, setting in enumerate(DESIGN.settings)
}
# Sums of 64ths are exact, and so are their differences from 1.
PARTS = st.lists(st.lists(st.integers(20, 30), min_size=12, max_size=12), min_size=7, max_size=7)


class Unwritten(sequential.Added):
  """A record of added seeds that is no file."""

  def write(self):
    pass


def runs_of(metric, parts, value_of):
  """Returns a design and its results, of accuracies in 64ths by setting, rate, seed and part."""
  design = dataclasses.replace(DESIGN, metric=metric)
  conditions = dict.fromkeys(DESIGN.settings, CONDITIONS)
  made = cells.Cells(
    design=design, conditions=conditions, noises=NOISES, folder=pathlib.Path('study')
  )
  runs = []
  for setting, own in zip(DESIGN.settings, parts):
    drawn = iter(own)
    for rate in setting.server_learning_rates:
      for seed in design.seeds:
        summary = {
          part: {metric.name: value_of(next(drawn) / 64)} for part in ('validation', 'test')
        }
        cell, family = made.cell(setting, rate, seed), setting.label.partition(':')[0]
        summary |= {'mechanism': family, 'unigram_accuracy': 0.25}
        runs.append(results.Result(cell=cell, status=results.DONE, summary=summary))
  return design, runs


def judged(design, runs):
  """Returns all that a study decides and says of its results, in the words of an accuracy."""
  rows = results.rows(design, runs)
  levels = list(results.levels(rows).values())
  added = Unwritten(pathlib.Path(), [], {}, {})
  with mock.patch.object(prediction, '_RESAMPLES', 100):
    predicted = [prediction.correlation(rows, measure) for measure in prediction.MEASURES]
    gained = prediction.advantage(rows, 'rms', 'max')
  beside = [sentences._beside(level[0], level[1:]) for level in levels]
  overall = sentences.against_independent(rows)[0]
  told = repr(([sentences._order(level) for level in levels], beside, overall))
  if design.metric.lower_is_better:
    turned = {'above': 'below', 'below': 'above', '<': '>'}
    told = re.sub('above|below|<', lambda word: turned[word[0]], told)
  return {
    'rates': results.chosen_rates(design, runs),
    'further': results.further(design, runs),
    'rows': [(row.difference, row.verdict, row.at_edge, row.margin) for row in rows],
    'levels': [[row.label for row in level] for level in levels],
    'table': [line[:2] + line[3:4] + line[5:] for line in table.cells(rows)],
    'glance': [line[:2] + line[3:] for line in sentences.glance(rows)],
    'apart': [sentences._told_apart(level) for level in levels],
    'told': told,
    'added': [(row.label, row.epsilon) for row in added.lagging(rows)],
    'looks': added.looks,
    'predicted': repr((predicted, gained)),
    'pairs': [prediction.pairs(rows, measure) for measure in prediction.MEASURES],
    'selected': [r.label for name in prediction.MEASURES for r in prediction.choices(rows, name)],
    'leading': page.leading(rows, ['difference_to_best']),
  }


@hypothesis.given(PARTS)
def test_a_study_of_one_less_the_accuracy_comes_to_the_same(parts):
  expected = judged(*runs_of(ACCURACY, parts, lambda accuracy: accuracy))
  assert judged(*runs_of(LOSS, parts, lambda accuracy: 1.0 - accuracy)) == expected
  assert judged(*runs_of(SCORE, parts, lambda accuracy: accuracy)) == expected


def test_less_loss_than_that_of_independent_noise_is_a_negative_difference():
  parts = [[20, 21, 22, 23, 24, 25] * 2, *([[24, 25, 26, 27, 28, 29] * 2] * 6)]
  for metric, value_of, shown in (
    (ACCURACY, lambda accuracy: accuracy, '+6.25 ± 0.00 points'),
    (LOSS, lambda accuracy: 1.0 - accuracy, '−0.0625 ± 0.0000'),
    (SCORE, lambda accuracy: accuracy, '+0.0625 ± 0.0000'),
  ):
    overall, first, *_ = sentences.against_independent(
      results.rows(*runs_of(metric, parts, value_of))
    )
    assert f'is {metric.better} independent noise by more than seeds explain at ε = 1' in overall
    assert overall.endswith(f'holds 0 or lies {metric.worse} it.')
    assert f'{metric.better} it by more than seeds explain: blt:2, tree_full' in first
    assert first.endswith(f' differs from it by {shown}.')


def test_noise_that_helps_is_told_where_seeds_prove_it():
  parts = [[20, 20, 21, 21, 22, 22] * 2] * 7
  for metric, value_of in ((LOSS, lambda accuracy: 1.0 - accuracy), (SCORE, lambda a: 1000 * a)):
    assert sentences.untuned(results.rows(*runs_of(metric, parts, value_of))) == []
    better = [[part + 1 for part in parts[0]], *parts[1:]]
    (advice,) = sentences.untuned(results.rows(*runs_of(metric, better, value_of)))
    than = 'more' if metric.lower_is_better else 'less'
    assert f', {than} than identity at ε = 1. Noise makes no model better' in advice
    unclear = [[24, 24, *parts[0][2:]], *parts[1:]]
    assert sentences.untuned(results.rows(*runs_of(metric, unclear, value_of))) == []
    assert results.baseline(results.rows(*runs_of(metric, parts, value_of))) is None


def train(cell):
  """Trains the linear model, whose loss is the share of wrong signs, in tenths."""
  summary = linear.train(cell)
  for part in ('validation', 'test'):
    summary[part] = {'loss': 10.0 * (1.0 - summary[part]['accuracy']), 'others': 7.0}
  cell.folder.mkdir(parents=True)
  curve = f'round,validation/loss\n3,{summary["test"]["loss"] + 1}\n7,{summary["test"]["loss"]}\n'
  (cell.folder / 'metrics.csv').write_text(curve)
  return summary


def study(folder, train=train, **changes):
  arguments = dict(
    mechanisms=['identity', 'blt:1', 'blt:2'],
    epsilons=[1.0, 4.0],
    server_learning_rates=[0.1, 0.4],
    seeds=[0, 1, 2],
    schema=linear.SCHEMA,
    clip_norm=1.0,
    report_goal=linear.GOAL,
    extend_rates=0,
    metric='loss',
    lower_is_better=True,
    title='Own loss',
    say=lambda line: None,
  )
  return dpftrl.study(train, folder=folder, **{**arguments, **changes})


@pytest.mark.slow
def test_a_study_of_a_loss_shows_losses_alone(tmp_path):
  said = []
  folder = tmp_path / 'study'
  done = study(folder, say=said.append)
  assert re.fullmatch(r'1/.* identity-epsilon1-rate0.1-seed0: test loss [\d.]+ \| .*', said[2])
  names = ['epsilon', 'round', 'rate', 'noise']
  assert set(done.figures()) == {'difference_to_best', *(f'loss_by_{name}' for name in names)}
  assert done.plot().axes[0].get_ylabel() == 'test loss, mean and interval\n(lower is better)'
  assert done.plot('difference_to_best').axes[0].get_xlabel() == 'difference to the best'
  page.publish(done, tmp_path / 'page.md', how='make', image_kind='svg')
  for path in [*folder.rglob('*'), *tmp_path.glob('page*'), *tmp_path.glob('page/*')]:
    if path.is_file() and path.suffix != '.log':
      assert b'accuracy' not in path.read_bytes().lower(), path
      assert 'accuracy' not in path.name
  text = html.unescape((folder / 'study.html').read_text())
  for words in ('best mean loss', 'lower is better', 'with negated test loss means'):
    assert words in text
  assert 'points' not in text and text.count('<img ') == 5
  with (folder / 'results.csv').open(newline='') as stream:
    lines = list(csv.DictReader(stream))
  assert {'validation_loss', 'test_loss', 'published_test_loss'} < set(lines[0])
  frame = done.to_pandas()
  assert frame['test_loss'].tolist() == [result.test for result in done.results]
  row = next(row for row in done.rows if row.difference is not None)
  best = next(r for r in done.rows if r.epsilon == row.epsilon and r.difference is None)
  assert row.mean > best.mean and row.difference.mean == pytest.approx(row.mean - best.mean)
  first = next(iter(results.levels(done.rows).values()))
  assert [r.mean for r in first] == sorted(r.mean for r in first)
  assert done.results[0].summary['test']['others'] == 7.0
  # A larger loss is at the right of the best one.
  lines = done.plot('difference_to_best').axes[0].lines
  marks = [line for line in lines if line.get_marker() == 'o']
  assert all(mark.get_xdata()[0] >= 0 for mark in marks)


def test_values_of_another_metric_have_no_bounds(tmp_path):
  values = iter([7.0, -3.0, math.nan, None, math.inf, 0.0])
  one = dict(mechanisms=['identity'], epsilons=[1.0], server_learning_rates=[1.0], seeds=range(6))
  done = study(
    tmp_path / 'study',
    lambda cell: {'validation': {'loss': 2.0}, 'test': {'loss': next(values)}},
    without_noise=False,
    **one,
  )
  assert [r.test for r in done.results] == [7.0, -3.0, None, None, None, 0.0]
  assert [r.status for r in done.results].count(results.DIVERGED) == 3
  with pytest.raises(ValueError) as refused:
    study(tmp_path / 'other', linear.train, **one)
  assert str(refused.value).startswith(
    "train must return a mapping such as {'validation': {'loss': 0.4}, 'test': {'loss': 0.3}} for"
    " metric='loss', as Trained.summary does, got {'mechanism': 'identity'"
  )


def test_a_folder_keeps_to_its_metric(tmp_path):
  small = dict(mechanisms=['identity'], epsilons=[1.0], server_learning_rates=[1.0], seeds=[0])
  folder, accuracy = tmp_path / 'study', dict(metric='accuracy', lower_is_better=False)
  trained = []

  def counted(cell):
    trained.append(cell.name)
    return linear.train(cell)

  study(folder, counted, **small, **accuracy)
  for other in ({}, dict(metric='loss', lower_is_better=False)):
    with pytest.raises(ValueError, match='holds a study that differs in metric; name another'):
      study(folder, counted, **small, **other)
  # A study from before metrics had names is one of accuracy, and goes on.
  path = folder / 'study.json'
  before = json.loads(path.read_text())
  assert before.pop('metric') == {'name': 'accuracy', 'lower_is_better': False}
  path.write_text(json.dumps(before))
  done = study(folder, counted, **small, **accuracy)
  assert len(trained) == len(set(trained)) == len(done.results) == 2
  path.write_text(json.dumps(before))
  with pytest.raises(ValueError, match='differs in metric'):
    study(folder, counted, **small)
  assert json.loads(path.read_text()) == before


def test_a_summary_without_the_metric_is_named(tmp_path):
  def writes(cell):
    cell.folder.mkdir(parents=True)
    content = {'diverged_since_round': None, 'seconds': 1.0, **linear.train(cell)}
    (cell.folder / 'summary.json').write_text(json.dumps(content))

  words = 'summary.json is no summary of a run with test and validation loss; remove its folder'
  with pytest.raises(ValueError, match=words):
    study(tmp_path / 'study', writes)


def test_a_study_file_names_its_metric():
  content = {
    'title': 'x',
    'flags': [],
    'seeds': [0],
    'cells': [{'mechanism': 'blt', 'epsilon': 1, 'server_learning_rates': [1], 'published': 12.5}],
  }
  with pytest.raises(ValueError, match='published=12.5 must be an accuracy from 0 to 1'):
    design_lib.parse(content)
  named = design_lib.parse({**content, 'metric': 'perplexity', 'lower_is_better': True})
  assert named.metric == metric_lib.Metric('perplexity', True)
  assert named.settings[0].published == 12.5
  content['cells'][0]['published'] = 0.2
  assert design_lib.parse(content).metric == ACCURACY
  with pytest.raises(ValueError, match='lower_is_better must be true or false, got .yes'):
    design_lib.parse({**content, 'metric': 'loss', 'lower_is_better': 'yes'})
  with pytest.raises(ValueError, match="lower_is_better must be given for the metric 'loss': true"):
    design_lib.parse({**content, 'metric': 'loss'})
