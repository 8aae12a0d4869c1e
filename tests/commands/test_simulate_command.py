"""fl-dpftrl simulate: logs, reports, scenario files and traces."""

import json
import re

import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.planning.simulation import availabilities

SMALL = '--population=4000 --report_goal=40 --num_rounds=300'
REPLAY = '--strategy=tree_online --noise_multiplier=5 --delta=1e-6'
COUNTS = ('num_rounds', 'num_devices', 'num_participations', 'min_sep', 'max_participations')


@pytest.fixture
def result(result_beside_warnings):
  return result_beside_warnings


@pytest.mark.slow
def test_the_seed_decides_the_bytes_and_the_log_says_the_flags(result, tmp_path):
  logs = [tmp_path / f'{name}.parquet' for name in 'abc']
  for path, seed in zip(logs, (1, 1, 2)):
    flags = f'--timer_rounds=5 --dropout=0.01 --seed={seed} --output={path}'
    result(f'simulate --population=400 --report_goal=4 --num_rounds=300 {flags}')
  a, b, c = (path.read_bytes() for path in logs)
  assert a == b != c
  flags = json.loads(pq.read_schema(logs[2]).metadata[b'simulated'])
  assert flags['seed'] == 2 and flags['dropout'] == 0.01


@pytest.mark.slow
def test_a_timer_in_hours_is_shown_in_rounds(run):
  _, said, _ = run(f'simulate {SMALL} --timer_hours=24 --seed=3')
  assert re.search(r'timer +24 hours: \d+ to \d+ rounds, .* from round \d+ on', said)
  assert re.search(r'late +\d', said)


FLAGS = '--population=300 --report_goal=10 --num_rounds=30 --timer_rounds=8 --seed=3 --dropout=0.1'


def test_a_scenario_file_may_have_further_properties_of_devices_and_server(result, tmp_path):
  path, again = tmp_path / 'scenario.json', tmp_path / 'again.json'
  plain = result(f'simulate {FLAGS} --output_scenario={path}')
  further = {'turnover_per_day': 0.3, 'report_minutes': 9.0, 'pace_minutes': 0}
  further['window_hours'] = [5.0, 8.0]
  path.write_text(json.dumps({**json.loads(path.read_text()), **further}))
  found = result(f'simulate --scenario={path} --output_scenario={again}')
  scenario = dpftrl.Scenario(
    population=300,
    report_goal=10,
    timer_rounds=8,
    seed=3,
    dropout=0.1,
    availability=availabilities.Nightly(window_hours=(5.0, 8.0)),
    devices={'turnover_per_day': 0.3, 'report_minutes': 9.0},
    rounds={'pace_minutes': 0},
  )
  assert found['simulated_days'] == dpftrl.simulate(scenario, num_rounds=30).days
  assert found['simulated_days'] != plain['simulated_days']
  assert json.loads(again.read_text()).items() >= further.items()


def test_a_flag_takes_the_place_of_the_value_in_the_file(result, tmp_path):
  path, again = tmp_path / 'scenario.json', tmp_path / 'again.json'
  result(f'simulate {FLAGS} --output_scenario={path}')
  before = {**json.loads(path.read_text()), 'window_hours': [5.0, 8.0]}
  path.write_text(json.dumps(before))

  def changed(flags):
    result(f'simulate --scenario={path} --output_scenario={again} {flags}')
    return json.loads(again.read_text())

  assert changed('--dropout=0.08 --num_rounds=20') == {**before, 'dropout': 0.08, 'num_rounds': 20}
  assert changed('--timer_hours=2').keys() ^ before.keys() == {'timer_hours', 'timer_rounds'}
  assert before.keys() - changed('--availability=always').keys() == {'window_hours'}
