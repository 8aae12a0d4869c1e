"""Every candidate at every schema; at equal ε, noise and errors are what the accountant gives."""

import dataclasses
import itertools

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities, workload_error
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning import candidate_sets, comparison
from tests import made

SCHEMAS = [dpftrl.MinSep(num_rounds=20, min_sep=b, max_participations=2) for b in (2, 5, 10)]


def run(*found, watch=lambda searched: lambda steps, loss: None):
  return comparison.run(found, SCHEMAS, objective='max', watch=watch)


def test_rows_are_the_figures_of_the_strategies():
  entries = run(*candidate_sets.named(['identity', 'blt-b400'])).entries
  assert [e.row['mechanism'] for e in entries] == ['identity'] * 3 + ['blt-b400'] * 3
  for entry, schema in zip(entries, 2 * SCHEMAS):
    strategy = dpftrl.load_strategy(entry.candidate.label)
    figures = files.describe(strategy, schema=schema).figures
    assert entry.row.items() >= {**figures, 'min_sep': schema.min_sep}.items()
    assert entry.row['memory_copies'] == strategy.memory_copies(20)
    assert 'noise_multiplier' not in entry.row


@pytest.mark.parametrize('report_goal', [1, 500])
def test_at_equal_epsilon_noise_is_calibrated_and_errors_are_those_of_the_mean(report_goal):
  given = dict(epsilon=2.0, delta=1e-7)
  names = ['identity', 'tree_full', 'blt-b400']
  for row in dpftrl.compare(names, SCHEMAS, **given, report_goal=report_goal).rows:
    schema = dpftrl.MinSep(20, row['min_sep'], 2)
    calibrated = dpftrl.calibrate(row['mechanism'], schema, **given)
    assert row['noise_multiplier'] == pytest.approx(calibrated.noise_multiplier, rel=1e-12)
    stated = dpftrl.account(
      row['mechanism'], schema, noise_multiplier=row['noise_multiplier'], delta=1e-7
    )
    assert 1.999 < stated.epsilon() <= 2.0
    for name in ('rms', 'max'):
      error = row['noise_multiplier'] * row[f'{name}_error'] / report_goal
      assert row[f'{name}_error_of_mean'] == pytest.approx(error)


def test_no_epsilon_is_stated_for_a_lower_bound_of_the_sensitivity(monkeypatch):
  describe = files.describe

  def bounded(strategy, **kwargs):
    file = describe(strategy, **kwargs)
    value = file.sensitivity._replace(kind=sensitivities.LOWER_BOUND)
    return dataclasses.replace(file, sensitivity=value)

  monkeypatch.setattr(files, 'describe', bounded)
  found = dpftrl.compare(['identity'], SCHEMAS[0], epsilon=2.0, delta=1e-7)
  assert not found.entries and 'lower bound' in found.skipped[0].reason
  assert dpftrl.compare(['identity'], SCHEMAS[0]).entries


@made.cases(
  'given, message',
  (dict(epsilon=2.0), 'delta=None must be given together'),
  (dict(delta=1e-6), 'epsilon=None'),
  (dict(epsilon=-2.0, delta=1e-6), 'epsilon must be positive'),
  (dict(report_goal=0), 'report_goal'),
)
def test_refuses(given, message):
  with pytest.raises(ValueError, match=message):
    dpftrl.compare(['identity'], SCHEMAS, **given)


def recorder(strategy=identity.Identity()):
  """A candidate that keeps what it was asked for."""
  asked = []

  def find(schema, *, objective, workload, progress, least_gain=0.0):
    del workload, least_gain
    progress(1, 2.0)
    asked.append((schema, objective))
    if isinstance(strategy, Exception):
      raise strategy
    return strategy

  return candidate_sets.Candidate(label='it', mechanism='identity', find=find), asked


@pytest.mark.parametrize(
  'error', [ValueError('too\n large'), MemoryError(), np.linalg.LinAlgError('singular')]
)
def test_what_cannot_be_done_is_skipped_and_others_go_on(error):
  candidate, _ = recorder(error)
  found = run(candidate, *candidate_sets.named(['identity']))
  assert (len(found.skipped), len(found.entries)) == (3, 3)
  assert found.skipped[0].reason == (' '.join(str(error).split()) or 'MemoryError')


def test_other_errors_are_not_hidden():
  candidate, _ = recorder(KeyError('a bug'))
  with pytest.raises(KeyError):
    run(candidate)


def test_the_watch_hears_of_every_search_and_every_step():
  told = []
  candidate, _ = recorder()
  run(candidate, watch=candidate_sets.watched(told.append))
  assert told[:2] == ['it at n=20, b=2, k=2', 'it at n=20, b=2, k=2: 1 steps, loss 2']
  assert len(told) == 6


