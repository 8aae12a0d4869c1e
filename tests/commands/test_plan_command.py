"""fl-dpftrl plan from the outside: fields, files, words, refusals."""

import json
import re

import pytest

from fl_dpftrl.commands import output
from fl_dpftrl.strategies import files
from tests import pages

RUN = '--population=1200 --report_goal=10 --num_rounds=80 --timer_hours=2'
PRIVACY = '--delta=1e-6 --noise_multiplier=9'
FAST = '--strategies=blt:2,banded,tree_full,blt-b100'
LINE = f'plan {RUN} {PRIVACY} {FAST}'
FIELDS = {
  'expected',
  'range',
  'simulations',
  'planned',
  'recommended',
  'alternatives',
  'skipped',
  'settings',
  'settings_scale',
  'assumptions',
  'is_guarantee',
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
  # On a busy machine anything may take long enough to be told of.
  monkeypatch.setattr(output, 'SECONDS', float('inf'))


@pytest.mark.slow
def test_fields_and_files(result, tmp_path):
  page, file = tmp_path / 'plan.html', tmp_path / 'plan.json'
  found = result(f'{LINE} --report={page} --output={file}')
  assert found.keys() >= FIELDS and found['is_guarantee'] is False
  for name in ('num_rounds', 'min_sep', 'max_participations', 'days'):
    low, high = found['range'][name]
    values = [run[name] for run in found['simulations']]
    assert (low, high) == (min(values), max(values))
    assert low <= found['expected'][name] <= high
  assert [run['seed'] for run in found['simulations']] == [0, 1, 2]
  planned, best = found['planned'], found['recommended']
  assert planned['min_sep'] < found['range']['min_sep'][0]
  assert best['noise_multiplier'] == 9.0
  # The ε that is stated is no less than that of any simulation.
  assert best['epsilon_range'][0] <= best['expected_epsilon']
  assert best['epsilon_range'][1] <= best['epsilon']
  assert {a['strategy'] for a in found['alternatives']} == {
    'blt:2',
    'banded',
    'tree_full',
    'blt-b100',
  } - {best['strategy']}
  goals = {(s['report_goal'], s['num_rounds']) for s in found['settings']}
  assert goals == {(10, 80), (5, 80), (20, 80), (40, 80), (10, 40), (10, 160)}
  # The file and the figures are those of other commands.
  account = result(
    f'account --strategy={file} --noise_multiplier=9 --delta=1e-6'
    f' --num_rounds=80 --min_sep={planned["min_sep"]}'
    f' --max_participations={planned["max_participations"]}'
  )
  for name in ('epsilon', 'rho', 'sensitivity', 'delta', 'adjacency'):
    assert account[name] == best[name]
  stored = files.load(file)
  assert stored.schema.min_sep == planned['min_sep']
  text = page.read_text()
  embedded = re.search(r'id="plan">(.*?)</script>', text, re.DOTALL)[1]
  assert json.loads(embedded) == {**found, 'wall_seconds': json.loads(embedded)['wall_seconds']}
  shown = pages.check(text, found)
  assert {'recommended.epsilon', 'recommended.noise_multiplier', 'planned.min_sep'} <= shown
  assert text.count('<svg ') == 5
  assert 'A prediction, not a guarantee.' in text
  assert 'fl-dpftrl plan --population=1200 --report_goal=10' in text
  assert not re.search(r'(src|href)=|http', text)


@pytest.mark.slow
def test_simulations_are_those_of_simulate(result):
  found = result(f'{LINE} --seed=5 --num_simulations=1 --report_goals=10')
  assert found['settings'][1]['report_goal'] == 10
  simulated = result(f'simulate {RUN} --seed=5')
  (run,) = found['simulations']
  for name in ('min_sep', 'max_participations'):
    assert run[name] == simulated[name]
  assert run['days'] == simulated['simulated_days']


@pytest.mark.slow
def test_memory_and_epsilon(result):
  found = result(f'plan {RUN} --delta=1e-6 --epsilon=0.8 {FAST} --max_copies=3 --report_goals=10')
  best = found['recommended']
  assert best['memory_copies'] <= 3
  assert 0.7999 < best['epsilon'] <= 0.8
  more = {a['strategy']: a for a in found['alternatives']}
  assert not more['banded']['fits']
  assert more['banded']['noise_multiplier'] > 0.0
  much = result(f'plan {RUN} --delta=1e-6 --epsilon=0.8 {FAST} --max_copies=1000 --report_goals=10')
  assert much['recommended']['strategy'] == 'banded'
  least = min(a['loss'] for a in found['alternatives'])
  assert much['recommended']['loss'] == pytest.approx(least)


@pytest.mark.slow
def test_text(run):
  status, out, err = run(f'{LINE} --report_goals=20,2000')
  assert (status, err) == (0, '')
  assert out.startswith('recommended (a prediction, not a guarantee)\n')
  assert 'no guarantee: replay the log of the run for that. It assumes:' in out
  assert '--output=FILE.json to write the strategy file' in out
  # 2000 devices are not there.
  assert re.search(r'^- report goal 2000, 80 rounds: round 0 stalled', out, re.M)


@pytest.mark.slow
def test_a_stalled_round_is_one_line(run):
  status, out, err = run(
    f'plan --population=100 --report_goal=20 --num_rounds=50 --timer_rounds=40 {PRIVACY} {FAST}'
  )
  assert (status, out, err.count('\n')) == (2, '', 1)
  assert 'stalled' in err and '; try ' in err


@pytest.mark.parametrize(
  'changes, named',
  [
    ('--max_copies=-1', '--max_copies=-1'),
    ('--num_simulations=0', '--num_simulations=0'),
    ('--num_workers=0', '--num_workers=0'),
    ('--delta=0', 'delta'),
    ('--noise_multiplier=0', 'noise_multiplier'),
    ('--epsilon=1', 'not allowed with'),
    ('--strategies=bread', "--strategies: 'bread'"),
    ('--output=plan.txt', '--output=plan.txt must end in .json'),
    ('--report=nowhere/plan.html', '--report=nowhere/plan.html'),
    ('--dropout=1', 'dropout'),
    ('--report_goals=0', '--report_goals'),
  ],
)
def test_refuses(run, changes, named):
  status, out, err = run(f'{LINE} {changes}')
  assert (status, out, err.count('\n')) == (2, '', 1)
  assert named in err


@pytest.mark.slow
def test_nothing_fits_the_memory(run):
  status, _, err = run(f'plan {RUN} {PRIVACY} --strategies=blt:2 --max_copies=1 --report_goals=10')
  assert status == 2 and 'max_copies=1 is below the 2' in err
