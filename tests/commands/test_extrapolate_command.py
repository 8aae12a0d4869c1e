"""fl-dpftrl extrapolate from the outside: rows, files, warnings, refusals."""

import csv
import json
import os
import re
import subprocess
import sys

import pytest

from fl_dpftrl.commands import extrapolate, output

ROW = [
  'strategy',
  'report_goal',
  'noise_multiplier',
  'population',
  'num_rounds',
  'min_sep',
  'max_participations',
  'sensitivity',
  'sensitivity_kind',
  'rho',
  'epsilon',
  'delta',
  'adjacency',
]
ACCOUNT = [
  'num_rounds',
  'min_sep',
  'max_participations',
  'noise_multiplier',
  'sensitivity',
  'sensitivity_kind',
  'rho',
  'epsilon',
  'delta',
  'adjacency',
]
GOAL = '--noise_multiplier=7.379 --report_goal=6500 --delta=1e-10'


@pytest.fixture
def result(result_beside_warnings):
  return result_beside_warnings


SWEEPS = [
  (
    '--report_goals=3250,6500,13000 --population=1300000 --num_rounds=500',
    'report_goal',
    [3250, 6500, 13000],
    [400, 200, 100],
  ),
  ('--num_rounds=150,300,450 --min_sep=100', 'num_rounds', [150, 300, 450], [100, 100, 100]),
  ('--population=650000,1300000 --num_rounds=300', 'population', [650000, 1300000], [100, 200]),
  (
    '--population=650000,1300000 --num_rounds=300 --min_sep=90,180 --max_participations=4',
    'population',
    [650000, 1300000],
    [90, 180],
  ),
]


@pytest.mark.slow
@pytest.mark.parametrize('sweep, axis, values, min_seps', SWEEPS)
def test_a_row_is_what_account_says(result, sweep, axis, values, min_seps):
  found = result(f'extrapolate --strategies=blt-b400,tree_online,identity {GOAL} {sweep}')
  assert list(found) == ['varying', 'rows', 'skipped', 'assumptions', 'output', 'files']
  assert (found['varying'], found['skipped']) == (axis, [])
  rows = found['rows']
  assert [r['strategy'] for r in rows[:: len(values)]] == ['blt-b400', 'tree_online', 'identity']
  for i, row in enumerate(rows):
    assert list(row) == ROW
    assert row[axis] == values[i % len(values)]
    assert row['min_sep'] == min_seps[i % len(values)]
    assert row['noise_multiplier'] == 7.379 * (row['report_goal'] / 6500)
    account = result(
      f'account --strategy={row["strategy"]} --num_rounds={row["num_rounds"]}'
      f' --min_sep={row["min_sep"]}'
      f' --max_participations={row["max_participations"]}'
      f' --noise_multiplier={row["noise_multiplier"]!r} --delta=1e-10'
    )
    assert {k: row[k] for k in ACCOUNT} == {k: account[k] for k in ACCOUNT}


@pytest.mark.slow
def test_optimised_for_each_setting(result):
  sweep = f'{GOAL} --num_rounds=64 --population=52000,104000'
  found = result(f'extrapolate --strategies=blt:2,banded {sweep}')
  assert any('optimised for each' in line for line in found['assumptions'])
  rows = found['rows']
  assert [r['min_sep'] for r in rows] == [8, 16, 8, 16]
  for row in rows:
    mechanism, _, size = row['strategy'].partition(':')
    best = result(
      f'optimize --mechanism={mechanism} --num_rounds=64 --objective=max'
      f' --min_sep={row["min_sep"]}'
      f'{" --num_buffers=" + size if size else ""}'
    )
    assert row['sensitivity'] == best['sensitivity']


def test_noise_of_their_own(result):
  found = result(
    'extrapolate --strategies=identity,tree_online --noise_multiplier=2,7'
    ' --report_goal=10 --report_goals=10,20 --population=100 --num_rounds=20'
    ' --delta=1e-6'
  )
  assert [r['noise_multiplier'] for r in found['rows']] == [2, 4, 7, 14]
  assert any('their own noise' in line for line in found['assumptions'])


@pytest.mark.slow
def test_a_strategy_ends_where_it_was_made_for(run, tmp_path):
  status, out, err = run(
    f'extrapolate --strategies=banded-b16,blt-b400 {GOAL} --min_sep=16'
    f' --num_rounds=128,256,257,512 --output={tmp_path} --json'
  )
  assert status == 0
  found = json.loads(out)
  rounds = {'banded-b16': [], 'blt-b400': []}
  for row in found['rows']:
    rounds[row['strategy']].append(row['num_rounds'])
  assert rounds == {'banded-b16': [128, 256], 'blt-b400': [128, 256, 257, 512]}
  assert [s['num_rounds'] for s in found['skipped']] == [257, 512]
  assert err.count('\n') == 1
  assert re.search('banded-b16 is left out at num_rounds=257,512: .*256', err)


