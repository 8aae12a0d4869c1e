"""Scenario files: written by simulate, read by simulate and plan, refused in one line."""

import json

import pytest

FLAGS = (
  '--population=300 --report_goal=10 --num_rounds=30 --timer_rounds=8 --seed=3 --dropout=0.1'
  ' --window_hours=5,8 --turnover_per_day=0.01'
)
PLAN = '--delta=1e-6 --noise_multiplier=9 --strategies=identity --num_simulations=1'


def without_time(found):
  return {k: v for k, v in found.items() if k not in ('wall_seconds', 'output', 'report')}


@pytest.fixture
def path(result, tmp_path):
  found = tmp_path / 'scenario.json'
  result(f'simulate {FLAGS} --output_scenario={found}')
  return found


def test_the_file_gives_the_same_log(result, path, tmp_path):
  logs = [tmp_path / f'{name}.parquet' for name in 'ab']
  given = result(f'simulate {FLAGS} --output={logs[0]}')
  read = result(f'simulate --scenario={path} --output={logs[1]}')
  assert without_time(given) == without_time(read)
  assert logs[0].read_bytes() == logs[1].read_bytes()


@pytest.mark.slow
def test_the_file_gives_the_same_plan(result, path):
  goals = '--report_goals=10 --num_workers=1'
  given = result(f'plan {FLAGS} {PLAN} {goals}')
  assert without_time(given) == without_time(result(f'plan --scenario={path} {PLAN} {goals}'))


def test_a_flag_takes_the_place_of_the_value_in_the_file(result, path, tmp_path):
  again = tmp_path / 'again.json'
  line = f'simulate --scenario={path} --output_scenario={again}'
  before = json.loads(path.read_text())
  result(f'{line} --dropout=0.08 --num_rounds=20')
  assert json.loads(again.read_text()) == {**before, 'dropout': 0.08, 'num_rounds': 20}
  result(f'{line} --timer_hours=2')
  assert json.loads(again.read_text()).keys() ^ before.keys() == {'timer_hours', 'timer_rounds'}
  result(f'{line} --availability=always')
  assert before.keys() - json.loads(again.read_text()).keys() == {'window_hours'}


def test_what_a_file_lacks_is_named(run, path):
  content = json.loads(path.read_text())
  del content['report_goal']
  path.write_text(json.dumps(content))
  for line in (f'simulate --scenario={path}', f'plan --scenario={path} {PLAN}'):
    status, out, err = run(line)
    assert (status, out) == (2, '') and '--report_goal is needed, or --scenario' in err


@pytest.mark.parametrize(
  'change, words',
  [
    ({'format': 'other'}, 'no scenario file'),
    ({'version': 2}, 'version must be 1, got 2'),
    ({'populaton': 3}, "'populaton' is no flag of a scenario"),
    ({'population': True}, 'population must be a whole number, got True'),
    ({'population': 0}, '--population must be at least 1'),
    ({'dropout': '0.1'}, 'dropout must be a number'),
    ({'window_hours': [1, 'x']}, 'window_hours must be a list of numbers'),
    ({'availability': 3}, 'availability must be text'),
    ({'availability': 'absent', 'window_hours': None}, 'window_hours must be a list'),
    ({'timer_hours': 3.0}, 'timer_hours and timer_rounds exclude each other'),
  ],
)
def test_wrong_files_are_refused_in_one_line(run, path, tmp_path, change, words):
  path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
  log = tmp_path / 'log.parquet'
  status, out, err = run(f'simulate --scenario={path} --output={log}')
  assert (status, out) == (2, '') and err.count('\n') == 1 and words in err
  assert not log.exists()


def test_a_file_of_another_kind_is_refused_in_one_line(run, tmp_path):
  path = tmp_path / 'scenario.json'
  for content in ('[1]', '{"format"', '{"format": "fl_dpftrl scenario", "seed": NaN}'):
    path.write_text(content)
    status, out, err = run(f'simulate --scenario={path}')
    assert (status, out) == (2, '') and err.count('\n') == 1 and f'--scenario={path}' in err
  status, _, err = run(f'simulate --scenario={tmp_path / "absent.json"}')
  assert status == 2 and 'absent.json: No such file' in err


def test_batches_have_no_scenario(run, path):
  sampled = '--sampling=shuffled --num_examples=50 --batch_size=10 --num_rounds=5'
  status, _, err = run(f'simulate --scenario={path} {sampled}')
  assert status == 2 and '--scenario=' in err and 'conflicts' in err
