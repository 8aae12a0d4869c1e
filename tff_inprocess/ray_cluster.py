"""Connection to a Ray cluster that somebody else started.

Whoever may submit work to a cluster runs code on it and reads what it computes. So a cluster
with machines beside this one must ask for a token or use TLS.
"""

import importlib
import logging
import math
import os
import socket
import subprocess
import sys
import time
from typing import Any

import ray
from ray import exceptions

from fl_dpftrl.support.text import messages

_REACH_SECONDS = 5.0
# Between two looks at the head, and until it is given up.
_LOOK_SECONDS = 5.0
_GONE_SECONDS = 30.0
# Asks a head who it is.
_STRANGER = """
import sys
from ray import _raylet
_raylet.GcsClient(address=sys.argv[1]).cluster_id
"""
_STRANGER_SECONDS = 20.0
_START = 'start one with `ray start --head`'


class NoActorError(RuntimeError):
  """No actor is left, or none was to be had in time; a later call may find one."""


def connect(address: str, *, insecure_network: bool = False) -> None:
  """Connects to a cluster; a connection that is there is kept.

  Args:
    address: host:port of its head, or 'auto' for the one that RAY_ADDRESS names or that runs
      on this machine.
    insecure_network: accepts machines beside this one without token and TLS.
  """
  if not ray.is_initialized():
    address = _only_address(address)
    if address != 'auto':
      _check_reachable(address)
    _connect(address)
  hosts = {node['NodeManagerAddress'] for node in _nodes()}
  others = sorted(host for host in hosts if not _is_here(host))
  if others and not insecure_network and not (_is_protected() and not _admits_anybody()):
    ray.shutdown()
    raise ValueError(
      f'the Ray cluster has other machines, {messages.quoted(others[0])} for one, and neither'
      ' token nor TLS: set RAY_AUTH_MODE=token or RAY_USE_TLS=1 on all of them, or accept'
      ' a private network with insecure_network'
    )


def check_size(*, cpus: float, gpus: float) -> None:
  """Raises ValueError for processors and GPUs that no actor can have."""
  for name, value in (('cpus', cpus), ('gpus', gpus)):
    if not isinstance(value, (int, float)) or not 0.0 <= value < math.inf:
      raise ValueError(f'{name} of actors must be a number of at least 0: {value!r}')
  if not cpus and not gpus:
    raise ValueError('cpus or gpus of actors must be above 0')


def room(number: int | None, *, cpus: float, gpus: float) -> int:
  """Returns how many actors to start: as asked, or as many as the cluster has room for."""
  found = []
  for name, key, needed in (('cpus', 'CPU', cpus), ('gpus', 'GPU', gpus)):
    if not needed:
      continue
    of_machines = [node['Resources'].get(key, 0.0) for node in _nodes()]
    there = sum(math.floor(of_one / needed + 1e-9) for of_one in of_machines)
    if there < (number or 1):
      total = sum(of_machines)
      raise ValueError(
        f'{number or 1} actors of {name}={needed:g} do not fit into the cluster, whose machines'
        f' have {total:g} {key}s: ask for fewer or smaller actors, or add machines'
      )
    found.append(there)
  return number or min(found)


class Head:
  """The head of the connected cluster, which is looked at now and then.

  A minute after it was lost, Ray ends this process without a word to it.
  """

  def __init__(self):
    self._address = ray.get_runtime_context().gcs_address
    self._looked = time.monotonic()
    self._gone_since: float | None = None

  def check(self) -> None:
    """Raises NoActorError if it has been gone for a while: until then, it may start again."""
    now = time.monotonic()
    if now - self._looked < _LOOK_SECONDS:
      return
    self._looked = now
    try:
      _socket(self._address).close()
    except OSError:
      self._gone_since = self._gone_since or now
      if now - self._gone_since > _GONE_SECONDS:
        raise NoActorError(
          f"the Ray cluster's head at {messages.quoted(self._address)} is gone"
        ) from None
    else:
      self._gone_since = None


def store_bytes() -> float:
  """Returns the memory for objects that the machines of the cluster have together."""
  return sum(node['Resources'].get('object_store_memory', 0.0) for node in _nodes())


def _only_address(address: str) -> str:
  """Returns the address that is meant, where 'auto' stands for one."""
  if address != 'auto':
    return address
  if named := os.environ.get('RAY_ADDRESS'):
    return named
  # Ray would take the latest, and it names them nowhere else.
  services: Any = importlib.import_module('ray._private.services')
  here = sorted(getattr(services, 'find_gcs_addresses', list)())
  if len(here) > 1:
    raise ValueError(
      f'several Ray clusters run on this machine, at {messages.quoted(", ".join(here))}: give the'
      " address of one instead of 'auto'"
    )
  return address


def _nodes() -> list[dict[str, Any]]:
  """Returns the machines of the cluster that are alive."""
  return [node for node in ray.nodes() if node['Alive']]


def _is_here(host: str) -> bool:
  """Returns whether an address is one of this machine."""
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  with socket.socket(family, socket.SOCK_STREAM) as one:
    try:
      one.bind((host, 0))
    except OSError:
      return False
  return True


def _is_protected() -> bool:
  if os.environ.get('RAY_USE_TLS', '0').lower() in ('1', 'true'):
    return True
  # Ray names it nowhere else, and its types leave it out.
  raylet: Any = importlib.import_module('ray._raylet')
  if not hasattr(raylet, 'get_authentication_mode'):
    return os.environ.get('RAY_AUTH_MODE', '').lower() == 'token'
  return raylet.get_authentication_mode() != raylet.AuthenticationMode.DISABLED


def _admits_anybody() -> bool:
  """Returns whether the head answers a process without token and TLS."""
  try:
    return not subprocess.run(
      [sys.executable, '-c', _STRANGER, ray.get_runtime_context().gcs_address],
      env={**os.environ, 'RAY_AUTH_MODE': 'disabled', 'RAY_USE_TLS': '0'},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      timeout=_STRANGER_SECONDS,
    ).returncode
  except subprocess.TimeoutExpired:
    return False


def _check_reachable(address: str) -> None:
  host, _, port = address.rpartition(':')
  if not host or not port.isdigit() or '/' in host:
    raise ValueError(
      f"address must be host:port of a cluster's head or 'auto', got {messages.quoted(address)}"
    )
  try:
    _socket(address).close()
  except (OSError, OverflowError) as error:
    raise ValueError(
      f'no Ray cluster answers at {messages.quoted(address)} ({error}): {_START} there'
    ) from None


def _socket(address: str) -> socket.socket:
  host, _, port = address.rpartition(':')
  return socket.create_connection((host.strip('[]'), int(port)), _REACH_SECONDS)


def _connect(address: str) -> None:
  try:
    ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
  except (ConnectionError, RuntimeError, ValueError, OSError, exceptions.RayError) as error:
    raise ValueError(
      messages.one_line(
        f'no Ray cluster at {messages.quoted(address)} takes this process: {_START}, and'
        f' `ray start --address=…` on this machine ({error})',
        300,
      )
    ) from None
