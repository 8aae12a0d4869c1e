"""The simulator from the outside."""

import json
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from fl_dpftrl.commands import main
from tests import pages

FIELDS = {
  'num_rounds',
  'num_devices',
  'num_participations',
  'min_sep',
  'max_participations',
  'simulated_days',
  'wall_seconds',
  'output',
}
SMALL = ['--population=4000', '--report_goal=40', '--num_rounds=300']


def run(capsys, *argv):
  main.main([*argv, '--json'])
  return json.loads(capsys.readouterr().out)


def refused(capsys, *argv):
  with pytest.raises(SystemExit) as raised:
    main.main(list(argv))
  assert raised.value.code == 2
  out, err = capsys.readouterr()
  assert not out and err.count('\n') == 1
  return err


@pytest.mark.slow
def test_the_log_passes_replay(capsys, tmp_path):
  log = tmp_path / 'log.parquet'
  result = run(capsys, 'simulate', *SMALL, '--timer_hours=24', f'--output={log}')
  assert result.keys() >= FIELDS
  replayed = run(
    capsys, 'replay', f'--log={log}', '--strategy=blt-b400', '--noise_multiplier=5', '--delta=1e-6'
  )
  for field in ('num_rounds', 'num_devices', 'num_participations', 'min_sep', 'max_participations'):
    assert replayed[field] == result[field]
  timed = result['timer']['in_rounds']
  assert timed['fewest'] <= result['min_sep'] <= timed['fewest'] + 3


@pytest.mark.slow
def test_a_timer_in_rounds_is_what_replay_finds(capsys, tmp_path):
  log = tmp_path / 'log.parquet'
  prompt = ['--availability=always', '--check_ins_per_hour=60']
  run(capsys, 'simulate', *SMALL, '--timer_rounds=60', *prompt, f'--output={log}')
  replayed = run(
    capsys,
    'replay',
    f'--log={log}',
    '--strategy=tree_online',
    '--noise_multiplier=5',
    '--delta=1e-6',
    '--declared_min_sep=60',
  )
  assert replayed['min_sep'] == 60
  assert replayed['declared']['holds']


@pytest.mark.slow
def test_the_seed_decides_the_bytes(capsys, tmp_path):
  logs = {}
  for name, seed in (('a', 1), ('b', 1), ('c', 2)):
    path = tmp_path / f'{name}.parquet'
    run(
      capsys,
      'simulate',
      *SMALL,
      '--timer_rounds=5',
      f'--seed={seed}',
      '--turnover_per_day=0.01',
      f'--output={path}',
    )
    logs[name] = path.read_bytes()
  assert logs['a'] == logs['b'] != logs['c']
  said = pq.read_schema(tmp_path / 'c.parquet').metadata
  flags = json.loads(said[b'simulated'])
  assert flags['seed'] == 2 and flags['turnover_per_day'] == 0.01


@pytest.mark.slow
def test_explains_min_sep(capsys, tmp_path):
  page = tmp_path / 'page.html'
  main.main(['simulate', *SMALL, '--timer_hours=24', f'--report={page}', '--seed=3'])
  said = capsys.readouterr().out
  assert 'A timer of 24 hours was' in said
  html = page.read_text()
  embedded = re.search(r'id="simulation">(.*?)</script>', html).group(1)
  assert f'min_sep             {json.loads(embedded)["min_sep"]}' in said
  assert {'min_sep', 'max_participations', 'late'} <= pages.check(html, json.loads(embedded))
  assert html.count('<svg ') == 4
  assert not re.search(r'(src|href)=|https?:', html)
  assert '--timer_hours=24' in html and '--seed=3' in html


