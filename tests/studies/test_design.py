"""Study files: what they may say, and how they are refused."""

import json

import pytest

from fl_dpftrl.studies import design as design_lib

GRID = {
  'title': 'A study',
  'flags': ['--dataset=synthetic'],
  'mechanisms': ['identity', {'mechanism': 'blt:2', 'made_for_min_sep': 4}],
  'epsilons': [2, 1],
  'server_learning_rates': [0.5, 0.1],
  'seeds': [3, 4, 5],
  'without_noise': False,
}
CELL = {'mechanism': 'blt', 'epsilon': 1, 'server_learning_rates': [1]}


def test_a_grid_has_a_setting_for_each_epsilon_and_mechanism():
  design = design_lib.parse(GRID)
  assert [(s.label, s.epsilon) for s in design.settings] == [
    ('identity', 1.0),
    ('blt:2 for b=4', 1.0),
    ('identity', 2.0),
    ('blt:2 for b=4', 2.0),
  ]
  assert design.settings[0].server_learning_rates == (0.1, 0.5)
  assert (design.num_cells, design.num_further) == (4 * (2 + 2), 4 * 3)
  own = design_lib.Mechanism(mechanism='blt', label='ours')
  assert design_lib.parse({**GRID, 'mechanisms': [own]}).settings[0].mechanism is own


def test_runs_without_noise_are_a_setting():
  study = design_lib.parse({**GRID, 'without_noise': True})
  assert (study.settings[-1].label, study.settings[-1].epsilon) == ('no noise', None)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'titel': 'x'}, "no field 'titel'"),
    ({'title': 7}, 'title must be text, got 7'),
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
    design_lib.read(path)
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
    design_lib.parse(study)


def test_a_missing_field_is_named():
  for name in ('title', 'flags', 'mechanisms', 'epsilons', 'server_learning_rates', 'seeds'):
    with pytest.raises(ValueError, match=f'{name} is missing'):
      design_lib.parse({key: value for key, value in GRID.items() if key != name})
