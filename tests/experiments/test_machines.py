"""A run on a cluster is the run of one process, file by file."""

import shutil

import pytest

from experiments.stackoverflow import machines
from experiments.stackoverflow.study import task
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import run
from tests.experiments import runs

pytestmark = [pytest.mark.tff, pytest.mark.slow]


@pytest.fixture(name='flags', scope='module')
def fixture_flags(cluster):
  return [f'--machines={cluster.address}', '--actors=1', '--actor_cpus=0.5']


def test_files_are_the_same_wherever_a_run_is_resumed(flags, by_engine, killed_by_engine, tmp_path):
  """Its clients, and noise are in process, on machines, and in process again."""
  folder = shutil.copytree(killed_by_engine, tmp_path / 'run')
  runs.killed(folder, 'computed', 18, *flags, '--noise_machines=2', base=runs.ENGINE)
  runs.finish(folder, base=runs.ENGINE)
  runs.assert_same_run(folder, by_engine.folder)


@pytest.mark.thorough
def test_a_study_trains_its_cells_on_the_cluster(cluster, tmp_path):
  study = {
    'title': 'One cell',
    'flags': ['--dataset=synthetic', '--report_goal=5', '--num_rounds=4', '--timer_rounds=2'],
    'mechanisms': ['identity'],
    'epsilons': [5],
    'server_learning_rates': [0.5],
    'seeds': [3],
    'without_noise': False,
  }
  design = design_lib.parse(study)
  there = machines.Machines(address=cluster.address, actors=2, actor_cpus=0.5)
  trains = task.task(design, there, 1)
  assert not run.run(design, trains, tmp_path / 'study', jobs=1, say=print).failed
  (log,) = (tmp_path / 'study' / 'cells').glob('*.log')
  (last,) = (line for line in log.read_text().splitlines() if line.startswith('round 4/4 | '))
  assert ' of 2 actors, 0 lost so far | ' in last
