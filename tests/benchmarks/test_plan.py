"""The parts of the plan benchmark that need no long run."""

import argparse
import json
import sys

import pytest

from benchmarks import process
from benchmarks.plan import cases, judge, run
from fl_dpftrl.commands import plan as plan_command
from fl_dpftrl.planning import simulating
from fl_dpftrl.strategies import files

SMALL = cases.Case(
  size='small',
  population=400,
  report_goal=4,
  num_rounds=60,
  flags=('--timer_hours=6', '--dropout=0'),
)
NAMES = ('blt:1', 'banded', 'tree_full')


def outcomes(min_seps):
  return [
    simulating.Outcome(
      seed=seed, report_goal=4, num_rounds=60, min_sep=min_sep, max_participations=4, days=2.0
    )
    for seed, min_sep in enumerate(min_seps)
  ]


def test_command_is_understood():
  *_, name = run.command(SMALL)[:4]
  assert name == 'plan'
  parser = argparse.ArgumentParser()
  plan_command.add_arguments(parser)
  parser.add_argument('--json', action='store_true')
  args = parser.parse_args(run.command(SMALL)[4:])
  assert (args.population, args.num_rounds, args.timer_hours) == (400, 60, 6.0)
  assert (args.noise_multiplier, args.num_simulations) == (
    judge.NOISE_MULTIPLIER,
    judge.NUM_SIMULATIONS,
  )


@pytest.mark.slow
def test_verdicts():
  found = []
  judges = judge.Judge(NAMES, found.append)
  seen = outcomes([10, 12, 11, 12, 9])
  sharp, rough = judges.verdicts(seen, 4, (1000, 16))
  assert (sharp.seed, sharp.log.min_sep) == (4, 9)
  # From those after it, round to the first: 10, 12 and 11.
  assert sharp.planned.min_sep == 6
  assert sharp.best == 'banded' and sharp.excess >= 0.0
  assert sharp.is_covered
  assert rough.predicted_epsilon >= rough.epsilon > 0.0
  for verdict in (sharp, rough):
    (found_best,) = [c for c in judges._hindsight(verdict.log) if c.label == verdict.best]
    assert (
      verdict.best_loss
      == files.describe(found_best.strategy, schema=verdict.log).figures['max_loss']
    )
  # Of the same simulations nothing is found anew.
  count = len(found)
  judges.verdicts(seen, 4, (16,))
  assert len(found) == count


def test_beyond_what_was_planned_for():
  (verdict,) = judge.Judge(('blt-b100',)).verdicts(outcomes([5, 12, 12, 12]), 0, (16,))
  assert not verdict.is_covered
  assert verdict.epsilon > 0.0


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
