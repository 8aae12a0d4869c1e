"""Commands of runs without an end."""

import json

import pytest

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


@pytest.mark.slow
def test_losses_by_horizon(run):
  line = f'optimize --mechanism=blt {NAMED} --horizons=20,100 --num_buffers=1 --json'
  result = json.loads(run(line)[1])
  horizons = [point['num_rounds'] for point in result['range']]
  assert horizons[0] == 20 and horizons[-1] == 100 and len(horizons) == 4
  assert result['ratio_to_best'] == max(p['ratio_to_best'] for p in result['range']) < 1.1


@pytest.mark.parametrize(
  'line, message',
  [
    (ACCOUNT, '--num_rounds is needed, or --min_sep and --max_participations of a run without an'),
    (f'{ACCOUNT} --loss_budget', '--loss_budget needs --min_sep and --max_participations'),
    (f'{ACCOUNT} {NAMED} --num_rounds=9', '--num_rounds=9 and --loss_budget exclude each other'),
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
  ],
)
def test_flags_that_do_not_go_together(run, line, message):
  status, out, err = run(line)
  assert (status, out) == (2, '') and message in err and len(err) < 300 and err.count('\n') == 1
