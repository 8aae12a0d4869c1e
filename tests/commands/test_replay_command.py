import json
import math
import os
import subprocess
import sys

import pytest

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.logs import description, keys, schema
from tests.commands import lines

ROWS = {
  'rounds': [0, 0, 1, 4, 6, 9],
  'device_ids': ['a', 'c', 'b', 'a', 'b', 'a'],
  'num_rounds': 12,
}
CSV = 'round,device_id\n0,a\n0,c\n1,b\n4,a\n6,b\n9,a\n'


@pytest.fixture(name='log')
def fixture_log(tmp_path):
  path = tmp_path / 'log.parquet'
  schema.write_log(path, **ROWS)
  return path


def call(*flags, cwd=None):
  return lines.run(['replay', *flags], cwd=cwd)


def replayed(log, *flags):
  return call(f'--log={log}', '--strategy=identity', '--noise_multiplier=3', '--delta=1e-6', *flags)


def refused(*flags):
  done = call(*flags)
  assert done.returncode == 2
  assert not done.stdout
  (line,) = done.stderr.splitlines()
  return line


def test_json_is_all_there_is_on_stdout(log):
  done = replayed(log, '--json')
  assert done.returncode == 0
  (warning,) = done.stderr.splitlines()
  assert '7 of 12 rounds have no participants' in warning
  result = json.loads(done.stdout)
  assert result['num_rounds'] == 12
  assert result['num_devices'] == 3
  assert result['num_participations'] == 6
  assert (result['min_sep'], result['max_participations']) == (4, 3)
  for part in ('worst_case', 'observed'):
    assert result[part]['sensitivity'] == pytest.approx(math.sqrt(3))
    assert result[part]['rho'] == pytest.approx(1 / 6)
    assert result[part]['epsilon'] == gaussian.epsilon(3 / math.sqrt(3), 1e-6)
  assert (result['delta'], result['adjacency']) == (1e-6, 'zero_out')
  assert 'declared' not in result


def test_table_for_people(log):
  done = replayed(log, '--declared_min_sep=4', '--delta=1e-9')
  assert done.returncode == 0
  lines = done.stdout.splitlines()
  assert "min-sep b           4  (device 'a', rounds 0 and 4)" in lines
  head = next(line for line in lines if 'worst case' in line)
  assert head.split('  ')[-1] == 'declared'
  values = next(line for line in lines if line.startswith('ε at δ = 1e-09'))
  assert len(values.split()) == 5 + 3
  assert 'VOID' not in done.stdout


def test_a_violated_declaration_is_loud(log):
  done = replayed(log, '--declared_min_sep=5', '--declared_max_participations=2', '--json')
  assert done.returncode == 4
  assert json.loads(done.stdout)['declared']['holds'] is False
  assert 'THE DECLARED SCHEMA DOES NOT HOLD' in done.stderr
  assert 'declared: VOID' in replayed(log, '--declared_min_sep=5').stdout


def test_a_void_log_is_loud(tmp_path):
  path = tmp_path / 'log.parquet'
  schema.write_log(path, **ROWS, metadata={keys.VOID_KEY: 'the noise seed was given'})
  done = replayed(path, '--json')
  assert done.returncode == 4
  assert json.loads(done.stdout)['void_reason'] == 'the noise seed was given'
  assert 'THE GUARANTEE IS VOID: the noise seed was given' in done.stderr


def test_void_figures_of_devices_are_marked_and_misleading_arguments_told(log, tmp_path):
  schema.write_log(tmp_path / 'void.parquet', **ROWS, metadata={keys.VOID_KEY: 'a seed'})
  assert '\nVOID: share of participating devices' in replayed(tmp_path / 'void.parquet').stdout
  run = {'log': str(log), 'strategy': 'identity', 'noise_multiplier': 3}
  (tmp_path / 'runs.json').write_text(json.dumps({'runs': [run, run]}))
  done = call(f'--runs={tmp_path}/runs.json', '--delta=0.4')
  assert done.returncode == 0
  assert '--delta=0.4 is not below 1 / 3' in done.stderr
  assert 'the log of run 2 is that of run 1, byte for byte' in done.stderr


