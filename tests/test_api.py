"""The names at the top of the package: light, complete for editors, documented."""

import ast
import pathlib
import re

import pytest
import threadpoolctl

import fl_dpftrl
import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.search import optimizers
from tests import every_family, made, pages

ROOT = pathlib.Path(__file__).parent.parent
SCHEMA = fl_dpftrl.MinSep(num_rounds=24, min_sep=6)


@pytest.mark.tff
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


def test_a_second_start_of_the_readme_goes_on_and_says_so(tmp_path, monkeypatch, capsys):
  program = next(p for p in pages.programs('../README.md') if 'PrivateAggregator' in p)
  monkeypatch.chdir(tmp_path)
  for t in range(2):
    names = {}
    exec(compile(program, 'README.md', 'exec'), names)
    assert f', round {t} of 600, run)' in capsys.readouterr().out
    assert list(names['round_'].device_ids) == [3 * t, 3 * t + 1, 3 * t + 2]


def _public_objects(folder):
  """Yields an object of each class that users meet, but for those of TFF and of trackers."""
  schema = dpftrl.MinSep(4, 2, 2)
  yield from (schema, dpftrl.FixedSeparation(4, 2), dpftrl.LossBudget(squared=5.0))
  yield from (dpftrl.PerUnit(schema, 2), dpftrl.SecretBins(4, 2), dpftrl.Workload(0.5))
  yield from map(dpftrl.load_strategy, ('identity', 'tree_online', 'blt-b100', 'banded-b16'))
  yield from (
    dpftrl.compare(['identity', 'tree_full'], schema),
    dpftrl.describe('blt-b100', schema),
  )
  yield from (dpftrl.Canaries(8), dpftrl.AdaptiveClipping(0.5), dpftrl.Tuning(mean=4.0))
  yield dpftrl.account('identity', schema, noise_multiplier=2.0, delta=1e-6)
  phones = dpftrl.Scenario(population=30, report_goal=2, timer_rounds=2)
  noise = dict(noise_multiplier=4.0, delta=1e-6)
  yield from (phones, dpftrl.simulate(phones, num_rounds=4))
  yield dpftrl.plan(phones, num_rounds=4, seeds=[1], strategies=['identity'], **noise)
  yield dpftrl.Population(folder / 'fleet', epsilon=4.0, delta=1e-6)
  claim = made.claim(participation=schema)
  with dpftrl.Run(folder / 'run', claim, delta=1e-6) as run:
    with run.round(['ann', 'bob']) as round_:
      yield from (run, round_)
    yield from (run.guard.log, run.status())
  with made.aggregator(folder / 'sums') as aggregator:
    yield from (aggregator, made.release(aggregator, ['ann', 'bob']))
  opened = dpftrl.open_run(folder / 'run')
  yield from (claim, opened, dpftrl.replay(opened, delta=1e-6))
  dpftrl.write_evidence(folder / 'evidence', opened, delta=1e-6)
  yield dpftrl.verify(folder / 'evidence')
  yield dpftrl.NoiseRows('identity', 3, folder=folder / 'rows')
  watching = dpftrl.observers
  yield from (watching.ProgressLine(), watching.EpsilonSoFar(), watching.Seconds())
  yield from (watching.JsonLines(folder / 'a'), watching.Evaluation(dict))


def test_what_is_printed_says_what_it_is(tmp_path):
  for each in _public_objects(tmp_path):
    shown = str(each)
    assert type(each).__name__ in shown or 'ε = ' in shown, shown
    assert ' at 0x' not in shown and len(shown) < 700 and shown.count('\n') < 12, shown


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