def test_one_row_of_a_table_for_each_of_the_wrong(capsys, tmp_path):
  wrong = {
    '--population=0': 'population',
    '--report_goal=0': 'report_goal',
    '--num_rounds=0': 'num_rounds',
    '--timer_rounds=0': 'timer_rounds',
    '--timer_hours=-1': 'timer_hours',
    '--seed=-1': 'seed',
    '--dropout=1': 'dropout',
    '--clients_per_round=3': 'clients_per_round',
    '--availability=missing.json': 'missing.json',
    '--window_hours=9,3': 'window_hours',
    '--time_zones=a': 'time_zones',
    f'--output={tmp_path}/no/log.parquet': 'folder does not exist',
    f'--output={tmp_path}/log.csv': 'must end in .parquet',
    f'--report={tmp_path}/no/page.html': 'folder does not exist',
  }
  for flag, words in wrong.items():
    assert words in refused(capsys, 'simulate', *SMALL, flag), flag
  both = ['--availability=always', '--daytime=0.1']
  assert '--daytime=0.1 is for' in refused(capsys, 'simulate', *SMALL, *both)
  assert not list(tmp_path.iterdir())


def test_a_stall_is_reported_and_leaves_nothing(capsys, tmp_path):
  err = refused(
    capsys,
    'simulate',
    '--population=100',
    '--report_goal=30',
    '--num_rounds=10',
    '--timer_rounds=5',
    f'--output={tmp_path}/log.parquet',
  )
  assert 'round 3 stalled' in err and 'timer_rounds of at most 3' in err
  assert not list(tmp_path.iterdir())


def test_traces_may_say_when_devices_are_there(capsys, tmp_path):
  traces = tmp_path / 'traces.json'
  entries = {}
  for i in range(5):
    messages = '\n'.join(
      [
        f'2020-02-0{day} {hour:02}:{i:02}:00\t{state}'
        for day in (1, 2)
        for hour, state in (
          (1, 'wifi'),
          (1, 'battery_charged_on'),
          (2, 'screen_lock'),
          (6, 'battery_charged_off'),
        )
      ]
    )
    entries[str(i)] = {'messages': messages}
  traces.write_text(json.dumps(entries))
  log = tmp_path / 'log.parquet'
  run(
    capsys,
    'simulate',
    '--population=3000',
    '--report_goal=30',
    '--num_rounds=60',
    f'--availability={traces}',
    '--timer_hours=20',
    '--report_minutes=0.1',
    f'--output={log}',
  )
  hours = {t.hour for t in pq.read_table(log).column('timestamp').to_pylist()}
  assert hours <= {1, 2, 3, 4, 5, 6}


@pytest.mark.slow
@pytest.mark.parametrize('sampling', ['poisson', 'fixed_size', 'shuffled'])
def test_batches_that_are_drawn_pass_replay(capsys, tmp_path, sampling):
  log = tmp_path / 'log.parquet'
  scheme = [f'--sampling={sampling}', '--num_examples=6000', '--batch_size=50', '--num_parts=8']
  result = run(capsys, 'simulate', *scheme, '--num_rounds=200', f'--output={log}')
  assert result.keys() >= FIELDS and result['min_sep'] % 8 == 0
  strategy = tmp_path / 'banded.json'
  run(
    capsys,
    'optimize',
    '--mechanism=banded_toeplitz',
    '--num_bands=8',
    '--num_rounds=200',
    '--min_sep=8',
    f'--output={strategy}',
  )
  given = [f'--strategy={strategy}', '--noise_multiplier=2', '--delta=1e-6']
  replayed = run(capsys, 'replay', f'--log={log}', *given, *scheme)
  claim = replayed['shuffled' if sampling == 'shuffled' else 'amplified']
  planned = run(capsys, 'account', *given, '--num_rounds=200', *scheme)
  assert claim['holds'] and claim['epsilon'] == planned['epsilon']


def test_devices_and_batches_do_not_mix(capsys):
  scheme = ['--sampling=poisson', '--num_examples=60', '--batch_size=5']
  rounds = '--num_rounds=3'
  for flag in ('--population=5', '--timer_rounds=2', '--report=page.html'):
    err = refused(capsys, 'simulate', *scheme, rounds, flag)
    assert f'{flag} is for devices' in err
  assert '--population is needed' in refused(capsys, 'simulate', rounds)
  err = refused(capsys, 'simulate', *SMALL, '--num_parts=3')
  assert '--num_parts=3 needs --sampling' in err


@pytest.mark.slow
def test_help_has_an_example_that_runs():
  shown = subprocess.run(
    [sys.executable, '-m', 'fl_dpftrl.commands.main', 'simulate', '--help'],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  assert '--availability' in shown and 'example: fl-dpftrl simulate' in shown
