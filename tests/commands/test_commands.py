"""The command line: fields, figures, one-line errors, and nothing half-done."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from fl_dpftrl import tables
from fl_dpftrl.commands import account, describe, dispatch, optimize, output
from fl_dpftrl.optimization import registry
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files

FIGURES = ['sensitivity', 'sensitivity_kind', 'rms_error', 'max_error', 'rms_loss', 'max_loss']
SCHEMA = '--num_rounds=24 --min_sep=6 --max_participations=3'
GUARANTEE = [
  'sensitivity',
  'sensitivity_kind',
  'effective_noise_multiplier',
  'rho',
  'mu',
  'epsilon',
  'delta',
  'adjacency',
]


@pytest.mark.parametrize(
  'mechanism, flags, copies',
  [
    ('identity', '', 0),
    ('tree_online', '', 5),
    ('tree_full', '', 5),
    ('dense', '', 0),
    ('multi_epoch', '', 0),
    ('banded', '', 5),
    ('banded', '--num_bands=3', 2),
    ('banded_toeplitz', '', 5),
    ('banded_toeplitz', '--num_bands=8', 7),
    ('banded_sqrt', '', 23),
    ('banded_inverse', '', 0),
    ('banded_inverse_sqrt', '--num_bands=4', 0),
    ('lambda_cgd', '', 0),
    ('blt', '--num_buffers=2', 2),
    ('blt', '', None),
  ],
)
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_optimize(tmp_path, result, mechanism, flags, copies, objective):
  path = tmp_path / 'found.json'
  gap = ['optimality_gap'] * (mechanism in ('dense', 'multi_epoch'))
  found = result(
    f'optimize --mechanism={mechanism} {SCHEMA} {flags} --objective={objective} --output={path}'
  )
  assert list(found) == [
    'mechanism',
    'num_rounds',
    'min_sep',
    'max_participations',
    'separation',
    'objective',
    'workload',
    *FIGURES,
    *gap,
    'memory_copies',
    'wall_seconds',
    'output',
  ]
  assert found['mechanism'] == mechanism
  assert found['objective'] == objective
  assert found['output'] == str(path)
  assert found['memory_copies'] == copies or copies is None
  file = files.load(path)
  family = {
    'banded_sqrt': 'banded_toeplitz',
    'banded_inverse_sqrt': 'banded_inverse',
    'multi_epoch': 'dense',
  }.get(mechanism, mechanism)
  assert file.strategy.family == family
  assert file.schema == schemas.MinSep(num_rounds=24, min_sep=6, max_participations=3)
  assert {k: found[k] for k in FIGURES} == file.figures
  described = result(f'describe {path}')
  assert {k: described[k] for k in FIGURES} == file.figures


def test_optimize_for_a_fixed_separation(tmp_path, result):
  path = tmp_path / 'found.json'
  found = result(
    f'optimize --mechanism=multi_epoch {SCHEMA} --separation=fixed --objective=rms --output={path}'
  )
  assert found['separation'] == 'fixed'
  assert found['sensitivity_kind'] == 'exact'
  described = result(f'describe {path}')
  assert described['separation'] == 'fixed'
  assert {k: described[k] for k in FIGURES} == {k: found[k] for k in FIGURES}
  other = result(f'describe {path} --separation=min')
  assert other['separation'] == 'min'
  assert other['sensitivity'] > found['sensitivity']


def test_optimize_for_momentum(tmp_path, result):
  path = tmp_path / 'found.json'
  found = result(
    f'optimize --mechanism=blt {SCHEMA} --workload=momentum --momentum=0.9 --output={path}'
  )
  assert files.load(path).workload.momentum == 0.9
  described = result(f'describe {path}')
  assert described['workload'] == 'momentum'
  assert described['rms_loss'] == found['rms_loss']


@pytest.mark.slow
@pytest.mark.parametrize(
  'mechanism', ['banded', pytest.param('banded_toeplitz', marks=pytest.mark.thorough)]
)
def test_optimize_the_number_of_bands(tmp_path, result, run, mechanism):
  path = tmp_path / 'found.json'
  line = (
    f'optimize --mechanism={mechanism} --num_rounds=32 --objective=rms'
    f' --epsilon=4 --delta=1e-6 --num_examples=640 --batch_size=40'
    f' --output={path}'
  )
  found = result(line)
  noise = {c['num_bands']: c['rms_noise'] for c in found['candidates']}
  assert set(noise) == {1, 2, 4, 8, 16}
  assert found['num_bands'] == min(noise, key=noise.get) not in (1, 16)
  assert found['rms_error'] * found['noise_multiplier'] == pytest.approx(
    noise[found['num_bands']], rel=1e-6
  )
  assert found['epsilon'] <= 4.0
  account = result(
    f'account --strategy={path} --delta=1e-6 --num_rounds=32'
    f' --noise_multiplier={found["noise_multiplier"]!r} --sampling=poisson'
    ' --num_examples=640 --batch_size=40'
  )
  assert account['num_parts'] == found['num_bands']
  assert account['epsilon'] == found['epsilon']
  assert 'rms_noise' in run(line)[1]


@pytest.mark.slow
def test_the_workload_is_shown(tmp_path, run, result):
  path = tmp_path / 'mine.json'
  fields = {
    'workload': 'momentum',
    'momentum': 0.9,
    'warmup_fraction': 0.25,
    'cooldown_fraction': 0.5,
  }
  given = ' '.join(f'--{name}={value}' for name, value in fields.items())
  line = f'optimize --mechanism=blt --num_buffers=1 --num_rounds=20 {given}'
  assert fields.items() <= result(f'{line} --output={path}').items()
  assert fields.items() <= result(f'describe {path}').items()
  for shown in (run(line)[1], run(f'describe {path}')[1]):
    assert all(
      [name, str(value)] in map(str.split, shown.splitlines()) for name, value in fields.items()
    )
  assert (
    result('optimize --mechanism=identity --num_rounds=4 --cooldown_fraction=0.5')[
      'cooldown_fraction'
    ]
    == 0.5
  )


@pytest.mark.slow
@pytest.mark.parametrize('mechanism', ['blt', 'banded_toeplitz'])
def test_optimize_over_a_range_of_min_seps(tmp_path, result, mechanism):
  path = tmp_path / 'found.json'
  found = result(
    f'optimize --mechanism={mechanism} --num_rounds=24 --min_sep_range=3,6'
    f' --objective=rms --output={path}'
  )
  assert found['min_sep'] == 3
  assert found['min_sep_range'] == [3, 6]
  assert found['range_objective'] == 'regret'
  assert [p['min_sep'] for p in found['range']] == [3, 4, 5, 6]
  assert [p['max_participations'] for p in found['range']] == [8, 6, 5, 4]
  assert found['range'][0]['rms_loss'] == found['rms_loss']
  assert files.load(path).schema.min_sep == 3
  for point in found['range']:
    assert point['sensitivity_kind'] == 'exact'
    described = result(f'describe {path} --num_rounds=24 --min_sep={point["min_sep"]}')
    assert described['rms_loss'] == point['rms_loss']
    assert described['max_loss'] == point['max_loss']


def test_optimize_shows_the_losses_over_a_range(run):
  status, out, _ = run(
    'optimize --mechanism=banded_toeplitz --num_rounds=24'
    ' --min_sep_range=3,6 --range_objective=worst'
  )
  assert status == 0
  table, losses = out.split('\n\n')
  assert re.search('min_sep_range +3 to 6', table)
  assert [line.split()[0] for line in losses.splitlines()] == ['min_sep', '3', '4', '5', '6']


def test_optimize_tells_of_an_optimality_gap(result, monkeypatch):
  asked = []

  def certificate(strategy, schema, workload, *, objective):
    asked.append((strategy, schema, workload, objective))
    return 0.25

  known = dataclasses.replace(registry.OPTIMIZERS['identity'], certificate=certificate)
  monkeypatch.setitem(registry.OPTIMIZERS, 'identity', known)
  found = result('optimize --mechanism=identity --num_rounds=5 --objective=rms')
  assert found['optimality_gap'] == 0.25
  ((_, schema, _, objective),) = asked
  assert (schema.num_rounds, objective) == (5, 'rms')
  silent = dataclasses.replace(known, certificate=lambda *_, **__: None)
  monkeypatch.setitem(registry.OPTIMIZERS, 'identity', silent)
  assert 'optimality_gap' not in result('optimize --mechanism=identity --num_rounds=5')


def test_optimize_needs_no_output(result):
  found = result('optimize --mechanism=blt --num_rounds=24')
  assert found['output'] is None
  assert (found['min_sep'], found['max_participations']) == (1, 24)


def test_optimize_shows_progress_of_long_searches(run, monkeypatch):
  monkeypatch.setattr(output, 'SECONDS', 0.0)
  status, out, err = run(f'optimize --mechanism=blt {SCHEMA} --json')
  assert status == 0
  json.loads(out)
  assert all(line.startswith('optimize: ') for line in err.splitlines())
  assert 'loss' in err


def test_describe_any_schema(result):
  found = result('describe blt-b400 --num_rounds=2350 --min_sep=447')
  assert list(found) == [
    'strategy',
    'mechanism',
    'num_rounds',
    'min_sep',
    'max_participations',
    'separation',
    'workload',
    *FIGURES,
    'memory_copies',
  ]
  assert found['max_participations'] == 6
  assert found['memory_copies'] == 4


def test_describe_by_its_own_schema(result):
  found = result('describe blt-b400')
  assert (found['num_rounds'], found['min_sep']) == (4000, 400)
  assert found['max_loss'] == pytest.approx(10.6722, abs=5e-5)


def test_describe_separations(result):
  line = 'describe tree_online --num_rounds=16 --min_sep=3 --max_participations=5'
  at_least = result(line)
  exactly = result(f'{line} --separation=fixed')
  assert at_least['sensitivity'] == pytest.approx(57**0.5)
  assert exactly['sensitivity'] == pytest.approx(55**0.5)


def test_account(result):
  found = result(
    'account --strategy=blt-b400 --noise_multiplier=7.379 --delta=1e-10'
    ' --num_rounds=1280 --min_sep=300 --max_participations=4'
  )
  assert set(GUARANTEE) <= set(found)
  assert found['mu'] == 1 / found['effective_noise_multiplier']
  assert found['strategy'] == 'blt-b400' and found['num_rounds'] == 1280
  assert any('at most 4 of 1280' in line for line in found['assumptions'])
  assert found['epsilon'] == pytest.approx(3.46, abs=0.005)
  assert found['adjacency'] == 'zero_out'


@pytest.mark.parametrize('target', ['epsilon', 'rho'])
def test_calibrate_then_account(result, target):
  flags = '--strategy=blt-b100 --delta=1e-6 --num_rounds=500 --min_sep=100'
  found = result(f'calibrate --{target}=1.5 {flags}')
  assert {'noise_multiplier', *GUARANTEE} <= set(found)
  assert found[target] == pytest.approx(1.5, rel=1e-5)
  assert found[target] <= 1.5 * (1 + 1e-12)
  again = result(f'account --noise_multiplier={found["noise_multiplier"]!r} {flags}')
  assert again == found


RUN = '--strategy=identity --delta=1e-6 --num_rounds=60 --num_examples=1000 --batch_size=50'


def test_account_of_a_curve_replaced_groups(result):
  flags = (
    'account --strategy=blt-b400 --noise_multiplier=20 --delta=1e-6 --num_rounds=1280 --min_sep=300'
  )
  one = result(flags)
  assert 'curve' not in one
  found = result(f'{flags} --delta=1e-8 --adjacency=replace_one --group_size=2')
  assert found['sensitivity'] == pytest.approx(4 * one['sensitivity'])
  assert found['sensitivity_kind'] == 'upper_bound'
  assert (found['adjacency'], found['group_size']) == ('replace_one', 2)
  assert [p['delta'] for p in found['curve']] == [1e-6, 1e-8]
  assert found['curve'][0]['epsilon'] == found['epsilon']
  assert found['curve'][1]['epsilon'] > found['epsilon']


def test_account_of_a_fixed_separation(result):
  flags = (
    'account --strategy=tree_online --noise_multiplier=9 --delta=1e-6'
    ' --num_rounds=16 --min_sep=3 --max_participations=5'
  )
  at_least, exactly = result(flags), result(f'{flags} --separation=fixed')
  assert (at_least['separation'], exactly['separation']) == ('min', 'fixed')
  assert exactly['epsilon'] < at_least['epsilon']


@pytest.mark.slow
@pytest.mark.parametrize(
  'sampling, adjacency',
  [
    ('poisson', 'zero_out'),
    ('poisson', 'add_or_remove'),
    ('poisson', 'replace_one'),
    ('fixed_size', 'zero_out'),
    ('fixed_size', 'replace_one'),
    ('shuffled', 'zero_out'),
    ('shuffled', 'replace_one'),
    ('shuffled_once', 'zero_out'),
  ],
)
def test_sampled_batches(result, sampling, adjacency):
  flags = f'{RUN} --sampling={sampling} --adjacency={adjacency} --num_parts=2 --delta=1e-8'
  found = result(f'calibrate {flags} --epsilon=2')
  assert set(GUARANTEE) <= set(found)
  assert 2.0 * (1 - 1e-4) <= found['epsilon'] <= 2.0 * (1 + 1e-12)
  assert (found['sampling'], found['adjacency']) == (sampling, adjacency)
  assert [p['delta'] for p in found['curve']] == [1e-6, 1e-8]
  again = result(f'account --noise_multiplier={found["noise_multiplier"]!r} {flags}')
  assert again == found
  if 'shuffled' in sampling:
    assert found['max_participations'] == 3  # of 30 turns, 10 a pass
    assert found['min_sep'] == {'shuffled': 2, 'shuffled_once': 20}[sampling]
  else:
    assert (found['sampling_probability'], found['compositions']) == (0.1, 30)
    assert found['rho'] is None and found['mu'] is None


def test_sampled_parts_are_the_bands(result, run, tmp_path):
  path = tmp_path / 'a.json'
  run(f'optimize --mechanism=banded --num_rounds=60 --num_bands=5 --min_sep=5 --output={path}')
  line = RUN.replace('identity', str(path))
  found = result(f'account {line} --noise_multiplier=1 --sampling=poisson')
  assert found['num_parts'] == 5
  status, _, err = run(f'account {line} --noise_multiplier=1 --sampling=poisson --num_parts=4')
  assert status == 2 and 'num_parts=4 is fewer than the 5 bands' in err


def test_calibrate_is_account_with_a_target(run, result):
  line = f'--strategy=identity --delta=1e-6 {SCHEMA} --epsilon=2'
  assert result(f'calibrate {line}') == result(f'account {line}')
  status, _, err = run(f'account {line} --noise_multiplier=1')
  assert status == 2 and 'not allowed' in err
  status, _, err = run(f'calibrate {line} --noise_multiplier=1')
  assert status == 2 and '--noise_multiplier' in err
  status, out, _ = run(f'account {line} --max_epsilon=1')
  assert status == 3 and out


def test_describe_under_another_workload(result, tmp_path):
  path = tmp_path / 'identity.json'
  momentum = '--workload=momentum --momentum=0.5'
  made = result(f'optimize --mechanism=banded_sqrt {SCHEMA} {momentum} --output={path}')
  own = result(f'describe {path}')
  assert (own['workload'], own['momentum']) == ('momentum', 0.5)
  assert own['rms_error'] == made['rms_error'] == result(f'describe {path} {momentum}')['rms_error']
  prefix = result(f'describe {path} --workload=prefix')
  assert prefix['workload'] == 'prefix' and prefix['rms_error'] < own['rms_error']
  assert prefix['sensitivity'] == own['sensitivity']


@pytest.mark.parametrize('command', [account, account.CALIBRATE, describe])
def test_examples_work(run, command):
  line = command.EXAMPLE
  assert line.startswith('fl-dpftrl ')
  status, out, err = run(line.removeprefix('fl-dpftrl '))
  assert (status, err) == (0, '')
  table = out.split('\n\nassumptions\n')[0]
  rows = [row.split() for row in table.splitlines()]
  assert all(len(row) == 2 for row in rows)
  assert 'sensitivity' in [row[0] for row in rows]


@pytest.mark.slow
def test_the_example_of_optimize_works(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  status, out, _ = run(optimize.EXAMPLE.removeprefix('fl-dpftrl '))
  assert status == 0
  assert os.listdir() == ['blt.json']
  assert 'max_loss' in out


def test_shown_figures_promise_no_more_than_the_exact_ones(run, result):
  line = (
    'account --strategy=blt-b400 --noise_multiplier=7.379 --delta=1e-10'
    ' --num_rounds=1280 --min_sep=300'
  )
  _, out, _ = run(line)
  table, assumptions = out.split('\n\nassumptions\n')
  shown = dict(row.split() for row in table.splitlines())
  assert 'none of its rows enters two sums' in assumptions
  exact = result(line)
  for name in ('sensitivity', 'rho', 'epsilon'):
    assert exact[name] <= float(shown[name]) <= exact[name] * (1 + 1e-5)


@pytest.mark.parametrize(
  'value, text',
  [
    (10.0, '10'),
    (10.000000000000002, '10'),
    (1.0000000000000002, '1'),
    (1.0000001, '1.00001'),
    (2.0, '2'),
    (0.1 + 0.2, '0.3'),
  ],
)
def test_losses_with_rounding_errors_alone_are_not_rounded_up(value, text):
  assert tables.table({'rms_loss': value}).split()[1] == text


@pytest.mark.parametrize('name', ['epsilon', 'rho', 'noise_multiplier'])
def test_claims_are_rounded_up_whatever_is_above(name):
  value = 10.000000000000002
  assert float(tables.table({name: value}).split()[1]) >= value


@pytest.mark.parametrize('name', dispatch.COMMANDS)
def test_help_carries_an_example(run, name):
  status, out, err = run(f'{name} --help')
  assert (status, err) == (0, '')
  assert f'fl-dpftrl {name} ' in ' '.join(out.split())
  assert '--json' in out


@pytest.mark.parametrize('flag', ['--help', '-h'])
def test_help_lists_the_commands(run, flag):
  status, out, _ = run(flag)
  assert status == 0
  for name in dispatch.COMMANDS:
    assert f'\n  {name} ' in out
    assert f'fl-dpftrl {name} ' in out


AMPLIFIED = '--num_rounds=5 --epsilon=1 --delta=1e-6 --num_examples=10 --batch_size=7'
ERRORS = [
  ('', 'COMMAND must be one of optimize'),
  ('traim', "'traim'"),
  ('optimize', '--mechanism'),
  ('optimize --mechanism=nope --num_rounds=5', 'banded.*blt'),
  ('optimize --mechanism=blt', '--num_rounds'),
  ('optimize --mechanism=blt --num_rounds=x', "--num_rounds.*'x'"),
  ('optimize --mechanism=blt --num_rounds=0', 'num_rounds.*0'),
  ('optimize --mechanism=blt --num_rounds=5 --min_sep=0', 'min_sep.*0'),
  ('optimize --mechanism=blt --num_rounds=5 --max_participations=-1', 'max_participations.*-1'),
  ('optimize --mechanism=blt --num_rounds=5 --num_buffers=9', '9'),
  ('optimize --mechanism=blt --num_rounds=5 --num_bands=2', '--num_bands=2'),
  ('optimize --mechanism=identity --num_rounds=5 --num_buffers=2', '--num_buffers=2'),
  ('optimize --mechanism=banded --num_rounds=9 --min_sep=3 --num_bands=4', '1 to 3.*4'),
  ('optimize --mechanism=banded_toeplitz --num_rounds=9 --num_bands=10', '1 to 9.*10'),
  ('optimize --mechanism=banded_sqrt --num_rounds=100000', 'num_bands'),
  ('optimize --num_round=5', '--num_round=5'),
  ('describe --separatio=min', '--separatio=min'),
  ('optimize --mechanism=blt --num_rounds=5 --min_sep_range=3', "'3'"),
  ('optimize --mechanism=blt --num_rounds=5 --min_sep_range=4,2', "'4,2'"),
  (
    'optimize --mechanism=blt --num_rounds=5 --min_sep_range=2,4 --min_sep=2',
    '--min_sep=2 and --min_sep_range=2,4',
  ),
  ('optimize --mechanism=banded --num_rounds=5 --min_sep_range=2,4', '--min_sep_range=2,4.*banded'),
  ('optimize --mechanism=blt --num_rounds=5 --range_objective=mean', '--min_sep_range'),
  ('optimize --mechanism=blt --num_rounds=5 --objective=mean', "'mean'"),
  ('optimize --mechanism=blt --num_rounds=5 --momentum=0.9', '--workload=momentum'),
  ('optimize --mechanism=blt --num_rounds=5 --workload=momentum', '--momentum'),
  ('optimize --mechanism=blt --num_rounds=5 --workload=momentum --momentum=1', 'momentum.*1'),
  ('optimize --mechanism=blt --num_rounds=5 --output=a.txt', 'a.txt.*.json'),
  ('optimize --mechanism=blt --num_rounds=5 --output=no/such/a.json', 'no/such/a.json'),
  (
    'optimize --mechanism=banded_toeplitz --num_rounds=100000 --min_sep=9 --cooldown_fraction=0.2',
    '100000',
  ),
  ('optimize --mechanism=banded --num_rounds=5 --epsilon=1', '--epsilon=1.0 needs --delta'),
  (f'optimize --mechanism=banded {AMPLIFIED}', 'rms.*--objective=max'),
  (f'optimize --mechanism=blt {AMPLIFIED} --objective=rms', 'banded.*blt'),
  (
    f'optimize --mechanism=banded {AMPLIFIED} --objective=rms --num_bands=2',
    '--num_bands=2 and --epsilon=1.0 exclude',
  ),
  (f'optimize --mechanism=banded {AMPLIFIED}0 --objective=rms', 'batch_size=70'),
  ('describe', 'STRATEGY'),
  (
    'describe identity --num_rounds=99999999999999999999',
    'num_rounds must be at most 2.*99999999999999999999',
  ),
  ('describe tree_online', '--num_rounds is needed$'),
  ('describe nope.json', "'nope.json'"),
  ('describe identity', '--num_rounds'),
  ('describe blt-b400 --min_sep=4', '--num_rounds'),
  ('describe blt-b400 --num_rounds=5 --separation=any', "'any'"),
  ('describe blt-b400 --num_round=5', '--num_round'),
  (
    'account --strategy=identity --noise_multiplier=0 --delta=1e-6 --num_rounds=5',
    'noise_multiplier.*0',
  ),
  (
    'account --strategy=identity --noise_multiplier=nan --delta=1e-6 --num_rounds=5',
    'noise_multiplier.*nan',
  ),
  ('account --strategy=identity --noise_multiplier=1 --delta=1 --num_rounds=5', 'delta.*1'),
  ('calibrate --strategy=identity --delta=1e-6 --num_rounds=5', '--epsilon.*--rho'),
  ('account --strategy=identity --delta=1e-6 --num_rounds=5', '--noise_multiplier.*--rho'),
  ('describe identity --num_rounds=5 --momentum=0.5', '--momentum=0.5 needs --workload'),
  ('compare --mechanisms=identity --num_rounds=5 --workload=momentum', 'needs --momentum'),
  ('calibrate --strategy=identity --delta=1e-6 --num_rounds=5 --rho=1 --epsilon=1', 'not allowed'),
  ('calibrate --strategy=identity --delta=1e-6 --num_rounds=5 --rho=inf', 'rho.*inf'),
  (
    'calibrate --strategy=identity --delta=1e-6 --num_rounds=5 --rho=1 --adjacency=add_or_remove',
    'add_or_remove is refused',
  ),
  (f'calibrate {RUN} --epsilon=1', '--num_examples=1000 needs --sampling'),
  (
    f'calibrate {RUN} --epsilon=1 --sampling=poisson --min_sep=2',
    '--min_sep=2 and --sampling=poisson exclude',
  ),
  (f'calibrate {RUN} --epsilon=1 --sampling=poisson --group_size=2', '--group_size=2 is refused'),
  (f'calibrate {RUN} --rho=1 --sampling=fixed_size', '--rho=1.0 .*--epsilon'),
  (
    f'calibrate {RUN} --epsilon=1 --sampling=fixed_size --adjacency=add_or_remove',
    'zero_out, replace_one.*add_or_remove',
  ),
  (
    f'calibrate {RUN} --epsilon=1 --sampling=shuffled --adjacency=add_or_remove',
    'add_or_remove is refused',
  ),
  (f'calibrate {RUN} --epsilon=1 --sampling=shuffled --batch_size=0.5', 'batch_size.*0.5'),
  (
    'calibrate --strategy=identity --delta=1e-6 --num_rounds=5 --epsilon=1 --sampling=poisson',
    'needs --num_examples',
  ),
  (
    f'calibrate {RUN} --epsilon=1 --sampling=poisson'.replace('identity', 'blt-b400'),
    'banded strategy',
  ),
]


@pytest.mark.parametrize('line, message', ERRORS)
def test_errors_are_one_line_and_status_2(run, tmp_path, monkeypatch, line, message):
  monkeypatch.chdir(tmp_path)
  status, out, err = run(line)
  assert (status, out) == (2, '')
  assert err.startswith('fl-dpftrl')
  assert err.endswith('\n') and err.count('\n') == 1
  assert re.search(message, err), err
  assert not os.listdir()


def test_a_run_beyond_the_strategy_is_refused(run, tmp_path):
  path = tmp_path / 'a.json'
  run(f'optimize --mechanism=banded {SCHEMA} --output={path}')
  status, _, err = run(
    f'account --strategy={path} --noise_multiplier=1 --delta=1e-6 --num_rounds=25'
  )
  assert status == 2
  assert 'num_rounds=25 is beyond the 24 rounds' in err


def test_an_output_that_cannot_be_written_is_told(run, tmp_path):
  path = tmp_path / 'a.json'
  path.mkdir()
  status, out, err = run(f'optimize --mechanism=identity {SCHEMA} --output={path}')
  assert (status, out, err.count('\n')) == (2, '', 1)
  assert str(path) in err
  assert os.listdir(tmp_path) == ['a.json']


def test_as_a_program():
  line = 'describe identity --num_rounds=4 --json'
  done = subprocess.run(
    [sys.executable, '-m', 'fl_dpftrl.commands.main', *line.split()],
    capture_output=True,
    text=True,
    check=True,
  )
  assert json.loads(done.stdout)['sensitivity'] == 2.0
  assert done.stderr == ''


@pytest.mark.slow
def test_readers_may_stop_early():
  line = f'{shlex.quote(sys.executable)} -m fl_dpftrl.commands.main --help'
  done = subprocess.run(f'{line} | true', shell=True, capture_output=True, text=True, check=True)
  assert done.stderr == ''
