"""Rounds whose clients train on other machines, in TFF's own workers.

A round is cut at its sums: workers train a part of the clients each and add their updates up,
and what comes after, the noise above all, is computed here. A part whose worker is lost is
computed again by another: it holds no noise, and nobody saw what it had come to.
"""

import atexit
import concurrent.futures
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import tensorflow_federated as tff

from fl_dpftrl import addresses
from fl_dpftrl.learning import split, workers

# How long a worker is waited for that may just have been started; one that was
# there before; and, in each round, one that was lost.
_START_SECONDS = 30.0
_AGAIN_SECONDS = 3.0
_LOST_SECONDS = 0.5
_QUIET_SECONDS = 3.0
_ATTEMPTS = 3
TIMEOUT_SECONDS = 3600.0
"""How long a worker may take for its part of a round, unless another time is given."""

_CHANNEL_OPTIONS = [
  *workers.CHANNEL_OPTIONS,
  ('grpc.initial_reconnect_backoff_ms', 100),
  ('grpc.max_reconnect_backoff_ms', 1000),
  # Machines that vanish without a word; more often, workers take offence.
  ('grpc.keepalive_time_ms', 310_000),
]


class WorkersLostError(RuntimeError):
  """No worker is left that could compute a part of the round."""


class _Lost(Exception):
  """The worker cannot be reached."""


class _Remote:
  """A worker that was started by somebody else."""

  def __init__(self, address: addresses.Address, say: Callable[[str], None], timeout: float):
    self.address, self._say = address, say
    self._channel = grpc.insecure_channel(str(address), _CHANNEL_OPTIONS)
    self._lock = threading.Lock()
    self._attempts = 0
    self._patience = _START_SECONDS
    self._is_lost = False
    self._context = workers.context_of(
      tff.framework.RemoteExecutorGrpcStub(self._channel), self._check, timeout=timeout
    )

  def run(self, computation: Any, argument: Any) -> Any:
    """Its result.

    Raises:
      _Lost: where the worker cannot be reached, or ends each time.
      workers.HungError: where it gives no result in time.
    """
    with self._lock:
      self._attempts = 0
      try:
        result = self._context.invoke(computation, argument)
      except _Lost as error:
        self._lose(error)
        raise
      except workers.HungError as error:
        raise workers.HungError(f'at {self.address} {error}') from error
      except Exception as error:
        if self._is_there(_LOST_SECONDS):
          raise
        self._lose(error)
        raise _Lost(str(error)) from error
      self._patience = _AGAIN_SECONDS
      if self._is_lost:
        self._is_lost = False
        self._say(f'the worker at {self.address} is back')
      return result

  def _lose(self, error: Exception) -> None:
    self._patience = _LOST_SECONDS
    if not self._is_lost:
      self._is_lost = True
      self._say(
        f'the worker at {self.address} is lost ({_short(error)}); another'
        ' trains its clients, where one is left'
      )

  def _check(self) -> None:
    self._attempts += 1
    if self._attempts > _ATTEMPTS:
      raise _Lost(f'it failed {_ATTEMPTS} times')
    quiet = min(self._patience, _QUIET_SECONDS)
    if self._is_there(quiet):
      return
    if self._patience > quiet:
      self._say(f'waiting for the worker at {self.address}')
    if not self._is_there(self._patience - quiet):
      raise _Lost('it cannot be reached')

  def _is_there(self, seconds: float) -> bool:
    ready = grpc.channel_ready_future(self._channel)
    try:
      ready.result(seconds)
      return True
    except grpc.FutureTimeoutError:
      return False
    finally:
      ready.cancel()


class RemoteWorkers:
  """Workers at other addresses, and one here for the server's part.

  Part i of a round's clients goes to worker i, and to the next one where that is
  lost. Parts are added up in their order, so the result does not depend on which
  worker computed what. A worker that comes back is used again.

  Args:
    texts: host:port of each.
    say: told, in a line, of each worker that is waited for, lost or back, and
      of one here that others can reach.
    deterministic: of the worker here, as in `workers.LocalWorker`; the others
      have a flag for that.
    insecure_network: whether addresses other than this machine's loopback are
      accepted. What travels is neither encrypted nor authenticated.
    timeout: how many seconds a worker may take for its part of a round.

  Raises:
    ValueError: for addresses that will not do.
    RuntimeError: if the worker here does not start.
  """

  def __init__(
    self,
    texts: Sequence[str],
    say: Callable[[str], None],
    *,
    deterministic: bool = True,
    insecure_network: bool = False,
    timeout: float = TIMEOUT_SECONDS,
  ):
    found = addresses.parse_all(texts)
    if not insecure_network:
      addresses.check_loopback(found, 'insecure_network=True')
    self._say = say
    self._server = workers.LocalWorker(deterministic=deterministic, warn=say, timeout=timeout)
    self._workers = [_Remote(address, say, timeout) for address in found]

  @property
  def pid(self) -> int:
    """Process id of the local worker."""
    return self._server.pid

  def stop(self) -> None:
    """Ends the local worker; remote ones are left running."""
    self._server.stop()

  def context(self) -> tff.framework.SyncContext:
    """An execution context whose clients these workers train."""
    return split.SplitContext(self._server.context(), len(self._workers), self._run_parts)

  def _run_parts(self, computation: Any, parts: Sequence[Any]) -> list[Any]:
    """The result of each part.

    Raises:
      WorkersLostError: if no worker is left.
      workers.HungError: if one gives no result in time.
    """
    lost: dict[_Remote, str] = {}

    def run(index, part):
      for step in range(len(self._workers)):
        worker = self._workers[(index + step) % len(self._workers)]
        if worker in lost:
          continue
        try:
          return worker.run(computation, part)
        except _Lost as error:
          lost[worker] = str(error)
      named = ', '.join(f'{w.address} ({_short(e)})' for w, e in lost.items())
      raise WorkersLostError(
        f'no worker is left to train clients: {named}; start them again, or go on with others'
      )

    futures = [workers.in_background(run, index, part) for index, part in enumerate(parts)]
    concurrent.futures.wait(futures)
    return [future.result() for future in futures]


def use_remote_workers(
  texts: Sequence[str],
  say: Callable[[str], None],
  *,
  deterministic: bool = True,
  insecure_network: bool = False,
  timeout: float = TIMEOUT_SECONDS,
) -> RemoteWorkers:
  """Makes workers at these addresses train all clients from now on.

  The arguments are those of `RemoteWorkers`.
  """
  remote = RemoteWorkers(
    texts, say, deterministic=deterministic, insecure_network=insecure_network, timeout=timeout
  )
  atexit.register(remote.stop)
  tff.framework.set_default_context(remote.context())
  gc.collect()  # TFF's own context complains where it is left to the exit.
  return remote


def _short(error: Any) -> str:
  line = ' '.join(str(error).split())
  return line if len(line) < 80 else f'{line[:77]}...'
