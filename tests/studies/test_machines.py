"""Runs of a study on a Ray cluster whose machines all are this one."""

import os
import signal
import threading
import time

import pytest

from tests.studies import linear, test_study

pytest.importorskip('ray')
from ray.util import placement_group, remove_placement_group

from fl_dpftrl import cluster as cluster_lib
from fl_dpftrl.studies import machines

pytestmark = pytest.mark.slow


def study(cluster, folder, train, **changes):
  return test_study.study(
    folder,
    train,
    machines=cluster.address,
    # Others may have left no more room.
    **dict(mechanisms=['identity'], seeds=[0], without_noise=False, run_cpus=0.25) | changes,
  )


def test_runs_are_those_of_this_process_and_lost_ones_are_tried_again(cluster, tmp_path):
  rates = [linear.FATAL_RATE, 9.0]
  found = study(cluster, tmp_path / 'there', linear.fatal, server_learning_rates=rates)
  lost, too_large = (result.reason for result in found.results)
  assert lost == 'its process is lost: WorkerCrashedError'
  assert too_large == 'RuntimeError: the rate is too large'
  again = study(cluster, found.folder, linear.train, server_learning_rates=rates)
  here = test_study.study(
    tmp_path / 'here',
    mechanisms=['identity'],
    seeds=[0],
    without_noise=False,
    server_learning_rates=rates[:1],
  )
  assert [result.test for result in again.results] == [here.results[0].test, None]
  (log,) = found.folder.glob(f'cells/*rate{linear.FATAL_RATE:g}*.log')
  assert 'trained in process' in log.read_text()
  assert f'trained in process {os.getpid()}' not in log.read_text()


def test_an_interruption_ends_runs(cluster, tmp_path):
  pids = []

  def interrupt():
    while not (told := list(tmp_path.glob('cells/*/process'))) or not all(
      path.read_text() for path in told
    ):
      time.sleep(0.05)
    pids.extend(int(path.read_text()) for path in told)
    os.kill(os.getpid(), signal.SIGINT)

  threading.Thread(target=interrupt, daemon=True).start()
  with pytest.raises(KeyboardInterrupt):
    study(cluster, tmp_path, linear.endless)
  deadline = time.monotonic() + 60
  for pid in pids:
    while test_study.is_running(pid):
      assert time.monotonic() < deadline
      time.sleep(0.05)


def test_runs_that_wait_for_room_are_told(cluster, tmp_path, monkeypatch):
  monkeypatch.setattr(machines, '_SAY_SECONDS', 0.0)
  cluster_lib.connect(cluster.address)
  # One machine has no room for a run then, or neither has.
  taken = placement_group([{'CPU': 0.5}, {'CPU': 0.5}])

  def interrupt(line):
    if 'wait for room' in line:
      raise KeyboardInterrupt(line)

  try:
    assert taken.wait(60)
    with pytest.raises(KeyboardInterrupt, match='^[12] of 2 runs wait for room on the cluster$'):
      study(cluster, tmp_path, linear.endless, run_cpus=0.6, say=interrupt)
  finally:
    remove_placement_group(taken)


def test_what_a_cluster_cannot_run_is_refused(cluster, tmp_path):
  lock = threading.Lock()
  with pytest.raises(ValueError, match='^1 runs of cpus=64 do not fit into the cluster'):
    study(cluster, tmp_path / 'own', linear.train, run_cpus=64.0)
  for sizes, words in (
    (dict(run_cpus=0.0), 'cpus or gpus of runs must be above 0'),
    (dict(run_gpus=-1.0), 'gpus of runs must be a number of at least 0: -1.0'),
  ):
    with pytest.raises(ValueError, match=f'^{words}'):
      study(cluster, tmp_path / 'own', linear.train, **sizes)
  with pytest.raises(ValueError, match='^train cannot be sent to the processes of a cluster: '):
    study(cluster, tmp_path / 'own', lambda cell: lock)
  assert not (tmp_path / 'own').exists()
