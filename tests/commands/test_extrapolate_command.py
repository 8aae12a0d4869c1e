"""fl-dpftrl extrapolate: rows, files, warnings and words."""

import csv
import json
import os
import re

import pytest

from fl_dpftrl.commands import extrapolate

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
  found = result(f'extrapolate --strategies=blt-b400,tree_online {GOAL} {sweep}')
  assert (found['varying'], found['skipped']) == (axis, [])
  rows = found['rows']
  assert [r['strategy'] for r in rows[:: len(values)]] == ['blt-b400', 'tree_online']
  for i, row in enumerate(rows):
    assert row[axis] == values[i % len(values)]
    assert row['min_sep'] == min_seps[i % len(values)]
    assert row['noise_multiplier'] == 7.379 * (row['report_goal'] / 6500)
    account = result(
      f'account --strategy={row["strategy"]} --num_rounds={row["num_rounds"]}'
      f' --min_sep={row["min_sep"]}'
      f' --max_participations={row["max_participations"]}'
      f' --noise_multiplier={row["noise_multiplier"]!r} --delta=1e-10'
    )
    own = {k: v for k, v in row.items() if k not in ('report_goal', 'population')}
    assert own.items() <= account.items()


@pytest.mark.slow
def test_optimised_for_each_setting(result):
  sweep = f'{GOAL} --num_rounds=64 --population=52000,104000'
  found = result(f'extrapolate --strategies=banded {sweep}')
  assert any('optimised for each' in line for line in found['assumptions'])
  assert [r['min_sep'] for r in found['rows']] == [8, 16]
  for row in found['rows']:
    best = result(f'optimize --mechanism=banded --num_rounds=64 --min_sep={row["min_sep"]}')
    assert row['sensitivity'] == best['sensitivity']


@pytest.mark.slow
def test_files_and_a_strategy_that_ends(run, tmp_path):
  line = (
    f'extrapolate --strategies=banded-b16,blt-b400 {GOAL} --min_sep=16 --num_rounds=128,256,257,512'
  )
  status, out, err = run(f'{line} --output={tmp_path / "a"} --json')
  assert status == 0
  found = json.loads(out)
  rounds = {'banded-b16': [], 'blt-b400': []}
  for row in found['rows']:
    rounds[row['strategy']].append(row['num_rounds'])
  assert rounds == {'banded-b16': [128, 256], 'blt-b400': [128, 256, 257, 512]}
  assert [s['num_rounds'] for s in found['skipped']] == [257, 512]
  assert err.count('\n') == 1
  assert re.search('banded-b16 is left out at num_rounds=257,512: .*256', err)
  names = ['epsilon.png', 'extrapolation.csv', 'rho.png']
  assert sorted(found['files']) == sorted(os.listdir(tmp_path / 'a')) == names
  with open(tmp_path / 'a' / 'extrapolation.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  shown = [{k: '' if v is None else str(v) for k, v in row.items()} for row in found['rows']]
  assert rows == shown
  assert run(f'{line} --output={tmp_path / "b"}')[0] == 0
  for name in ('epsilon.png', 'rho.png'):
    a, b = ((tmp_path / folder / name).read_bytes() for folder in 'ab')
    assert a == b and a.startswith(b'\x89PNG\r\n\x1a\n') and a[-8:-4] == b'IEND'


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
def test_the_example_works(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  line = extrapolate.EXAMPLE.removeprefix('fl-dpftrl ').replace('26000:10', '26000:3')
  status, out, _ = run(line)
  assert status == 0 and 'tree_online' in out
  assert len(os.listdir('extrapolation')) == 3