@pytest.mark.slow
def test_files(run, tmp_path, monkeypatch):
  # On a busy machine it may take long enough to be told of.
  monkeypatch.setattr(output, 'SECONDS', float('inf'))
  folder = tmp_path / 'out'
  line = (
    f'extrapolate --strategies=blt-b400,toeplitz-b342-max {GOAL}'
    ' --report_goals=3000:26000:20 --population=5000000 --num_rounds=2000'
    f' --output={folder}'
  )
  status, out, err = run(f'{line} --json')
  assert (status, err) == (0, '')
  found = json.loads(out)
  names = ['epsilon.png', 'extrapolation.csv', 'rho.png']
  assert sorted(found['files']) == sorted(os.listdir(folder)) == names
  with open(folder / 'extrapolation.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [[str(v) for v in r.values()] for r in found['rows']] == [list(r.values()) for r in rows]
  for name in ('epsilon.png', 'rho.png'):
    before = (folder / name).read_bytes()
    assert before.startswith(b'\x89PNG\r\n\x1a\n') and before[-8:-4] == b'IEND'
    assert run(line)[0] == 0
    assert (folder / name).read_bytes() == before


def test_says_that_it_was_not_run(run):
  line = f'extrapolate --strategies=blt-b400 {GOAL} --num_rounds=100,200'
  _, out, _ = run(f'{line} --population=650000')
  assert out.startswith('predicted, not run: report_goal 6500, noise_')
  assert 'no guarantee' in out
  assert re.search('utility is the same where noise multiplier / report', out)
  assert re.search('min-sep is ⌊population / report goal⌋, the most', out)
  _, out, _ = run(f'{line} --min_sep=50')
  assert 'min-sep is as given' in out and '⌊' not in out
  assert 'population' not in out


@pytest.mark.slow
def test_figures_are_drawn_by_nothing_else():
  statement = (
    'import sys; from fl_dpftrl.commands import main;'
    f'main.main("extrapolate --strategies=identity {GOAL} --min_sep=5'
    ' --num_rounds=9,10".split());'
    'sys.exit("matplotlib" in sys.modules)'
  )
  subprocess.run([sys.executable, '-c', statement], check=True)


BASE = f'--strategies=identity {GOAL}'
ERRORS = [
  ('', '--strategies'),
  (f'{BASE} --min_sep=3', '--num_rounds'),
  (f'{BASE} --num_rounds=9,10', 'population or min_sep'),
  (f'{BASE} --num_rounds=9 --min_sep=3', '--report_goals.*account'),
  (f'{BASE} --num_rounds=9,10 --population=6500,9000', '--num_rounds and --population'),
  (f'{BASE} --num_rounds=9,10 --report_goals=65,90 --min_sep=2', '--report_goals and --num_rounds'),
  (f'{BASE} --num_rounds=9,10 --min_sep=2,3,4', '--min_sep.*one value or 2'),
  (f'{BASE} --num_rounds=9,10 --min_sep=0', "--min_sep.*'0'"),
  (f'{BASE} --num_rounds=9,x --min_sep=1', "--num_rounds.*'x'"),
  (f'{BASE} --num_rounds=9,10 --population=6499', 'population=6499'),
  (f'{BASE} --num_rounds=9,10 --population=6500 --min_sep=2', 'population=6500 is too small'),
  (f'{BASE} --num_rounds=9,10 --min_sep=1 --max_participations=0', 'max_participations.*0'),
  (f'{BASE} --num_rounds=9,10 --min_sep=1 --noise_multiplier=1,2', '--noise_multiplier.*1.*2'),
  (f'{BASE} --num_rounds=9,10 --min_sep=1 --noise_multiplier=x', "--noise_multiplier.*'x'"),
  (f'{BASE} --num_rounds=9,10 --min_sep=1 --noise_multiplier=-1', 'noise_multiplier.*-1'),
  (f'{BASE} --num_rounds=9,10 --min_sep=1 --report_goal=0', 'report_goal.*0'),
  (f'{BASE} --num_rounds=9,10 --min_sep=1 --delta=2', 'delta.*2'),
  (f'{BASE} --num_rounds=9,10 --min_sep=1 --strategies=nope', "--strategies.*'nope'"),
  (f'{BASE} --num_rounds=9,10 --min_sep=1 --output=there', '--output.*folder'),
]


@pytest.mark.parametrize('flags, message', ERRORS)
def test_errors_write_nothing_and_exit_with_2(run, tmp_path, monkeypatch, flags, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'there').write_text('')
  if '--output' not in flags:
    flags += ' --output=out'
  status, out, err = run(f'extrapolate {flags}')
  assert (status, out) == (2, '')
  assert err.startswith('fl-dpftrl extrapolate: ') and err.count('\n') == 1
  assert re.search(message, err), err
  assert os.listdir() == ['there']


def test_nothing_is_written_where_no_strategy_goes_so_far(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  status, out, err = run(
    f'extrapolate --strategies=banded-b16 {GOAL} --num_rounds=300,400 --min_sep=16 --output=out'
  )
  assert (status, out, os.listdir()) == (2, '', [])
  assert '--strategies=banded-b16' in err.splitlines()[-1]


@pytest.mark.slow
def test_the_example_works(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  status, out, _ = run(extrapolate.EXAMPLE.removeprefix('fl-dpftrl '))
  assert status == 0
  assert 'tree_online' in out
  assert len(os.listdir('extrapolation')) == 3
