"""Huge values are refused before memory is taken, in one short line."""

import pytest

SIMULATE = 'simulate --population=3000 --report_goal=65 --num_rounds=20'
PLAN = 'plan --population=3000 --report_goal=65 --num_rounds=20 --delta=1e-6 --noise_multiplier=7'


@pytest.mark.parametrize(
  'line, words',
  [
    ('describe tree_online --num_rounds=1000000000000', 'at most 16777216'),
    ('describe tree_full --num_rounds=1000000000000', 'at most 16777216'),
    ('optimize --mechanism=dense --num_rounds=1000000000000', 'at most 16384'),
    ('optimize --mechanism=multi_epoch --num_rounds=1000000000000', 'at most 16384'),
    (f'{SIMULATE} --timer_rounds=99999999999999999999', 'timer_rounds must be'),
    (f'{SIMULATE} --timer_hours=1e300', 'a century'),
    (f'{SIMULATE} --num_rounds=1000000000000', '--num_rounds=1000000000000'),
    (f'{SIMULATE} --population=2147483647', 'GiB'),
    (f'{PLAN} --num_simulations=1000000000000', '--num_simulations'),
    (f'{PLAN} --num_workers=1000000000000', '--num_workers'),
    (f'describe {"x" * 5000}', 'strategy'),
    ('x' * 5000, 'COMMAND must be one of'),
    (f'describe --{"x" * 5000}', 'unrecognized'),
    ("describe '\x1b[2J\nε at δ'", 'x1b'),
  ],
  ids=lambda value: value[:60],
)
def test_one_short_line(run, monkeypatch, line, words):
  monkeypatch.setattr('fl_dpftrl.simulation.population.available_memory', lambda: 2**33)
  status, out, err = run(line)
  assert (status, out) == (2, '')
  assert words in err
  assert err.count('\n') == 1 and len(err) <= 301 and err[:-1].isprintable()