def test_strategies_are_taken_as_they_are():
  strategy = dpftrl.LambdaCGD(0.5)
  found = dpftrl.compare(['identity', strategy], SCHEMAS[0])
  assert [row['mechanism'] for row in found.rows] == ['identity', 'lambda_cgd']
  figures = files.describe(strategy, schema=SCHEMAS[0]).figures
  assert found.rows[1].items() >= figures.items()
  for wrong, message in (([strategy] * 2, 'two of them are called'), ([7], 'strategy must be')):
    with pytest.raises(ValueError, match=message):
      dpftrl.compare(wrong, SCHEMAS[0])


def test_what_is_left_out_is_said_with_its_reason():
  found = dpftrl.compare(['blt:9', 'identity'], dpftrl.MinSep(20, 5))
  assert [skip.label for skip in found.skipped] == ['blt:9']
  first, second, *_ = repr(found).splitlines()
  assert first == 'Comparison: 1 evaluated, 1 left out'
  assert second.strip().startswith('blt:9 is left out: ') and '9' in second[22:]
  assert 'identity' in repr(found)


def test_rows_are_shown_as_they_come():
  shown, calls = [], []
  names = candidate_sets.named(['identity', 'blt-b400'])
  watch = lambda searched: (calls.append(len(shown)), lambda steps, loss: None)[1]
  options = dict(objective='max', watch=watch, show=shown.append)
  found = comparison.run(names, SCHEMAS, **options)
  assert tuple(shown) == found.entries and calls == list(range(6))


SWEPT = [
  dpftrl.MinSep(32, 8, 3),
  dpftrl.FixedSeparation(32, 8),
  dpftrl.LossBudget(max_participations=3, min_sep=8),
  dpftrl.SecretBins(32, 4),
]


@pytest.mark.slow
def test_objects_names_and_files_have_a_row_at_each_epsilon_and_participation(tmp_path):
  path = tmp_path / 'mine.json'
  dpftrl.save_strategy(path, dpftrl.BandedToeplitz((1.0, 0.5)), schema=SWEPT[0])
  names = ['identity', f'file={path}', dpftrl.LambdaCGD(0.5), 'blt:1']
  found = dpftrl.compare(names, SWEPT[:3], epsilon=(1, 4), delta=1e-6, num_rounds=[32])
  kinds = ['min_sep', 'fixed_separation', 'loss_budget']
  labels = ['identity', 'file', 'lambda_cgd', 'blt:1']
  expected = list(itertools.product(labels, kinds, (1, 4)))
  assert [(r['mechanism'], r['participation'], r['epsilon']) for r in found.rows] == expected
  for entry in found.entries:
    row, target = entry.row, dict(epsilon=entry.epsilon, delta=1e-6)
    one = dpftrl.calibrate(entry.file.strategy, entry.participation, **target)
    fields = ('noise_multiplier', 'effective_noise_multiplier', 'sensitivity', 'sensitivity_kind')
    assert [row[name] for name in fields] == [getattr(one, name) for name in fields]
    for name in ('rms', 'max'):  # The loss scaled to ε is the error of the mean.
      loss = row[f'{name}_loss'] * row['effective_noise_multiplier']
      assert row[f'{name}_error_of_mean'] == pytest.approx(loss)


@pytest.mark.slow
def test_mechanisms_that_no_sampling_amplifies_are_skipped_and_bins_take_any():
  poisson = sampling.CyclicPoisson(num_rounds=32, num_examples=4000, batch_size=800)
  names = ['identity', dpftrl.LambdaCGD(0.5), 'blt:1']
  found = dpftrl.compare(names, [poisson, SWEPT[3]], epsilon=4, delta=1e-6)
  rows = [
    ('identity', 'poisson'),
    *((name, 'bins') for name in ('identity', 'lambda_cgd', 'blt:1')),
  ]
  assert [(r['mechanism'], r['participation']) for r in found.rows] == rows
  assert {skip.label for skip in found.skipped} == {'lambda_cgd', 'blt:1'}


def test_a_mechanism_is_searched_once_for_all_epsilons_and_horizons():
  candidate, asked = recorder()
  candidate = dataclasses.replace(candidate, optimised=True)
  options = dict(objective='max', target=comparison.Target((1.0, 2.0, 4.0), 1e-6))
  found = comparison.run([candidate], SWEPT[:2], **options)
  assert len(found.entries) == 6 and len(asked) == 2
  searched = []
  find = lambda *of, **options: (searched.append(options['horizons']), identity.Identity())[1]
  candidate = dataclasses.replace(candidate, find=find)
  found = comparison.run([candidate], SWEPT[2:3], horizons=[8, 16, 32], **options)
  assert len(found.entries) == 9 and searched == [(8, 32)]


