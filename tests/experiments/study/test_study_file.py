"""Study files: what they may say, and how they are refused."""

import json
import pathlib
import re

import pytest

from experiments.stackoverflow.study import cells, estimate, study_file

ROOT = pathlib.Path(__file__).parents[3]
GRID = {
  'title': 'A study',
  'flags': ['--dataset=synthetic', '--report_goal=5', '--num_rounds=8', '--timer_rounds=2'],
  'mechanisms': ['identity', {'mechanism': 'blt:2', 'made_for_min_sep': 4}],
  'epsilons': [2, 1],
  'server_learning_rates': [0.5, 0.1],
  'seeds': [3, 4, 5],
  'without_noise': False,
}
CELL = {'mechanism': 'blt', 'epsilon': 1, 'server_learning_rates': [1]}


def test_a_grid_has_a_setting_for_each_epsilon_and_mechanism():
  study = study_file.parse(GRID)
  assert [(s.label, s.epsilon) for s in study.settings] == [
    ('identity', 1.0),
    ('blt:2 for b=4', 1.0),
    ('identity', 2.0),
    ('blt:2 for b=4', 2.0),
  ]
  assert study.settings[0].server_learning_rates == (0.1, 0.5)
  assert estimate.num_cells(study) == 4 * (2 + 2)
  noises = dict.fromkeys(study.settings)
  assert len(list(cells.tuning(study, noises))) == 8
  rates = dict.fromkeys(study.settings, 0.5)
  final = list(cells.final(study, noises, rates))
  assert [(c.seed, c.server_learning_rate) for c in final[::4]] == [(4, 0.5), (5, 0.5)]


def test_runs_without_noise_are_a_setting():
  study = study_file.parse({**GRID, 'without_noise': True})
  assert (study.settings[-1].label, study.settings[-1].epsilon) == ('no noise', None)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'titel': 'x'}, "no field 'titel'"),
    ({'title': 7}, 'title must be text, got 7'),
    ({'flags': ['--seed=1']}, "'--seed=1'"),
    ({'flags': '--a=1'}, 'flags must be a list'),
    ({'mechanisms': []}, 'mechanisms must be a list'),
    ({'mechanisms': ['blt', 'blt']}, "'blt' is there twice"),
    ({'mechanisms': [{'label': 'x'}]}, 'must have the field mechanism'),
    ({'mechanisms': [{'mechanism': 'blt', 'made_for_min_sep': 0}]}, 'made_for_min_sep'),
    ({'mechanisms': [{'mechanism': 'blt', 'objective': 'mean'}]}, 'mean'),
    ({'epsilons': [1, 0]}, 'epsilons must be a number above 0, got 0'),
    ({'epsilons': [1, 1]}, 'epsilons must be distinct'),
    ({'epsilon_of': 'device'}, "'device'"),
    ({'server_learning_rates': ['big']}, "got 'big'"),
    ({'seeds': [1.5]}, 'seeds must be a whole number from 0 on, got 1.5'),
    ({'seeds': [1, 1]}, 'seeds must be distinct'),
    ({'tuning_seeds': 4}, 'tuning_seeds=4 must be at most the 3 seeds'),
    ({'extend_rates': -1}, 'extend_rates must be a whole number from 0 on, got -1'),
    ({'without_noise': 'no'}, "got 'no'"),
  ],
)
def test_a_bad_field_is_named_with_its_value(tmp_path, changes, words):
  path = tmp_path / 'study.json'
  path.write_text(json.dumps({**GRID, **changes}))
  with pytest.raises(ValueError) as caught:
    study_file.read(path)
  assert str(caught.value).startswith(f'{path}: ') and words in str(caught.value)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'epsilon': None}, 'mechanism and epsilon must be given together'),
    ({'published': 'x'}, 'published'),
    ({'noise_multiplier': 1, 'effective_noise_multiplier': 2}, 'not both'),
    ({'noise': 1}, "no field 'noise'"),
  ],
)
def test_a_bad_cell_is_refused(changes, words):
  study = {'title': 'x', 'flags': [], 'seeds': [0], 'cells': [{**CELL, **changes}]}
  with pytest.raises(ValueError, match=words):
    study_file.parse(study)


def test_a_missing_field_is_named():
  for name in ('title', 'flags', 'mechanisms', 'epsilons', 'server_learning_rates', 'seeds'):
    with pytest.raises(ValueError, match=f'{name} is missing'):
      study_file.parse({key: value for key, value in GRID.items() if key != name})


@pytest.mark.parametrize('path', sorted((ROOT / 'studies').glob('*.json')), ids=lambda p: p.stem)
def test_committed_studies_fit_their_flags(path):
  study = study_file.read(path)
  for setting in study.settings:
    hparams = cells.base_flags(study, setting)
    assert hparams.timer_rounds or hparams.timer_hours
    assert hparams.deployment_report_goal


def test_the_papers_tables_are_whole():
  study = study_file.read(ROOT / 'studies' / 'stackoverflow.json')
  assert len(study.settings) == 25 + 12
  assert all(s.effective_noise_multiplier or s.noise_multiplier for s in study.settings)
  assert sum(s.published is None for s in study.settings) == 1  # Not in the paper.


def test_the_page_on_studies_has_a_study_that_can_be_run_and_every_field():
  page = (ROOT / 'docs/studies.md').read_text()
  study = study_file.parse(json.loads(page.split('```json')[1].split('```')[0]))
  flags = cells.base_flags(study, study.settings[0])
  assert (flags.dataset, flags.deployment_report_goal) == ('my_texts', 2000)
  with pytest.raises(ValueError) as caught:
    study_file.parse({**GRID, 'field': 1})
  known = set(str(caught.value).partition('it has ')[2].split(', ')) | {'cells'}
  table = page.split('| field of a study file |')[1].split('\n\n')[0]
  assert set(re.findall(r'^\| `(\w+)` \|', table, re.MULTILINE)) == known
