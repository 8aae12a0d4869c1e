"""Limit on the number of clients that train at the same time."""

import functools
import os
import pathlib
import warnings

from tensorflow.python.util import _pywrap_util_port

# A client's variables, their gradients, the optimiser's slots, its update, and
# one more update that waits for its turn.
_MODEL_COPIES = 8
# Clients at a time for each processor: one computes while another waits for TensorFlow's threads.
_PER_PROCESSOR = 2
# Of the free memory, for batches and what belongs to others.
_SHARE = 0.5
_CGROUP = pathlib.Path('/sys/fs/cgroup')
# Limit, use, and statistics with the files that can be dropped: versions 2 and 1.
_GROUP_FILES = (
  ('memory.max', 'memory.current', 'memory.stat', 'inactive_file'),
  (
    'memory/memory.limit_in_bytes',
    'memory/memory.usage_in_bytes',
    'memory/memory.stat',
    'total_inactive_file',
  ),
)


def concurrent_clients(model_bytes: int, at_most: int | None = None) -> int:
  """Returns how many clients may train at the same time: at least 1.

  Processors and memory limit the number. TensorFlow's oneDNN operations limit it
  to 1, with a warning: two clients that run one of them (Einsum, of attention
  layers) at the same time corrupt the memory of the process, also in TensorFlow 2.21.
  """
  wanted = at_most or _fitting(model_bytes)
  if wanted > 1 and uses_one_dnn():
    _warn_of_one_dnn()
    return 1
  return wanted


def uses_one_dnn() -> bool:
  """Returns whether TensorFlow uses oneDNN operations, which are not safe in parallel."""
  return _pywrap_util_port.IsMklEnabled()


@functools.cache
def _warn_of_one_dnn() -> None:
  """Warns once in a process: Python's own count is lost where any code changes its filters."""
  warnings.warn(
    'clients train one at a time, since TensorFlow uses oneDNN operations, which are not'
    ' safe in parallel: set TF_ENABLE_ONEDNN_OPTS=0 in the environment before TensorFlow'
    ' is imported',
    RuntimeWarning,
    stacklevel=3,
  )


def _fitting(model_bytes: int) -> int:
  most = _PER_PROCESSOR * len(os.sched_getaffinity(0))
  free = free_bytes()
  if free is None or not model_bytes:
    return most
  fitting = int(_SHARE * free) // (_MODEL_COPIES * model_bytes)
  return max(1, min(most, fitting))


def free_bytes() -> int | None:
  """Returns the memory available without swapping; None if unknown."""
  known = [one for one in (_of_machine(), _of_group()) if one is not None]
  return min(known, default=None)


def _of_machine() -> int | None:
  try:
    for line in pathlib.Path('/proc/meminfo').read_text().splitlines():
      if line.startswith('MemAvailable:'):
        return 1024 * int(line.split()[1])
  except (OSError, ValueError):
    pass
  return None


def _of_group() -> int | None:
  """Returns the memory that a container's control group leaves, if limited."""
  for limit_file, used_file, statistics, inactive in _GROUP_FILES:
    try:
      limit, used = (int((_CGROUP / name).read_text()) for name in (limit_file, used_file))
      details = (_CGROUP / statistics).read_text().split()
      return limit - used + int(details[details.index(inactive) + 1])
    except (OSError, ValueError):  # Of the other version; 'max' is no limit.
      continue
  return None
