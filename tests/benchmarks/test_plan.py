"""The parts of the plan benchmark that need no long run."""

import json
import sys

import pytest

from benchmarks import process
from benchmarks.plan import cases, judge, run

SMALL = cases.Case(
  size='small',
  population=400,
  report_goal=4,
  num_rounds=60,
  flags=('--timer_hours=6', '--dropout=0'),
)


@pytest.mark.slow
def test_measures(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(cases, 'CASES', (SMALL,))
  monkeypatch.setattr(process, 'pin', lambda num_cores: False)
  monkeypatch.setattr(judge, 'NAMES', ('tree_full', 'blt-b100'))
  monkeypatch.setattr(run, 'command', lambda case: [sys.executable, '-c', ''])
  run.main(['--seeds=4', f'--output={tmp_path}'])
  assert 'plan-small' in capsys.readouterr().out
  (row,) = json.loads((tmp_path / 'plan.json').read_text())['rows']
  assert len(row['outcomes']) == 4 and len(row['verdicts']) == 8
  assert (tmp_path / 'plan.md').exists()
