"""What searches found is taken from the cache only if it is of the same problem and not broken."""

import json
import pathlib

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.optimization import registry
from fl_dpftrl.planning import candidate_sets, comparison, strategy_cache

SCHEMA = dpftrl.MinSep(num_rounds=20, min_sep=5)
FOLDER = strategy_cache.folder  # Tests have another one.


@pytest.fixture
def searches(monkeypatch):
  """The mechanisms of the searches so far."""
  found, optimize = [], registry.optimize
  monkeypatch.setattr(
    registry,
    'optimize',
    lambda name, *schema, **goal: (found.append(name), optimize(name, *schema, **goal))[1],
  )
  return found


def rows(cache, names=('banded:3', 'blt:1', 'identity'), participations=(SCHEMA,), **options):
  options = {'objective': 'max', 'cache': cache, **options}
  found = comparison.run(candidate_sets.named(names), participations, **options)
  return [{k: v for k, v in row.items() if k != 'seconds'} for row in found.rows]


def test_a_problem_is_searched_once_and_has_the_same_digits(tmp_path, searches):
  anew = rows(None)
  assert rows(tmp_path / 'new') == anew
  assert searches == 2 * ['banded', 'blt', 'identity']
  assert rows(tmp_path / 'new') == anew and searches[6:] == ['identity']  # No search for that one.
  assert len(list((tmp_path / 'new').glob('*.json'))) == 2


def test_every_part_of_a_problem_makes_another(tmp_path, searches):
  budget = dpftrl.LossBudget(max_participations=3, min_sep=5)
  workload = dpftrl.Workload(0.5)
  problems = [
    {}, {'objective': 'rms'}, {'workload': workload}, {'names': ['blt:2']},
    {'participations': [dpftrl.MinSep(20, 5, 2)]},
    {'participations': [dpftrl.FixedSeparation(20, 5)]},
    *({'participations': [budget], 'horizons': horizons} for horizons in ([9, 20], [20])),
  ]  # fmt: skip
  first = [rows(tmp_path, **{'names': ['blt:1'], **problem}) for problem in problems]
  assert len(searches) == len(problems) == len(list(tmp_path.glob('*.json')))
  assert first == [rows(tmp_path, **{'names': ['blt:1'], **problem}) for problem in problems]
  assert len(searches) == len(problems)


def test_a_file_that_is_broken_or_of_another_problem_is_searched_anew(tmp_path, searches):
  expected = rows(tmp_path, ['blt:1'])
  (path,) = tmp_path.glob('*.json')
  document = json.loads(path.read_text())
  other = {**document, 'objective': 'rms'}
  wrong = {**document, 'rms_loss': document['rms_loss'] * 0.9}
  for text in ('', '{"format": ', json.dumps(wrong), json.dumps(other)):
    path.write_text(text)
    assert rows(tmp_path, ['blt:1']) == expected
    assert json.loads(path.read_text()) == document
  assert searches == 5 * ['blt']
  dpftrl.save_strategy(path, 'identity', schema=SCHEMA, objective='max')  # Another family.
  assert rows(tmp_path, ['blt:1']) == expected and searches == 6 * ['blt']


def test_families_are_those_of_the_mechanisms():
  for name in registry.OPTIMIZERS:
    assert registry.optimize(name, SCHEMA).family == strategy_cache._FAMILIES.get(name, name)


def test_nothing_to_write_to_keeps_nothing(tmp_path):
  (tmp_path / 'file').write_text('')
  assert rows(tmp_path / 'file' / 'cache') == rows(None)


def test_a_budget_without_a_schema_is_left_out_for_the_same_reason(tmp_path):
  options = {'objective': 'max', 'horizons': [20]}
  budget = [dpftrl.LossBudget(squared=30.0)]
  reasons = [
    comparison.run(candidate_sets.named(['blt:1']), budget, cache=cache, **options).skipped
    for cache in (None, tmp_path)
  ]
  assert reasons[0] == reasons[1] and 'not squared' in reasons[0][0].reason


def test_the_folder_is_that_of_the_user(monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', '/there')
  assert FOLDER() == pathlib.Path('/there/fl_dpftrl/strategies')
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/home/me')
  assert FOLDER() == pathlib.Path('/home/me/.cache/fl_dpftrl/strategies')
  monkeypatch.delenv('HOME')
  monkeypatch.setattr('pwd.getpwuid', lambda uid: (_ for _ in ()).throw(KeyError(uid)))
  assert FOLDER() is None


def test_python_keeps_what_it_finds_only_if_asked(tmp_path, monkeypatch):
  monkeypatch.setattr(strategy_cache, 'folder', lambda: tmp_path)
  dpftrl.compare(['blt:1'], SCHEMA)
  assert not list(tmp_path.iterdir())
  found = dpftrl.compare(['blt:1'], SCHEMA, cache=True)
  assert list(tmp_path.glob('*.json')) and found.rows[0]['mechanism'] == 'blt:1'
