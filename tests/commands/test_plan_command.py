"""fl-dpftrl plan: fields, files and words."""

import dataclasses
import re
import types

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import plan as command
from fl_dpftrl.mechanisms.files import files

RUN = '--population=1200 --report_goal=10 --num_rounds=80 --timer_hours=2'
STRATEGIES = ['blt:1', 'banded:10', 'tree_full', 'blt-b100']
FAST = f'--strategies={",".join(STRATEGIES)}'
LINE = f'plan {RUN} --delta=1e-6 --noise_multiplier=9 {FAST}'


@pytest.mark.slow
def test_fields_and_files(result, tmp_path):
  file = tmp_path / 'plan.json'
  found = result(f'{LINE} --output={file}')
  assert found['is_guarantee'] is False
  for name in ('num_rounds', 'min_sep', 'max_participations', 'days'):
    low, high = found['range'][name]
    values = [run[name] for run in found['simulations']]
    assert (low, high) == (min(values), max(values))
    assert low <= found['expected'][name] <= high
  assert [run['seed'] for run in found['simulations']] == [0, 1, 2]
  planned, best = found['planned'], found['recommended']
  assert planned['min_sep'] < found['range']['min_sep'][0]
  assert best['noise_multiplier'] == 9.0
  # The ε that is stated is no less than that of any simulation.
  assert best['epsilon_range'][0] <= best['expected_epsilon']
  assert best['epsilon_range'][1] <= best['epsilon']
  others = {a['strategy'] for a in found['alternatives']}
  assert others == {*STRATEGIES} - {best['strategy']}
  # The file, the figures and the first simulation are those of other commands.
  account = result(
    f'account --strategy={file} --noise_multiplier=9 --delta=1e-6'
    f' --num_rounds=80 --min_sep={planned["min_sep"]}'
    f' --max_participations={planned["max_participations"]}'
  )
  for name in ('epsilon', 'rho', 'sensitivity', 'delta', 'adjacency'):
    assert account[name] == best[name]
  assert files.load(file).schema.min_sep == planned['min_sep']
  simulated, first = result(f'simulate {RUN}'), found['simulations'][0]
  for name, field in (('days', 'simulated_days'), ('min_sep',) * 2, ('max_participations',) * 2):
    assert first[name] == simulated[field]


@pytest.mark.slow
def test_text(run):
  line = LINE.replace(FAST, '--strategies=blt-b100,tree_full')
  status, out, err = run(f'{line} --num_simulations=1 --report_goals=20')
  assert (status, err) == (0, '')
  assert out.startswith('Plan: a prediction, not a guarantee\n')
  assert 'no guarantee: replay the log of the run for that. It assumes:' in out
  assert 'report goals, at the same ε' in out
  # 2000 devices are not there.
  status, _, err = run(f'{line} --num_simulations=1 --report_goals=2000')
  assert status == 2 and 'round 0 stalled' in err
  assert run(f'{line} --num_simulations=1 --max_epsilon=0.01')[0] == 3


def test_figures_in_text_promise_no_more_than_the_exact_ones():
  scenario = dpftrl.Scenario(population=200, report_goal=10, timer_rounds=4)
  plan = dpftrl.plan(
    scenario, num_rounds=20, seeds=[0], delta=1e-6, noise_multiplier=9.0, strategies=['identity']
  )
  guarantee = dataclasses.replace(plan.best.guarantee, noise_multiplier=1.23456789)
  best = dataclasses.replace(plan.best, guarantee=guarantee)
  text = command.show(dataclasses.replace(plan, best=best))
  assert re.search('^noise_multiplier +1.23457$', text, re.M)


def test_means_over_simulations_are_rounded_to_the_safe_side():
  means = {'min_sep': 1.23456789, 'max_participations': 1.23456112}
  forecast = types.SimpleNamespace(expected=means, range=dict.fromkeys(means, (1, 2)))
  rows = command._forecast(types.SimpleNamespace(forecast=forecast))
  assert [row['expected'] for row in rows] == [1.23456, 1.23457]
