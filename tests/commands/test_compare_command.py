"""fl-dpftrl compare, from the outside: table, JSON, CSV, PNG, and refusals."""

import csv
import json
import os
import re
import struct
import subprocess
import sys

import pytest

from fl_dpftrl.commands import compare, output
from fl_dpftrl.comparison import figures
from fl_dpftrl.optimization import registry
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files

ROW = [
  'mechanism',
  'num_rounds',
  'min_sep',
  'max_participations',
  'sensitivity',
  'sensitivity_kind',
  'rms_error',
  'max_error',
  'rms_loss',
  'max_loss',
  'memory_copies',
  'seconds',
]
FIGURES = ['sensitivity', 'sensitivity_kind', 'rms_error', 'max_error', 'rms_loss', 'max_loss']


def program(line, **kwargs):
  return subprocess.run(
    [sys.executable, '-m', 'fl_dpftrl.commands.main', *line.split()],
    capture_output=True,
    text=True,
    **kwargs,
  )


@pytest.fixture
def result(result_beside_warnings):
  return result_beside_warnings


def png_size(path):
  content = path.read_bytes()
  assert content.startswith(b'\x89PNG\r\n\x1a\n')
  assert content[-8:-4] == b'IEND'
  assert len(content) > 10_000
  return struct.unpack('>II', content[16:24])


