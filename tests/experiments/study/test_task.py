"""Flags of a study's runs: noise, participation, and flags that a study sets itself."""

import dataclasses
import json
import pathlib
import re

import pytest

from experiments.stackoverflow import datasets, machines, run
from experiments.stackoverflow.study import task
from fl_dpftrl import accounting
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from fl_dpftrl.studies import cells, results, table
from fl_dpftrl.studies import design as design_lib
from tests import oracle

ROOT = pathlib.Path(__file__).parents[3]
STUDY = {
  'title': 'A study',
  'flags': ['--report_goal=5', '--num_rounds=8', '--timer_rounds=4', '--delta=1e-5'],
  'mechanisms': ['identity'],
  'epsilons': [2],
  'server_learning_rates': [0.5],
  'seeds': [0],
}


def prepared(folder, **changes):
  design = design_lib.parse({**STUDY, **changes})
  return cells.prepare(design, task.task(design, machines.Machines(), 1), folder, print)


def test_a_cell_is_an_ordinary_run(tmp_path):
  made = prepared(tmp_path)
  cell = made.cell(made.design.settings[0], 0.5, 0)
  conditions = cell.conditions
  assert (conditions.schema, conditions.delta) == (schemas.MinSep(8, 4), 1e-5)
  assert (conditions.report_goal, conditions.workload.momentum) == (5, 0.95)
  arguments = task.arguments(cell)
  assert arguments[: len(STUDY['flags'])] == STUDY['flags']
  assert f'--output_dir={cell.folder}' in arguments and '--resume' in arguments
  assert f'--noise_multiplier={cell.noise_multiplier!r}' in arguments
  few = task.timed(cell, 4).flags
  assert few[-3:] == ('--timer_rounds=1', '--num_rounds=4', '--rounds_per_evaluation=4')
  made = task.task(made.design, machines.Machines(address='auto', actors=2), 1)
  assert made.train.args == (['--machines=auto', '--actors=2'],)


@pytest.mark.parametrize('flag', ['--seed=1', '--epsilon=3', '--output_dir=x', 'report_goal=5'])
def test_flags_that_a_study_sets_are_refused(flag):
  design = design_lib.parse({**STUDY, 'flags': [*STUDY['flags'], flag]})
  with pytest.raises(ValueError, match=f"flags has '{flag}': give --name=value"):
    task.base_flags(design, design.settings[0])


def test_timers_in_hours_are_calibrated_for_the_simulated_cohorts(tmp_path):
  flags = ['--dataset=synthetic', '--report_goal=10', '--num_rounds=40', '--timer_hours=1.3']
  changes = {'flags': flags, 'epsilons': [1], 'without_noise': False, 'seeds': [0, 1]}
  made = prepared(tmp_path, **changes, mechanisms=['identity', 'blt:1'])
  design = made.design
  hparams = task.base_flags(design, design.settings[0])
  seen = []
  for seed in design.seeds:
    of_seed = dataclasses.replace(hparams, seed=seed)
    num_clients = len(datasets.load_for(of_seed).train_clients)
    rounds = run.scenario(of_seed, num_clients).simulation().rounds()
    log = [(t, i) for t, c in zip(range(40), rounds) for i in c.device_ids]
    seen.append(oracle.schema_of(*zip(*log), 40))
  assert 1 < seen[0].min_sep < 40 and seen[0] != seen[1]
  assert made.conditions[design.settings[0]].schema == schemas.MinSep(
    num_rounds=40,
    min_sep=min(s.min_sep for s in seen),
    max_participations=max(s.participations for s in seen),
  )
  for noise in made.noises.values():
    strategy = files.load_strategy(noise.strategy)
    proven = [
      accounting.account(strategy, s, noise_multiplier=noise.noise_multiplier, delta=1e-6).epsilon
      for s in seen
    ]
    assert all(epsilon <= 1.0 for epsilon in proven)
  rows = results.rows(design, [results.read(cell) for cell in made.tuning()])
  assert 'A timer in hours enforces no min-sep' in table.notes(design, rows)[0]


@pytest.mark.parametrize('path', sorted((ROOT / 'studies').glob('*.json')), ids=lambda p: p.stem)
def test_committed_studies_fit_their_flags(path):
  design = design_lib.read(path)
  for chosen in design.settings:
    hparams = task.base_flags(design, chosen)
    assert hparams.timer_rounds or hparams.timer_hours
    assert hparams.deployment_report_goal


def test_the_papers_tables_are_whole():
  design = design_lib.read(ROOT / 'studies' / 'stackoverflow.json')
  assert len(design.settings) == 25 + 12
  assert all(s.effective_noise_multiplier or s.noise_multiplier for s in design.settings)
  assert sum(s.published is None for s in design.settings) == 1  # Not in the paper.


def test_the_page_on_studies_has_a_study_that_can_be_run_and_every_field():
  page = (ROOT / 'docs/studies.md').read_text()
  design = design_lib.parse(json.loads(page.split('```json')[1].split('```')[0]))
  flags = task.base_flags(design, design.settings[0])
  assert (flags.dataset, flags.deployment_report_goal) == ('my_texts', 2000)
  with pytest.raises(ValueError) as caught:
    design_lib.parse({**STUDY, 'field': 1})
  known = set(str(caught.value).partition('it has ')[2].split(', ')) | {'cells'}
  fields = page.split('| field of a study file |')[1].split('\n\n')[0]
  assert set(re.findall(r'^\| `(\w+)` \|', fields, re.MULTILINE)) == known
