"""The names at the top of the package: light, complete for editors, documented."""

import ast
import pathlib
import re

import pytest

import fl_dpftrl
from fl_dpftrl.optimization import blt
from fl_dpftrl.optimization.problem import Problem

ROOT = pathlib.Path(__file__).parent.parent
SCHEMA = fl_dpftrl.MinSep(num_rounds=24, min_sep=6)


def test_editors_see_the_names_that_load():
  stub = pathlib.Path(fl_dpftrl.__file__).with_name('__init__.pyi')
  tree = ast.parse(stub.read_text())
  imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
  names = [alias.asname for node in imports for alias in node.names]
  assert sorted(['__version__', *names]) == sorted(fl_dpftrl.__all__)
  assert stub.with_name('py.typed').exists()


def test_the_readme_begins_with_a_program_that_prints_what_it_says(tmp_path, monkeypatch, capsys):
  text = (ROOT / 'README.md').read_text()
  program, printed = re.search(r'```python\n(.*?)```.*?```\n(.*?)```', text, re.S).groups()
  assert 'tensorflow' not in program
  monkeypatch.chdir(tmp_path)
  exec(compile(program, 'README.md', 'exec'), {})
  assert capsys.readouterr().out == printed


def test_optimised_strategies_are_described_saved_and_loaded(tmp_path):
  strategy = fl_dpftrl.optimize('banded_toeplitz', SCHEMA, objective='rms', num_bands=4)
  found = fl_dpftrl.describe(strategy, SCHEMA)
  assert found.rms_loss == found.sensitivity.value * found.error.rms
  path = tmp_path / 'strategy.json'
  saved = fl_dpftrl.save_strategy(path, strategy, schema=SCHEMA, objective='rms')
  assert saved.figures == found.figures
  assert fl_dpftrl.load_strategy(path).num_bands == 4
  (row,) = fl_dpftrl.compare([str(path)], SCHEMA).rows
  assert row.rms_loss == found.rms_loss


def test_several_schemas_are_optimised_for_at_once():
  schemas = [fl_dpftrl.MinSep(num_rounds=24, min_sep=b) for b in (2, 12)]
  options = {'objective': 'max', 'over': 'worst', 'num_buffers': 2}
  found = fl_dpftrl.optimize('blt', schemas, **options)
  problems = [Problem(schema) for schema in schemas]
  assert found == blt.optimize_range(problems, 'worst', 2)


@pytest.mark.parametrize(
  'mechanism, options, message',
  [
    ('bands', {}, "mechanism must be one of .*, got 'bands'"),
    ('blt', {'num_bands': 3}, 'num_bands=3 is not for mechanism=blt'),
    ('dense', {'schema': [SCHEMA, SCHEMA]}, 'mechanism=dense takes one schema, got 2'),
    ('blt', {'schema': 200}, 'schema must be a MinSep or a list of them, got 200'),
    ('identity', {'objective': 'mean'}, "objective must be rms or max, got 'mean'"),
  ],
)
def test_optimize_refuses(mechanism, options, message):
  with pytest.raises(ValueError, match=message):
    fl_dpftrl.optimize(mechanism, **{'schema': SCHEMA, **options})


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'timer_hours': '48'}, "timer_hours must be above 0 .*, got '48'"),
    ({'availability': 'daily'}, "must be 'always', 'nightly' or a Parquet table .*, got 'daily'"),
  ],
)
def test_simulate_refuses(fields, message):
  scenario = fl_dpftrl.Scenario(population=20, report_goal=2, **fields)
  with pytest.raises(ValueError, match=message):
    fl_dpftrl.simulate(scenario, num_rounds=2)