@pytest.mark.slow
def test_as_a_program(tmp_path):
  folder = tmp_path / 'out'
  done = program(
    'compare --mechanisms=identity,tree_online,blt:2,blt-b400,banded'
    ' --num_rounds=48 --min_sep=6,12,24 --max_participations=3'
    f' --output={folder} --json',
    check=True,
  )
  found = json.loads(done.stdout)
  assert list(found) == ['objective', 'workload', 'varying', 'rows', 'skipped', 'output', 'files']
  assert found['varying'] == 'min_sep' and found['skipped'] == []
  assert [r['mechanism'] for r in found['rows'][::3]] == [
    'identity',
    'tree_online',
    'blt:2',
    'blt-b400',
    'banded',
  ]
  assert [r['min_sep'] for r in found['rows'][:3]] == [6, 12, 24]
  for row in found['rows']:
    assert list(row) == ROW
    assert row['rms_loss'] == row['sensitivity'] * row['rms_error']
    assert row['max_loss'] == row['sensitivity'] * row['max_error']
  names = ['coefficients.png', 'comparison.csv', 'max_loss.png', 'rms_loss.png']
  assert sorted(found['files']) == sorted(os.listdir(folder)) == names
  with open(folder / 'comparison.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [[str(v) for v in r.values()] for r in found['rows']] == [list(r.values()) for r in rows]
  for name in found['files']:
    if name.endswith('.png'):
      width, height = png_size(folder / name)
      assert 900 < width < 2500 and 500 < height < 2500


@pytest.mark.slow
@pytest.mark.parametrize('mechanism', registry.OPTIMIZERS)
def test_a_row_is_what_optimize_and_describe_say(result, mechanism):
  schema = '--num_rounds=16 --min_sep=4 --max_participations=2'
  (row,) = result(f'compare --mechanisms={mechanism} {schema}')['rows']
  line = f'optimize --mechanism={mechanism} {schema}'
  optimized = result(line)
  assert [row[k] for k in FIGURES] == [optimized[k] for k in FIGURES]


def test_strategies_are_measured_and_not_optimised(tmp_path, result):
  path = tmp_path / 'mine.json'
  strategy = files.load_strategy('blt-b100')
  schema = schemas.MinSep(num_rounds=12, min_sep=4)
  files.save_strategy(path, strategy, schema=schema, objective='rms')
  rows = result(f'compare --mechanisms={path},blt-b1000 --num_rounds=30:300:4 --min_sep=30')['rows']
  assert [r['mechanism'] for r in rows] == ['mine'] * 4 + ['blt-b1000'] * 4
  assert [r['num_rounds'] for r in rows[:4]] == [30, 65, 139, 300]
  described = result('describe blt-b1000 --num_rounds=300 --min_sep=30')
  assert {k: rows[-1][k] for k in FIGURES} == {k: described[k] for k in FIGURES}


@pytest.mark.slow
def test_files_made_for_another_workload_are_told(tmp_path, run):
  path = tmp_path / 'mine.json'
  optimize = 'optimize --mechanism=blt --num_buffers=1 --num_rounds=20'
  run(f'{optimize} --workload=momentum --momentum=0.9 --cooldown_fraction=0.25 --output={path}')
  status, _, err = run(f'compare --mechanisms={path},blt-b400 --num_rounds=20')
  (line,) = err.splitlines()
  assert status == 0
  assert 'mine was made for momentum 0.9, cooldown_fraction 0.25' in line
  assert 'prefix sums' in line


def test_all_are_measured_under_the_workload(result):
  momentum = '--workload=momentum --momentum=0.5'
  line = '--num_rounds=24 --min_sep=6 --objective=rms'
  found = result(f'compare --mechanisms=identity,banded_toeplitz:3 {line} {momentum}')
  assert (found['workload'], found['momentum']) == ('momentum', 0.5)
  for row in found['rows']:
    size = '--num_bands=3' if row['mechanism'].startswith('banded') else ''
    mechanism = row['mechanism'].partition(':')[0]
    own = result(f'optimize --mechanism={mechanism} {line} {momentum} {size}')
    assert own['rms_loss'] == row['rms_loss']


def test_where_none_can_do_it_one_line_says_why(run):
  status, out, err = run('compare --mechanisms=blt:9 --num_rounds=9')
  (line,) = err.splitlines()
  assert status == 2 and not out
  assert 'blt:9: none of them' in line and 'num_buffers must be 1 to 8' in line


def test_as_many_participations_as_fit_unless_said(result):
  rows = result('compare --mechanisms=identity --num_rounds=60 --min_sep=10,20,30')['rows']
  assert [r['max_participations'] for r in rows] == [6, 3, 2]
  rows = result(
    'compare --mechanisms=identity --num_rounds=60 --min_sep=10 --max_participations=1,2,4'
  )['rows']
  assert [r['sensitivity'] for r in rows] == [1.0, 2**0.5, 2.0]


@pytest.mark.slow
def test_a_held_strategy_is_best_where_it_was_made_for(result):
  found = result(
    'compare --mechanisms=identity,blt:2 --num_rounds=128 --min_sep=8,16,64'
    ' --max_participations=2 --optimize_for_min_sep=each,16'
  )
  held = [r for r in found['rows'] if r['mechanism'] == 'blt:2 for min_sep=16']
  best = [r for r in found['rows'] if r['mechanism'] == 'blt:2']
  assert len(held) == len(best) == 3 and len(found['rows']) == 9
  assert held[1]['max_loss'] == best[1]['max_loss']
  for i in (0, 2):
    assert held[i]['max_loss'] > best[i]['max_loss'] * (1 + 1e-6)
  errors = {r['max_error'] for r in held}
  assert len(errors) == 1


@pytest.mark.slow
def test_strategies_of_too_few_rounds_are_left_out(tmp_path, run):
  status, out, err = run(
    'compare --mechanisms=banded,identity --num_rounds=10,20,30 --min_sep=5'
    f' --optimize_for_num_rounds=20 --output={tmp_path} --json'
  )
  assert status == 0
  found = json.loads(out)
  (skip,) = found['skipped']
  assert (skip['mechanism'], skip['num_rounds']) == ('banded for num_rounds=20', 30)
  assert len(found['rows']) == 5
  assert err.count('\n') == 1
  assert re.search('banded.* left out at num_rounds=30: .*20 rounds', err)
  png_size(tmp_path / 'max_loss.png')


def test_one_setting_has_one_row_each_and_a_figure(tmp_path, run):
  folder = tmp_path / 'out'
  status, out, _ = run(
    'compare --mechanisms=blt:1,identity --num_rounds=40 --min_sep=10'
    f' --objective=rms --output={folder}'
  )
  assert status == 0
  lines = out.splitlines()
  assert lines[0] == ('num_rounds 40, min_sep 10, max_participations 4, objective rms')
  assert lines[2].split()[:2] == ['mechanism', 'sensitivity']
  assert [line.split()[0] for line in lines[3:5]] == ['blt:1', 'identity']
  assert sorted(os.listdir(folder)) == ['coefficients.png', 'comparison.csv', 'losses.png']
  png_size(folder / 'losses.png')


@pytest.mark.slow
def test_figures_are_the_same_each_time(tmp_path, run):
  line = 'compare --mechanisms=blt-b400,identity --num_rounds=40,80'
  for name in 'ab':
    assert run(f'{line} --output={tmp_path / name}')[0] == 0
  for name in ('max_loss.png', 'coefficients.png'):
    a, b = ((tmp_path / folder / name).read_bytes() for folder in 'ab')
    assert a == b


@pytest.mark.slow
def test_where_nothing_has_lags_there_is_no_figure_of_them(tmp_path, run):
  status, _, err = run(f'compare --mechanisms=identity --num_rounds=40,80 --output={tmp_path}')
  assert (status, err) == (0, '')
  assert 'coefficients.png' not in os.listdir(tmp_path)


def test_long_work_shows_how_far_it_is(run, monkeypatch):
  monkeypatch.setattr(output, 'SECONDS', 0.0)
  status, out, err = run('compare --mechanisms=blt:1 --num_rounds=20 --min_sep=5 --json')
  assert status == 0
  json.loads(out)
  assert re.search('blt:1 at n=20, b=5, k=4: .* steps, loss', err)


@pytest.mark.slow
def test_figures_are_drawn_by_nothing_else():
  statement = (
    'import sys; from fl_dpftrl.commands import compare, main;'
    'main.main("compare --mechanisms=identity --num_rounds=9".split());'
    'sys.exit("matplotlib" in sys.modules)'
  )
  subprocess.run([sys.executable, '-c', statement], check=True)


ERRORS = [
  ('', '--mechanisms'),
  ('--mechanisms=blt', '--num_rounds'),
  ('--mechanisms=nope --num_rounds=9', "--mechanisms.*'nope'.*blt"),
  ('--mechanisms=blt,,identity --num_rounds=9', '--mechanisms.*empty'),
  ('--mechanisms=blt,blt --num_rounds=9', "--mechanisms.*'blt'"),
  ('--mechanisms=blt:x --num_rounds=9', "--mechanisms.*'blt:x'"),
  ('--mechanisms=identity:2 --num_rounds=9', '--mechanisms.*no size'),
  ('--mechanisms=broken.json --num_rounds=9', '--mechanisms.*broken.json'),
  ('--mechanisms=blt --num_rounds=x', "--num_rounds.*'x'"),
  ('--mechanisms=blt --num_rounds=9 --min_sep=0', "--min_sep.*'0'"),
  ('--mechanisms=blt --num_rounds=9 --min_sep=3,3', '--min_sep.*twice'),
  ('--mechanisms=blt --num_rounds=9 --min_sep=5:3:4', '--min_sep.*LOW'),
  ('--mechanisms=blt --num_rounds=9 --min_sep=3:5', '--min_sep.*LOW'),
  ('--mechanisms=blt --num_rounds=9 --min_sep=1:5:9999', '--min_sep.*1000'),
  ('--mechanisms=blt --num_rounds=9 --max_participations=2,-1', "--max_participations.*'-1'"),
  ('--mechanisms=blt --num_rounds=8,9 --min_sep=2,3', '--num_rounds and --min_sep'),
  ('--mechanisms=blt --num_rounds=9 --objective=mean', '--objective'),
  (
    '--mechanisms=blt --num_rounds=9 --optimize_for_min_sep=each,each',
    '--optimize_for_min_sep.*twice',
  ),
  ('--mechanisms=blt --num_rounds=9 --output=broken.json', '--output.*folder'),
  ('--mechanisms=blt --num_rounds=9 --output=no/such', '--output.*folder'),
  ('--mechanisms=blt --num_rounds=9 --output=broken.json/a', '--output'),
  ('--mechanisms=banded:9 --num_rounds=9 --min_sep=3', '--mechanisms=banded'),
]


@pytest.mark.parametrize('flags, message', ERRORS)
def test_errors_write_nothing_and_exit_with_2(run, tmp_path, monkeypatch, flags, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'broken.json').write_text('{}')
  if '--output' not in flags:
    flags += ' --output=out'
  status, out, err = run(f'compare {flags}')
  assert (status, out) == (2, '')
  last = err.splitlines()[-1]
  assert last.startswith('fl-dpftrl compare: ')
  assert re.search(message, last), err
  if 'banded:9' not in flags:  # which also says why it is left out
    assert err.count('\n') == 1
  assert os.listdir() == ['broken.json']


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write anywhere')
def test_a_folder_that_may_not_be_written_is_told_before_the_work(run, tmp_path):
  tmp_path.chmod(0o500)
  try:
    status, _, err = run(f'compare --mechanisms=blt --num_rounds=9 --output={tmp_path}')
  finally:
    tmp_path.chmod(0o700)
  assert status == 2
  assert '--output' in err and err.count('\n') == 1


@pytest.mark.slow
def test_what_cannot_be_written_is_told_and_nothing_is_half_written(run, tmp_path):
  (tmp_path / 'comparison.csv').mkdir()
  status, out, err = run(f'compare --mechanisms=identity --num_rounds=8,9 --output={tmp_path}')
  assert (status, out) == (2, '')
  assert '--output' in err and err.count('\n') == 1
  assert os.listdir(tmp_path) == ['comparison.csv']


@pytest.mark.slow
def test_the_example_works(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  status, out, _ = run(compare.EXAMPLE.removeprefix('fl-dpftrl '))
  assert status == 0
  assert sorted(os.listdir('comparison')) == [
    'coefficients.png',
    'comparison.csv',
    'max_loss.png',
    'rms_loss.png',
  ]
  assert 'blt-b400' in out


@pytest.mark.slow
def test_the_figure_of_one_setting_names_that_setting(tmp_path, run, monkeypatch):
  told = []
  drawn = figures.lags
  monkeypatch.setattr(
    figures,
    'lags',
    lambda *args, subtitle, **kwargs: (
      told.append(subtitle) or drawn(*args, subtitle=subtitle, **kwargs)
    ),
  )
  run(
    'compare --mechanisms=blt:1 --num_rounds=40 --min_sep=10,20'
    f' --max_participations=9 --output={tmp_path}'
  )
  assert '40 rounds, min-sep 20, at most 2 participations' in told[0]
