"""Results at a prompt: at most 12 lines, with figures that are rounded up."""

import dataclasses

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.support import tables
from tests import made

SCHEMA = dpftrl.MinSep(24, 6)
PHONES = dpftrl.Scenario(population=200, report_goal=10, timer_rounds=4)


@pytest.fixture(scope='module')
def results(tmp_path_factory):
  log = tmp_path_factory.mktemp('log') / 'log.parquet'
  dpftrl.simulate(PHONES, num_rounds=20, output=log)
  run = dpftrl.open_run(log, dpftrl.Identity(), noise_multiplier=4.0)
  names, given = ['identity', 'tree_online'], dict(delta=1e-6, noise_multiplier=4.0)
  audited = dict(given, num_draws=2000, seed=1)
  schemas = [dpftrl.MinSep(24, min_sep) for min_sep in (2, 4, 6, 8, 12)]
  return {
    'Comparison': dpftrl.compare([*names, 'tree_full', 'banded-b16'], schemas),
    'StrategyFile': dpftrl.describe(dpftrl.TreeFull(), SCHEMA),
    'Plan': dpftrl.plan(PHONES, num_rounds=20, strategies=names, **given),
    'Audit': dpftrl.audit(dpftrl.Identity(), dpftrl.MinSep(4), **audited),
    'Statement': dpftrl.replay(run, delta=1e-6),
  }


def test_a_result_takes_at_most_twelve_short_lines(results):
  for name, result in results.items():
    lines = repr(result).splitlines()
    assert lines[0].startswith(name) and 2 < len(lines) <= tables.MOST_LINES
    assert max(map(len, lines)) <= 120
  assert 'more lines' in repr(results['Comparison'])


def test_figures_at_a_prompt_are_rounded_up(results):
  statement = results['Statement']
  epsilon = next(line for line in repr(statement).splitlines() if 'worst_case' in line).split()[2]
  assert statement.worst_case.epsilon() <= float(epsilon) < statement.worst_case.epsilon() * 1.0001


def test_a_void_statement_shows_no_epsilon(results):
  void = dataclasses.replace(results['Statement'], void_reason='the seed\nis <known>')
  text = repr(void)
  assert text.startswith('Statement, void: the seed is <known>\n')
  assert 'worst_case  void' in text and 'True' not in text
  assert not any(char.isdigit() for line in text.splitlines()[2:] for char in line)


def test_no_device_is_named(results):
  statement = results['Statement']
  devices = dataclasses.replace(statement.per_device, most_exposed='carol')
  assert 'carol' not in repr(dataclasses.replace(statement, per_device=devices))


@made.cases(
  'name, value, text',
  ('rms_loss', 10.0, '10'),
  ('rms_loss', 10.000000000000002, '10'),  # a rounding error alone
  ('rms_loss', 1.0000000000000002, '1'),
  ('rms_loss', 1.0000001, '1.00001'),
  ('rms_loss', 0.1 + 0.2, '0.3'),
  ('epsilon', 10.000000000000002, '10.0001'),  # a claim is rounded up whatever is above
  ('rho', 10.000000000000002, '10.0001'),
  ('noise_multiplier', 10.000000000000002, '10.0001'),
)
def test_figures_are_rounded_up(name, value, text):
  assert tables.table({name: value}).split()[1] == text
