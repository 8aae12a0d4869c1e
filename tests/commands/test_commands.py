"""The program, and its commands on one strategy: optimize, describe, account and calibrate."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import account, describe, dispatch, flags, optimize, output
from fl_dpftrl.mechanisms.files import files
from tests import made

FIGURES = ['sensitivity', 'sensitivity_kind', 'rms_error', 'max_error', 'rms_loss', 'max_loss']
SCHEMA = '--num_rounds=24 --min_sep=6 --max_participations=3'


def figures(found):
  return {name: found[name] for name in FIGURES}


@made.cases(
  'mechanism, options, copies, family',
  ('tree_full', '', 5, 'tree_full'),
  ('multi_epoch', '', 0, 'dense'),
  ('banded', '--num_bands=3 --objective=rms', 2, 'banded'),
  ('banded_toeplitz', '', 5, 'banded_toeplitz'),
  ('banded_sqrt', '', 23, 'banded_toeplitz'),
  ('banded_inverse_sqrt', '--num_bands=4 --objective=rms', 0, 'banded_inverse'),
  ('lambda_cgd', '', 0, 'lambda_cgd'),
  ('blt', '--num_buffers=2 --objective=rms', 2, 'blt'),
)
def test_optimize(tmp_path, result, mechanism, options, copies, family):
  path = tmp_path / 'found.json'
  found = result(f'optimize --mechanism={mechanism} {SCHEMA} {options} --output={path}')
  assert ('optimality_gap' in found) == (mechanism in ('dense', 'multi_epoch'))
  assert found['objective'] == ('rms' if 'rms' in options else 'max')
  assert found['memory_copies'] == copies
  file = files.load(path)
  assert file.strategy.family == family
  assert file.schema == dpftrl.MinSep(num_rounds=24, min_sep=6, max_participations=3)
  assert figures(found) == file.figures == figures(result(f'describe {path}'))


@pytest.mark.parametrize('mechanism', ['blt', 'banded_toeplitz'])
def test_optimize_for_secret_bins(tmp_path, result, mechanism):
  """It needs less noise than the strategy that was found without bins, at the same ε."""
  line = f'optimize --mechanism={mechanism} --num_rounds=16 --objective=rms'
  bins, target = '--num_bins=4', '--epsilon=1 --delta=1e-6'
  found = result(f'{line} {bins} {target} --output={tmp_path / "bins.json"}')
  plain = result(f'{line} --min_sep=4 --output={tmp_path / "plain.json"}')
  own, other = (
    result(
      f'calibrate --strategy={tmp_path / name} --num_rounds=16 {target} --sampling=bins {bins}'
    )
    for name in ('bins.json', 'plain.json')
  )
  assert own['noise_multiplier'] == pytest.approx(found['noise_multiplier'], rel=1e-3)
  assert found['epsilon'] <= 1.0 and found['num_bins'] == 4
  noise = [a['noise_multiplier'] * b['rms_error'] for a, b in ((own, found), (other, plain))]
  assert noise[0] < noise[1] * 1.0001


def test_secret_bins_from_the_account_to_the_replay(tmp_path, run, result):
  """A log of other bins is refused."""
  noise = '--strategy=tree_online --noise_multiplier=4 --delta=1e-5 --sampling=bins'
  bins, log = f'{noise} --num_bins=6', tmp_path / 'log.parquet'
  result(
    'simulate --sampling=bins --num_bins=6 --population=600 --num_rounds=48 --seed=1'
    f' --output={log}'
  )
  stated = result(f'replay --log={log} {bins}')['amplified']
  assert stated['holds'] and stated['num_bins'] == 6
  assert stated['epsilon'] == result(f'account --num_rounds=48 {bins}')['epsilon']
  status, _, err = run(f'replay --log={log} {noise} --num_bins=5')
  assert status == 4 and 'contradicts --sampling=bins' in err


def test_the_workload_is_stored_and_shown(tmp_path, run, result):
  path = tmp_path / 'mine.json'
  fields = {
    'workload': 'momentum',
    'momentum': 0.9,
    'warmup_fraction': 0.25,
    'cooldown_fraction': 0.5,
  }
  given = ' '.join(f'--{name}={value}' for name, value in fields.items())
  line = f'optimize --mechanism=banded_sqrt {SCHEMA}'
  optimised = result(f'{line} {given} --output={path}')
  own = result(f'describe {path}')
  assert fields.items() <= optimised.items() and fields.items() <= own.items()
  assert figures(own) == figures(optimised) == figures(result(f'describe {path} {given}'))
  shown = run(f'describe {path}')[1].splitlines()
  assert all([name, str(value)] in map(str.split, shown) for name, value in fields.items())
  prefix = result(f'describe {path} --workload=prefix')
  assert prefix['workload'] == 'prefix' and prefix['rms_error'] != own['rms_error']
  assert prefix['sensitivity'] == own['sensitivity']
  assert result(f'{line} --cooldown_fraction=0.5')['cooldown_fraction'] == 0.5


def test_optimize_over_a_range_of_min_seps(tmp_path, result, run):
  path = tmp_path / 'found.json'
  line = 'optimize --mechanism=blt --num_buffers=2 --num_rounds=24 --min_sep_range=3,6'
  found = result(f'{line} --objective=rms --output={path}')
  assert (found['min_sep'], found['min_sep_range']) == (3, [3, 6])
  assert [p['min_sep'] for p in found['range']] == [3, 4, 5, 6]
  assert [p['max_participations'] for p in found['range']] == [8, 6, 5, 4]
  assert found['range'][0]['rms_loss'] == found['rms_loss']
  assert files.load(path).schema.min_sep == 3
  for point in found['range']:
    described = result(f'describe {path} --num_rounds=24 --min_sep={point["min_sep"]}')
    assert described.items() >= point.items()
  table, losses = run(line)[1].split('\n\n')
  assert re.search('min_sep_range +3 to 6', table)
  assert [line.split()[0] for line in losses.splitlines()] == ['min_sep', '3', '4', '5', '6']


def test_optimize_shows_progress_of_long_searches(run, monkeypatch):
  monkeypatch.setattr(output, 'SECONDS', 0.0)
  status, out, err = run('optimize --mechanism=blt --num_rounds=24 --json')
  found = json.loads(out)
  assert (status, found['output'], found['max_participations']) == (0, None, 24)
  assert all(line.startswith('optimize: ') for line in err.splitlines())
  assert 'loss' in err


def test_account(result):
  line = (
    'account --strategy=blt-b400 --noise_multiplier=7.379 --delta=1e-10'
    ' --num_rounds=1280 --min_sep=300 --max_participations=4'
  )
  one = result(line)
  assert one['epsilon'] == pytest.approx(3.46, abs=0.005)
  assert one['mu'] == 1 / one['effective_noise_multiplier']
  assert any('at most 4 of 1280' in sentence for sentence in one['assumptions'])
  found = result(f'{line} --delta=1e-8 --adjacency=replace_one --group_size=2')
  assert found['sensitivity'] == pytest.approx(4 * one['sensitivity'])
  assert found['sensitivity_kind'] == 'upper_bound'
  assert (found['adjacency'], found['group_size']) == ('replace_one', 2)
  assert [p['delta'] for p in found['curve']] == [1e-10, 1e-8] and 'curve' not in one
  assert found['curve'][0]['epsilon'] == found['epsilon'] > found['curve'][1]['epsilon']
  tree = '--strategy=tree_online --num_rounds=16 --min_sep=3 --max_participations=5'
  at_least, exactly = (
    result(f'account {tree} --noise_multiplier=9 --delta=1e-6 --separation={kind}')
    for kind in ('min', 'fixed')
  )
  assert (at_least['separation'], exactly['separation']) == ('min', 'fixed')
  assert exactly['epsilon'] < at_least['epsilon']


@pytest.mark.parametrize('target', ['epsilon', 'rho'])
def test_calibrate_is_account_with_a_target(result, run, target):
  line = f'--strategy=blt-b100 --delta=1e-6 --num_rounds=500 --min_sep=100 --{target}=1.5'
  found = result(f'calibrate {line}')
  assert found == result(f'account {line}')
  assert 1.5 * (1 - 1e-5) <= found[target] <= 1.5 * (1 + 1e-12)
  noise = f'--noise_multiplier={found["noise_multiplier"]!r}'
  assert result(f'account {line.rpartition(" ")[0]} {noise}') == found
  status, out, err = run(f'calibrate {line} --max_epsilon=1')
  assert status == 3 and out and 'is above --max_epsilon=1' in err
  nothing = argparse.Namespace(max_epsilon=1.0)
  assert flags.above_budget(nothing, None) == (3, 'no ε is above --max_epsilon=1')


@pytest.mark.parametrize(
  'command', [account, describe, pytest.param(optimize, marks=pytest.mark.slow)]
)
def test_examples_work(run, command, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  status, out, err = run(command.EXAMPLE.removeprefix('fl-dpftrl '))
  assert (status, err) == (0, '')
  rows = [row.split() for row in out.split('\n\nassumptions\n')[0].splitlines()]
  assert all(len(row) == 2 for row in rows) and 'sensitivity' in dict(rows)
  assert os.listdir() == (['blt.json'] if command is optimize else [])


def test_shown_figures_promise_no_more_than_the_exact_ones(run, result):
  line = 'account --strategy=blt-b400 --noise_multiplier=7.379 --delta=1e-10 --num_rounds=1280'
  _, out, _ = run(line)
  table, assumptions = out.split('\n\nassumptions\n')
  shown = dict(row.split() for row in table.splitlines())
  assert 'that of a round is used once' in assumptions
  exact = result(line)
  for name in ('sensitivity', 'rho', 'epsilon'):
    assert exact[name] <= float(shown[name]) <= exact[name] * (1 + 1e-5)


def test_tuning_has_an_epsilon_before_anything_is_run(run, result):
  line = 'account --strategy=identity --noise_multiplier=1 --delta=1e-6 --num_rounds=1'
  tuned = result(f'{line} --tuning=geometric:10')['tuned']
  assert 6.882 < tuned['epsilon'] < 6.917 and tuned['most'] == 60
  status, out, err = run(f'{line} --tuning=geometric:10 --max_epsilon=5')
  assert status == 3 and tuned['is'] in out and '--max_epsilon=5' in err
  status, out, err = run(
    f'{line} --tuning=geometric:10 --sampling=bins --num_bins=1'.replace('rounds=1', 'rounds=2')
  )
  assert status == 2 and 'drawn in secret are not covered' in err


@pytest.mark.parametrize('name', dispatch.COMMANDS)
def test_help_carries_an_example(run, name):
  status, out, err = run(f'{name} --help')
  assert (status, err) == (0, '')
  assert f'fl-dpftrl {name} ' in ' '.join(out.split())
  assert '--json' in out


def test_help_lists_the_commands(run):
  status, out, _ = run('--help')
  assert status == 0 and run('-h')[1] == out
  for name, words in dispatch.COMMANDS.items():
    assert re.search(rf'\n  {name} +{re.escape(words)}\n', out)
    assert f'\nexample: fl-dpftrl {name} ' in run(f'{name} --help')[1] or name == 'calibrate'
  assert re.fullmatch(r'fl-dpftrl \d+\.\d+\.\d+\n', run('--version')[1])


@pytest.mark.slow
def test_readers_may_stop_early():
  line = f'{shlex.quote(sys.executable)} -m fl_dpftrl.commands.main --help'
  done = subprocess.run(f'{line} | true', shell=True, capture_output=True, text=True, check=True)
  assert done.stderr == ''
