import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow_federated as tff

from fl_dpftrl.learning import workers

pytestmark = pytest.mark.tff


def is_running(pid: int) -> bool:
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return False
  return stat.rsplit(')', 1)[1].split()[0] != 'Z'


def test_runs_computations_and_stops():
  worker = workers.LocalWorker()
  try:

    @tff.tensorflow.computation(np.int32)
    def add_one(x):
      return x + 1

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(values):
      return tff.federated_sum(tff.federated_map(add_one, values))

    with tff.framework.get_context_stack().install(worker.context()):
      assert total([1, 2, 3]) == 9
      assert is_running(worker.pid)
      worker.stop()
      with pytest.raises(RuntimeError, match='has ended .*resume'):
        total([1])
  finally:
    worker.stop()
  assert not is_running(worker.pid)


def test_ends_with_a_parent_that_is_killed():
  parent = subprocess.Popen(
      [
          sys.executable,
          '-c',
          'import time\n'
          'from fl_dpftrl.learning import workers\n'
          'print(workers.LocalWorker().pid, flush=True)\n'
          'time.sleep(600)',
      ],
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
  )
  pid = int(parent.stdout.readline())
  assert is_running(pid)
  parent.kill()
  # The worker holds none of the parent's output: reading it comes to an end.
  assert parent.communicate(timeout=30)[0] == ''
  deadline = time.monotonic() + 30
  while is_running(pid) and time.monotonic() < deadline:
    time.sleep(0.02)
  assert not is_running(pid)
