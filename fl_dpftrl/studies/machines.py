"""Processes of a Ray cluster that train cells.

Each cell has a process of its own, on any machine of the cluster. It writes into the study's
folder, so all machines must see that folder at the same path.
"""

import contextlib
import dataclasses
import pathlib
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray import cloudpickle, exceptions

from fl_dpftrl import cluster
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.studies import processes
from fl_dpftrl.text import messages

# Between two lines that say how many cells wait.
_SAY_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
  """The machines of the connected cluster, for cells; `runner.Pools`.

  Attributes:
    jobs: cells that are trained at the same time.
    cpus, gpus: processors and GPUs of a cell; may be fractions.
    say: takes lines about cells that wait for room.
  """

  jobs: int
  cpus: float
  gpus: float
  say: Callable[[str], None]

  @classmethod
  def of(
    cls,
    address: str,
    train: cells_lib.Train,
    *,
    jobs: int | None,
    cpus: float,
    gpus: float,
    insecure_network: bool,
    say: Callable[[str], None],
  ) -> 'Machines':
    """Connects to a cluster.

    Args:
      address: see `cluster.connect`.
      train: trains a cell.
      jobs: most cells at the same time; None for as many as the cluster has room for.
      cpus, gpus: of a cell.
      insecure_network: see `cluster.connect`.
      say: takes lines about cells that wait for room.

    Raises:
      ValueError: if the cluster cannot be reached or used, or has no room for so many, and for a
        function that cannot be sent to other processes.
    """
    cluster.check_size('runs', cpus=cpus, gpus=gpus)
    try:
      cloudpickle.dumps(train)
    except (TypeError, pickle.PicklingError):
      raise ValueError(
        'train cannot be sent to the processes of a cluster: it holds what cannot be pickled, such'
        ' as a lock or an open file'
      ) from None
    cluster.connect(address, insecure_network=insecure_network)
    jobs = cluster.room(jobs, cpus=cpus, gpus=gpus, what='runs')
    return cls(jobs=jobs, cpus=cpus, gpus=gpus, say=say)

  @contextlib.contextmanager
  def opened(
    self, train: Callable[[cells_lib.Cell], None], folder: pathlib.Path
  ) -> Iterator['_Pool']:
    """Opens processes for the study in a folder; leaving the block ends those that still run."""
    variables = processes.variables(max(1, int(self.cpus)))
    # A process trains one cell, so that none inherits what libraries keep from another. One that
    # is lost may still write, so none takes its place before the study is called again.
    remote = ray.remote(
      num_cpus=self.cpus,
      num_gpus=self.gpus,
      max_calls=1,
      max_retries=0,
      runtime_env={'env_vars': variables},
    )(_train_there)
    sent = ray.put(train)
    pool = _Pool(lambda cell: remote.remote(sent, cell), self.say)
    try:
      yield pool
    finally:
      pool.stop()


class _Pool:
  """Processes that train cells; `runner.Pool`."""

  def __init__(self, submit: Callable[[cells_lib.Cell], Any], say: Callable[[str], None]):
    self._submit, self._say, self._head = submit, say, cluster.Head()
    self._running: dict[Any, cells_lib.Cell] = {}
    self._said = time.monotonic()

  def start(self, cell: cells_lib.Cell) -> None:
    processes.log(cell).unlink(missing_ok=True)
    self._running[self._submit(cell)] = cell

  def ended(self) -> list[tuple[cells_lib.Cell, str]]:
    self._head.check()
    ready, _ = ray.wait(list(self._running), timeout=processes.POLL_SECONDS)
    outcomes = [(self._running.pop(reference), _reason(reference)) for reference in ready]
    if time.monotonic() - self._said >= _SAY_SECONDS:
      self._said = time.monotonic()
      waiting = sum(not processes.log(cell).exists() for cell in self._running.values())
      if waiting:
        self._say(f'{waiting} of {len(self._running)} runs wait for room on the cluster')
    return outcomes

  def stop(self) -> None:
    """Ends cells that still run, between two of their steps where they can."""
    left = list(self._running)
    deadline = time.monotonic() + processes.PATIENCE_SECONDS
    with contextlib.suppress(exceptions.RayError):
      for reference in left:
        ray.cancel(reference)
      while left and time.monotonic() < deadline:
        _, left = ray.wait(left, num_returns=len(left), timeout=processes.POLL_SECONDS)
      for reference in left:
        ray.cancel(reference, force=True)


def _reason(reference: Any) -> str:
  """Returns why a process did not train its cell, should that be so."""
  try:
    return ray.get(reference)
  except exceptions.RayError as error:
    return messages.one_line(f'its process is lost: {type(error).__name__}')


def _train_there(train: Callable[[cells_lib.Cell], None], cell: cells_lib.Cell) -> str:
  """Trains a cell, in a process of the cluster; returns why it failed."""
  if not cell.folder.parent.is_dir():
    return (
      f'{cell.folder.parent} is not there on machine {ray.util.get_node_ip_address()}: all machines'
      " must see the study's folder at the same path"
    )
  processes.write_to_log(cell)
  try:
    train(cell)
  except Exception:
    traceback.print_exc()
    sys.stderr.flush()
    return processes.last_line(processes.log(cell), 'it failed')
  return 'it ended, but its summary is not here'
