"""Commands of runs without an end."""

import json

import pytest

from tests import made

NAMED = '--loss_budget --min_sep=4 --max_participations=3'
ACCOUNT = 'account --strategy=identity --noise_multiplier=3 --delta=1e-6'


def test_one_figure_without_a_number_of_rounds(run):
  results = [f'{ACCOUNT} {NAMED} --json', f'{ACCOUNT} --loss_budget=3 --json']
  named, numbered = (json.loads(run(line)[1]) for line in results)
  assert named['epsilon'] == pytest.approx(numbered['epsilon'], rel=1e-12)
  assert named['loss_budget'] == pytest.approx(3.0, rel=2e-8) and named['num_rounds'] is None
  assert named['max_rounds_of_a_device'] == 3
  schema = json.loads(run(f'{ACCOUNT} --min_sep=4 --max_participations=3 --json')[1])
  assert schema['epsilon'] == pytest.approx(named['epsilon'], rel=1e-7)
  assert schema['num_rounds'] is None and schema['sensitivity_kind'] == 'exact'


def test_simulated_lives_end(run):
  line = f'simulate --population=300 --report_goal=10 --num_rounds=40 {NAMED}'
  status, out, _ = run(f'{line} --strategy=identity --availability=always --json')
  result = json.loads(out)
  assert status == 0 and result['timer']['life'] == 3
  assert 0 < result['devices_without_budget'] <= 300
  timers = '--timer_rounds=4 --max_participations=1 --availability=always'
  line = f'simulate --population=300 --report_goal=10 --num_rounds=20 {timers} --json'
  result = json.loads(run(line)[1])
  assert result['devices_without_budget'] == result['num_devices'] == 200


def test_losses_by_horizon_side_by_side(run, tmp_path):
  names = 'identity,mine=blt-b40-endless,banded:2,tree_online'
  line = (
    f'compare --mechanisms={names} {NAMED} --num_rounds=10,40 --output={tmp_path / "out"} --json'
  )
  status, out, err = run(line)
  rows = json.loads(out)['rows']
  schema = [row for row in rows if row['participation'] == 'min_sep']  # Beside those of the budget.
  assert {row['mechanism'] for row in schema} == set(
    names.replace('=blt-b40-endless', '').split(',')
  )
  rows = [row for row in rows if row['participation'] == 'loss_budget']
  assert status == 0 and (tmp_path / 'out' / 'losses.png').stat().st_size > 10_000
  assert [(row['mechanism'], row['num_rounds']) for row in rows] == [
    (name, n) for name in ('identity', 'mine') for n in (10, 40)
  ]
  assert 'banded:2 is left out' in err and 'tree_online is left out' in err
  for row in rows:  # One sensitivity at all horizons, that of the budget.
    assert (row['min_sep'], row['max_participations']) == (4, 3)
  account = f'account --strategy=blt-b40-endless --noise_multiplier=3 --delta=1e-6 {NAMED} --json'
  sensitivity = json.loads(run(account)[1])['sensitivity']
  assert [row['sensitivity'] for row in rows[2:]] == [sensitivity] * 2
  described = json.loads(run(f'describe blt-b40-endless {NAMED} --num_rounds=40 --json')[1])
  assert (
    described['max_loss']
    == rows[3]['max_loss']
    == pytest.approx(sensitivity * rows[3]['max_error'])
  )
  # What the budget of each buys: B², and the most participations ever.
  for row in rows:
    assert row['loss_budget'] == pytest.approx(row['sensitivity'] ** 2)
    assert 3 <= row['most_participations'] <= row['loss_budget']


@pytest.mark.slow
def test_losses_by_horizon(run):
  line = f'optimize --mechanism=blt {NAMED} --horizons=20,100 --num_buffers=1 --json'
  result = json.loads(run(line)[1])
  horizons = [point['num_rounds'] for point in result['range']]
  assert horizons[0] == 20 and horizons[-1] == 100 and len(horizons) == 4
  assert result['ratio_to_best'] == max(p['ratio_to_best'] for p in result['range']) < 1.1


@made.cases(
  'line, message',
  (
    'compare --mechanisms=identity --num_rounds=9 --min_sep=2,3 --loss_budget',
    '--min_sep must be one number with --loss_budget, got 2',
  ),
  (ACCOUNT, '--num_rounds is needed, or --min_sep and --max_participations of a run without an'),
  (f'{ACCOUNT} --loss_budget', '--loss_budget needs --min_sep and --max_participations'),
  (f'{ACCOUNT} {NAMED} --num_rounds=9', '--num_rounds=9 and --loss_budget exclude each other'),
  (
    'compare --mechanisms=identity --loss_budget=5 --num_rounds=10',
    '--loss_budget=5 buys other participations of each mechanism',
  ),
  (f'{ACCOUNT} --loss_budget=0.5', 'squared=0.5 is below the loss 1 of a single round'),
  (f'optimize --mechanism=blt {NAMED}', '--horizons=FIRST,LAST are needed together'),
  (
    'simulate --population=9 --report_goal=1 --num_rounds=2 --min_sep=3',
    '--min_sep=3 needs --loss_budget',
  ),
  (
    f'simulate --population=9 --report_goal=1 --num_rounds=2 {NAMED}',
    '--loss_budget needs --strategy',
  ),
)
def test_flags_that_do_not_go_together(run, line, message):
  status, out, err = run(line)
  assert (status, out) == (2, '') and message in err and len(err) < 300 and err.count('\n') == 1