@pytest.mark.slow
def test_amplified_noise_has_the_best_number_of_bands_at_each_epsilon():
  scheme = sampling.CyclicPoisson(num_rounds=32, num_examples=4000, batch_size=250)
  found = dpftrl.compare(
    ['banded_toeplitz'], scheme, objective='rms', epsilon=(0.5, 16), delta=1e-6
  )
  strategies = [
    dpftrl.optimize(
      'banded_toeplitz', dpftrl.MinSep(32, max_participations=1), objective='rms', num_bands=bands
    )
    for bands in (1, 2, 4, 8, 16)
  ]
  errors = [workload_error.error(strategy, 32).rms for strategy in strategies]
  for entry in found.entries:  # Not all are calibrated for it, as here.
    noises = [
      dpftrl.calibrate(s, scheme.for_bands(s), epsilon=entry.epsilon, delta=1e-6).noise_multiplier
      for s in strategies
    ]
    best = min(range(5), key=lambda i: noises[i] * errors[i])
    assert entry.guarantee.noise_multiplier == pytest.approx(noises[best], rel=1e-3)
    assert entry.row['min_sep'] == strategies[best].num_bands
  few, many = (row['min_sep'] for row in found.rows)
  assert few < many


def test_replace_one_doubles_the_noise_and_what_has_no_bound_is_left_out():
  options = dict(epsilon=2.0, delta=1e-6)
  zero_out, replaced = (
    dpftrl.compare(['identity'], [SWEPT[0], SWEPT[3]], adjacency=adjacency, **options)
    for adjacency in ('zero_out', 'replace_one')
  )
  assert replaced.rows[0]['noise_multiplier'] == 2 * zero_out.rows[0]['noise_multiplier']
  assert len(zero_out.rows) == 2 and len(replaced.rows) == 1
  assert 'no bound is known' in replaced.skipped[0].reason


@made.cases(
  'given, message',
  (SWEPT[2], 'num_rounds, after which errors count'),
  (SWEPT[3], 'epsilon is needed to compare bins'),
  ('min_sep', 'participation must be one of'),
)
def test_refuses_participations_that_cannot_be_compared(given, message):
  with pytest.raises(ValueError, match=message):
    dpftrl.compare(['identity'], [given])


def test_the_watch_names_the_most_participations_of_a_budget():
  told = []
  candidates = candidate_sets.named(['identity'])
  options = dict(objective='max', watch=lambda words: (told.append(words), print)[1])
  comparison.run(candidates, SWEPT[2:3], horizons=[4], **options)
  assert told == ['identity at n=4, b=8, k=3']


def test_the_watch_hears_of_each_calibration():
  told = []
  candidates = candidate_sets.named(['blt'])
  options = dict(objective='max', watch=lambda words: (told.append(words), lambda *_: None)[1])
  target = comparison.Target((1.0, 2.0), 1e-6)
  comparison.run(candidates, [dpftrl.SecretBins(16, 4)], target=target, **options)
  for epsilon in (1, 2):
    last = [words for words in told if f'noise for ε = {epsilon}, ' in words][-1]
    place, number = last.rpartition(', ')[2].split(' of ')
    assert place == number and int(number) > 1
  with pytest.raises(ValueError, match='loss budget squared=5 buys other participations of each'):
    comparison.run(candidates, [dpftrl.LossBudget(squared=5.0)], horizons=[4], **options)


def test_rows_say_how_many_rows_of_z_are_drawn():
  found = dpftrl.compare(['identity', 'blt-b400', 'dense'], dpftrl.MinSep(20, max_participations=1))
  assert [row['rows_drawn'] for row in found.rows] == [1.0, 1.0, 10.5]


def test_one_number_of_numpy_is_taken_for_several():
  budget = dpftrl.LossBudget(max_participations=2, min_sep=4)
  found = dpftrl.compare(
    ['identity'], budget, epsilon=np.int64(2), delta=1e-6, num_rounds=np.int64(9)
  )
  assert [(row['epsilon'], row['num_rounds']) for row in found.rows] == [(2, 9)]


@made.cases(
  'call, message',
  (lambda: dpftrl.describe('identity', dpftrl.SecretBins(20, 4)), 'FixedSeparation, got Secret'),
  (lambda: dpftrl.save_strategy('x.json', 'identity', schema=None), 'schema must be a MinSep'),
  (lambda: dpftrl.describe('identity', SCHEMAS[0], workload='momentum'), 'workload must be a Work'),
  (lambda: dpftrl.optimize('blt', SCHEMAS[0], workload='momentum'), 'workload must be a Workload'),
  (lambda: dpftrl.compare(['blt'], SCHEMAS[0], workload='momentum'), 'workload must be a Workload'),
  (lambda: dpftrl.simulate({'population': 9}, num_rounds=5), 'scenario must be a Scenario'),
  (lambda: dpftrl.replay(__file__, delta=1e-6), 'give a log to open_run, with its strategy'),
  (lambda: dpftrl.compare(['blt'], SCHEMAS[0], objective='mean'), 'objective must be rms or max'),
  (lambda: dpftrl.account('identity', (9, 4), noise_multiplier=1, delta=0.1), 'participation must'),
)
def test_values_of_another_type_are_refused_by_name(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize('mechanism', ['identity', dpftrl.Identity()])
def test_one_mechanism_needs_no_list(mechanism):
  assert [row['mechanism'] for row in dpftrl.compare(mechanism, SCHEMAS[0]).rows] == ['identity']