def test_num_rounds_is_asked_for_where_the_log_does_not_say(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text(CSV)
  guessed = replayed(path, '--json')
  assert json.loads(guessed.stdout)['num_rounds'] == 10
  assert 'last round plus one, 10' in guessed.stderr
  told = replayed(path, '--json', '--num_rounds=12')
  assert json.loads(told.stdout)['num_rounds'] == 12
  assert 'plus one' not in told.stderr


def test_shards_are_one_log(tmp_path):
  for name, start in (('one', 0), ('two', 3)):
    schema.write_log(
      tmp_path / f'{name}.parquet',
      rounds=ROWS['rounds'][start : start + 3],
      device_ids=ROWS['device_ids'][start : start + 3],
      num_rounds=12,
    )
  whole = [
    json.loads(done.stdout)
    for done in (
      replayed(tmp_path, '--json'),
      replayed(tmp_path / '*.parquet', '--json'),
      replayed(tmp_path / 'one.parquet', f'--log={tmp_path / "two.parquet"}', '--json'),
    )
  ]
  assert whole[0] == whole[1] == whole[2]
  assert whole[0]['min_sep'] == 4


def test_report_repeats_the_figures(log, tmp_path):
  path = tmp_path / 'privacy.html'
  done = replayed(log, f'--report={path}', '--json')
  result = json.loads(done.stdout)
  text = path.read_text()
  epsilon = result['worst_case']['epsilon']
  assert f'value="{epsilon!r}" data-field="worst_case.epsilon"' in text
  assert f'fl-dpftrl replay --log={log} --strategy=identity' in text


def test_the_report_says_what_flags_or_the_log_state(tmp_path):
  path, page = tmp_path / 'log.parquet', tmp_path / 'privacy.html'
  words = description.Description(title='From the log', date='2026-01-31', unit='a phone')
  schema.write_log(path, **ROWS, metadata=words.metadata())
  replayed(path, f'--report={page}')
  once = page.read_bytes()
  for text in ('<h1>From the log</h1>', '2026-01-31', 'a phone'):
    assert text in once.decode()
  replayed(path, f'--report={page}')
  assert page.read_bytes() == once  # No clock.
  public = tmp_path / 'public.html'
  flags = ('--title=From a flag', '--date=2026-02-01', '--clip_norm=0.3')
  replayed(path, *flags, f'--report={page}', f'--public_report={public}')
  assert 'a phone' in page.read_text() and 'a phone' not in public.read_text()
  for text in ('<h1>From a flag</h1>', '2026-02-01', 'Clip norm 0.3'):
    assert text in page.read_text() and text in public.read_text()


def test_a_clip_norm_that_is_not_the_logs_is_refused(tmp_path):
  path = tmp_path / 'log.parquet'
  schema.write_log(
    path, **ROWS, metadata={keys.NOISE_MULTIPLIER_KEY: '3.0', keys.CLIP_NORM_KEY: '0.5'}
  )
  line = refused(
    f'--log={path}',
    '--strategy=identity',
    '--delta=1e-6',
    '--clip_norm=0.7',
    f'--report={tmp_path / "p.html"}',
  )
  assert '--clip_norm=0.7 differs from 0.5' in line


@pytest.mark.parametrize(
  'change, message',
  [
    ('--date=today', "--date='today' must be a date as YYYY-MM-DD"),
    ('--date=2026-02-30', 'must be a date'),
    ('--title=', 'must have 1 to 200 characters'),
    ('--title=a\x85b', 'one line of printable characters'),
    ('--unit=a phone', '--unit=a phone is for a report'),
    ('--clip_norm=0', '--clip_norm=0.0 must be positive'),
    ('--log=nowhere.parquet', 'nowhere.parquet: no such file'),
    ('--strategy=unheard-of', 'unheard-of'),
    ('--delta=0', 'delta'),
    ('--noise_multiplier=-1', 'noise_multiplier'),
    ('--num_rounds=7', 'its num_rounds is 12, not 7'),
    ('--adjacency=add_or_remove', 'add_or_remove is refused'),
    ('--group_size=0', 'group_size'),
    ('--declared_min_sep=0', 'min_sep'),
    ('--report=nowhere/privacy.html', 'nowhere/privacy.html'),
  ],
)
def test_refuses_in_one_line(log, change, message):
  line = refused(
    f'--log={log}', '--strategy=identity', '--noise_multiplier=3', '--delta=1e-6', change
  )
  assert message in line


def test_refuses_a_device_twice_in_a_round(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text(CSV + '4,a\n')
  line = refused(
    f'--log={path}',
    '--strategy=identity',
    '--noise_multiplier=3',
    '--delta=1e-6',
    f'--report={tmp_path / "privacy.html"}',
  )
  assert f"{path}, row 7: device 'a' is twice in round 4" in line
  assert not (tmp_path / 'privacy.html').exists()


def test_a_missing_flag_is_named():
  done = call('--strategy=identity', '--delta=1e-6')
  assert done.returncode == 2
  assert '--log' in done.stderr


@pytest.mark.slow
def test_loads_no_framework():
  code = (
    'import sys; from fl_dpftrl.commands import replay;'
    " bad = {'tensorflow', 'jax', 'tensorflow_federated'} & set(sys.modules);"
    ' sys.exit(str(bad) if bad else 0)'
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 0, done.stderr


def test_runs_that_were_not_straight(log):
  straight = json.loads(replayed(log, '--json').stdout)
  done = replayed(log, '--json', '--restart=4', '--noise_multiplier_from=6:1.5', '--report_goal=2')
  assert done.returncode == 0
  result = json.loads(done.stdout)
  assert result['restarts'] == [4]
  assert result['changes'] == [[6, 1.5]]
  assert result['rounds_short_of_report_goal'] == 11
  # Device a has rounds 0 and 4 at 3, 9 at 1.5: ρ = (1 + 1 + 4) / 2 / 9.
  assert result['observed']['rho'] == pytest.approx(1 / 3)
  assert result['worst_case']['sensitivity_kind'] == 'upper_bound'
  assert result['worst_case']['rho'] > straight['worst_case']['rho']


def test_several_runs(log, tmp_path):
  path = tmp_path / 'runs.json'
  entry = {'log': log.name, 'strategy': 'identity', 'noise_multiplier': 3}
  path.write_text(json.dumps({'runs': [entry, entry]}))
  report = tmp_path / 'public.html'
  done = call(f'--runs={path}', '--delta=1e-6', '--json', f'--public_report={report}')
  assert done.returncode == 0
  result = json.loads(done.stdout)
  assert result['worst_case']['rho'] == pytest.approx(1 / 3)
  assert len(result['runs']) == 2
  assert 'run 2' in call(f'--runs={path}', '--delta=1e-6').stdout
  assert 'per_device' not in report.read_text()


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--restart=0'], 'restarts must be at ascending rounds from 1 to 11'),
    (['--restart=12'], 'got 12'),
    (['--restart=x'], "--restart: invalid int value: 'x'"),
    (['--noise_multiplier_from=3'], "invalid ROUND:VALUE value: '3'"),
    (['--noise_multiplier_from=3:-1'], 'noise_multiplier'),
    (['--report_goal=0'], 'report_goal must be at least 1'),
    (['--engine=hand'], 'embedded'),
    (['--runs=r.json'], '--log does not go with --runs'),
    (['--public_report=no/p.html'], '--public_report=no/p.html: its folder'),
  ],
)
def test_refuses_in_a_line(log, flags, message):
  line = refused(
    f'--log={log}', '--strategy=identity', '--noise_multiplier=3', '--delta=1e-6', *flags
  )
  assert message in line


def test_text_tells_how_devices_fared(log):
  out = replayed(log).stdout
  assert 'have ε ≤' in out and 'for the operator' in out
