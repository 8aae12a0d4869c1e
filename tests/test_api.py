"""The names at the top of the package: light, complete for editors, documented."""

import ast
import pathlib
import re

import pytest
import threadpoolctl

import fl_dpftrl
from fl_dpftrl.mechanisms.search import optimizers
from tests import every_family

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


def test_linear_algebra_has_one_thread_while_a_strategy_is_optimised(monkeypatch):
  pools = threadpoolctl.ThreadpoolController().select(user_api='blas')
  count = lambda: {one['num_threads'] for one in pools.info()}
  found = []
  optimizer = optimizers.Optimizer(lambda problem: found.append(count()))
  monkeypatch.setitem(optimizers.OPTIMIZERS, 'identity', optimizer)
  with pools.limit(limits=2):
    fl_dpftrl.optimize('identity', SCHEMA)
    assert found == [{1}] and count() == {2}


@pytest.mark.parametrize('name', every_family.FAMILIES)
def test_a_strategy_shows_itself_in_one_short_line(name):
  shown = repr(every_family.example(name, 60))
  assert len(shown) <= 120 and '\n' not in shown and shown.endswith(')')


@pytest.mark.parametrize('given', ['identity', 'blt-b100', 'toeplitz-b342-rms', 'file'])
def test_a_strategy_may_be_given_by_its_name(given, tmp_path):
  if given == 'file':
    given = tmp_path / 'a.json'
    fl_dpftrl.save_strategy(given, fl_dpftrl.BandedToeplitz([1.0, 0.5]), schema=SCHEMA)
  strategy, noise = fl_dpftrl.load_strategy(given), dict(noise_multiplier=2.0, delta=1e-6)
  account, calibrate = fl_dpftrl.account, fl_dpftrl.calibrate
  assert account(given, SCHEMA, **noise) == account(strategy, SCHEMA, **noise)
  found = [calibrate(one, SCHEMA, epsilon=3.0, delta=1e-6) for one in (given, strategy)]
  assert found[0] == found[1]
  described = fl_dpftrl.describe(given, SCHEMA)
  assert described.figures == fl_dpftrl.describe(strategy, SCHEMA).figures
  saved = fl_dpftrl.save_strategy(tmp_path / 'again.json', given, schema=SCHEMA)
  assert saved.figures == described.figures


def test_a_strategy_and_its_path_in_the_wrong_order_say_which_is_first(tmp_path):
  with pytest.raises(ValueError, match='path must come first, as in save_strategy'):
    fl_dpftrl.save_strategy(fl_dpftrl.Identity(), tmp_path / 'a.json', schema=SCHEMA)


NUMBERS = dict(template=1.0, noise_multiplier=1.0, clip_norm=1.0, report_goal=1)
TAKE_STRATEGIES = {
  'account': lambda s: fl_dpftrl.account(s, SCHEMA, noise_multiplier=1.0, delta=1e-6),
  'calibrate': lambda s: fl_dpftrl.calibrate(s, SCHEMA, epsilon=1.0, delta=1e-6),
  'describe': lambda s: fl_dpftrl.describe(s, SCHEMA),
  'save_strategy': lambda s: fl_dpftrl.save_strategy('a.json', s, schema=SCHEMA),
  'audit': lambda s: fl_dpftrl.audit(s, SCHEMA, noise_multiplier=1.0, delta=1e-6),
  'Claim': lambda s: fl_dpftrl.Claim(strategy=s, noise_multiplier=1.0),
  'open_run': lambda s: fl_dpftrl.open_run('log.parquet', s, noise_multiplier=1.0),
  'NoiseRows': lambda s: fl_dpftrl.NoiseRows(s, 2, folder='rows'),
  'PrivateAggregator': lambda s: fl_dpftrl.PrivateAggregator(s, folder='run', **NUMBERS),
}


@pytest.mark.parametrize('name', TAKE_STRATEGIES)
@pytest.mark.parametrize(
  'given, message',
  [('blt-b0', "'blt-b0' is neither a file nor one of"), (7, 'strategy must be a Strategy, got 7')],
)
def test_what_is_no_strategy_is_refused_in_one_line(name, given, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=message) as error:
    TAKE_STRATEGIES[name](given)
  assert '\n' not in str(error.value) and len(str(error.value)) <= 300
  assert not list(tmp_path.iterdir())
