"""fl-dpftrl simulate: logs, reports, scenario files and traces."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import pages

SMALL = '--population=4000 --report_goal=40 --num_rounds=300'
REPLAY = '--strategy=tree_online --noise_multiplier=5 --delta=1e-6'
COUNTS = ('num_rounds', 'num_devices', 'num_participations', 'min_sep', 'max_participations')


@pytest.fixture
def result(result_beside_warnings):
  return result_beside_warnings


@pytest.mark.slow
def test_the_log_passes_replay(result, tmp_path):
  log = tmp_path / 'log.parquet'
  found = result(f'simulate {SMALL} --timer_hours=24 --output={log}')
  replayed = result(f'replay --log={log} {REPLAY}')
  assert [replayed[name] for name in COUNTS] == [found[name] for name in COUNTS]
  timed = found['timer']['in_rounds']
  assert timed['fewest'] <= found['min_sep'] <= timed['fewest'] + 3


@pytest.mark.slow
def test_the_seed_decides_the_bytes_and_the_log_says_the_flags(result, tmp_path):
  logs = [tmp_path / f'{name}.parquet' for name in 'abc']
  for path, seed in zip(logs, (1, 1, 2)):
    flags = f'--timer_rounds=5 --turnover_per_day=0.01 --seed={seed} --output={path}'
    result(f'simulate --population=400 --report_goal=4 --num_rounds=300 {flags}')
  a, b, c = (path.read_bytes() for path in logs)
  assert a == b != c
  flags = json.loads(pq.read_schema(logs[2]).metadata[b'simulated'])
  assert flags['seed'] == 2 and flags['turnover_per_day'] == 0.01


@pytest.mark.slow
def test_explains_min_sep(run, tmp_path):
  page = tmp_path / 'page.html'
  _, said, _ = run(f'simulate {SMALL} --timer_hours=24 --report={page} --seed=3 --window_hours=5,8')
  assert 'A timer of 24 hours was' in said
  html = page.read_text()
  embedded = json.loads(re.search(r'id="simulation">(.*?)</script>', html)[1])
  assert f'min_sep             {embedded["min_sep"]}' in said
  assert {'min_sep', 'max_participations', 'late'} <= pages.check(html, embedded)
  assert html.count('<svg ') == 4
  assert not re.search(r'(src|href)=|https?:', html)
  assert '--timer_hours=24' in html and '--seed=3' in html and '--window_hours=5.0,8.0' in html


def test_a_table_may_say_when_devices_are_there(result, tmp_path):
  traces, log = tmp_path / 'traces.parquet', tmp_path / 'log.parquet'
  start = np.array([f'2020-02-0{day}T02:{i:02}' for day in (1, 2) for i in range(5)], 'M8[s]')
  end = start + np.timedelta64(4, 'h')
  pq.write_table(pa.table({'device': [*range(5)] * 2, 'start': start, 'end': end}), traces)
  result(
    'simulate --population=3000 --report_goal=30 --num_rounds=60 --timer_hours=20'
    f' --availability={traces} --report_minutes=0.1 --output={log}'
  )
  hours = {t.hour for t in pq.read_table(log).column('timestamp').to_pylist()}
  assert hours <= {2, 3, 4, 5, 6}


@pytest.mark.slow
@pytest.mark.parametrize('sampling', ['poisson', 'fixed_size', 'shuffled'])
def test_batches_that_are_drawn_pass_replay(result, tmp_path, sampling):
  log = tmp_path / 'log.parquet'
  scheme = f'--sampling={sampling} --num_examples=6000 --batch_size=50 --num_parts=16'
  found = result(f'simulate {scheme} --num_rounds=200 --output={log}')
  assert found['min_sep'] % 16 == 0
  given = f'--strategy=banded-b16 --noise_multiplier=2 --delta=1e-6 {scheme}'
  replayed = result(f'replay --log={log} {given}')
  claim = replayed['shuffled' if sampling == 'shuffled' else 'amplified']
  planned = result(f'account {given} --num_rounds=200')
  assert claim['holds'] and claim['epsilon'] == planned['epsilon']


FLAGS = (
  '--population=300 --report_goal=10 --num_rounds=30 --timer_rounds=8 --seed=3 --dropout=0.1'
  ' --window_hours=5,8 --turnover_per_day=0.01'
)


def without_time(found):
  return {k: v for k, v in found.items() if k not in ('wall_seconds', 'output', 'report')}


def test_a_scenario_file_gives_the_same_log(result, tmp_path):
  path = tmp_path / 'scenario.json'
  logs = [tmp_path / f'{name}.parquet' for name in 'ab']
  given = result(f'simulate {FLAGS} --output={logs[0]} --output_scenario={path}')
  read = result(f'simulate --scenario={path} --output={logs[1]}')
  assert without_time(given) == without_time(read)
  assert logs[0].read_bytes() == logs[1].read_bytes()


@pytest.mark.slow
def test_a_scenario_file_gives_the_same_plan(result, tmp_path):
  path = tmp_path / 'scenario.json'
  result(f'simulate {FLAGS} --output_scenario={path}')
  plan = '--delta=1e-6 --noise_multiplier=9 --strategies=identity --num_simulations=1'
  lines = [f'plan {flags} {plan} --report_goals=10' for flags in (FLAGS, f'--scenario={path}')]
  assert without_time(result(lines[0])) == without_time(result(lines[1]))


def test_a_flag_takes_the_place_of_the_value_in_the_file(result, tmp_path):
  path, again = tmp_path / 'scenario.json', tmp_path / 'again.json'
  result(f'simulate {FLAGS} --output_scenario={path}')
  before = json.loads(path.read_text())

  def changed(flags):
    result(f'simulate --scenario={path} --output_scenario={again} {flags}')
    return json.loads(again.read_text())

  assert changed('--dropout=0.08 --num_rounds=20') == {**before, 'dropout': 0.08, 'num_rounds': 20}
  assert changed('--timer_hours=2').keys() ^ before.keys() == {'timer_hours', 'timer_rounds'}
  assert before.keys() - changed('--availability=always').keys() == {'window_hours'}
