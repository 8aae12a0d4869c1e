"""A run on a cluster is the run of one process, file by file."""

import pytest

from tests.experiments import runs

pytest.importorskip('ray')  # Before the runs are made that it is compared with.

pytestmark = [pytest.mark.tff, pytest.mark.slow]


@pytest.fixture(name='flags', scope='module')
def fixture_flags(cluster):
  return [f'--machines={cluster.address}', '--actors=1', '--actor_cpus=0.5']


def test_files_are_the_same_wherever_a_run_is_resumed(flags, by_engine, tmp_path):
  """Its clients and its noise are on machines, and then in process."""
  folder = tmp_path / 'run'
  runs.killed(folder, 'published', 17, *flags, '--noise_machines=2', base=runs.ENGINE)
  runs.finish(folder, base=runs.ENGINE)
  runs.assert_same_run(folder, by_engine.folder)
