"""Cores and free memory that this process may take of its machine."""

import os
import pathlib
from collections.abc import Iterator

try:
  import resource
except ImportError:  # Such a system limits no process.
  resource = None  # type: ignore[assignment]

_MACHINE, _FREE = pathlib.Path('/proc/meminfo'), 'MemAvailable:'
_GROUPS, _ROOT = pathlib.Path('/proc/self/cgroup'), pathlib.Path('/sys/fs/cgroup')
# Folder below the root, limit, use, and the statistic of files that can be dropped.
_Version = tuple[str, str, str, str]
_VERSION_1 = 'memory', 'memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file'
_VERSION_2 = '', 'memory.max', 'memory.current', 'inactive_file'


def cores() -> int:
  """Returns the number of cores that this process may use."""
  has_affinity = hasattr(os, 'sched_getaffinity')  # Not on macOS.
  return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def free_memory() -> int | None:
  """Returns the bytes that this process may still take; None where that is not known.

  The machine, each control group (such as a container) and the process itself may limit them.
  """
  try:
    (free,) = [x.split()[1] for x in _MACHINE.read_text().splitlines() if x.startswith(_FREE)]
  except (OSError, ValueError):
    return None
  sizes = [1024 * int(free), *_left_in_groups()]
  if resource is not None and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) >= 0:
    sizes.append(limit)
  return max(0, min(sizes))


def _left_in_groups() -> Iterator[int]:
  """Yields what each control group that this process is in leaves, where one is limited."""
  try:
    lines = _GROUPS.read_text().splitlines()
  except OSError:
    return
  for number, controllers, path in (line.split(':', 2) for line in lines if line.count(':') > 1):
    if number == '0' or 'memory' in controllers.split(','):
      version = _VERSION_2 if number == '0' else _VERSION_1
      top = _ROOT / version[0]
      folder = top / path.lstrip('/')
      # In a container, the path may be that of the host.
      for group in {top, folder, *(parent for parent in folder.parents if top in parent.parents)}:
        yield from _left(group, version)


def _left(group: pathlib.Path, version: _Version) -> Iterator[int]:
  _, limit, used, droppable = version
  try:
    statistics = (group / 'memory.stat').read_text().split()
    files = int(statistics[statistics.index(droppable) + 1])
    yield int((group / limit).read_text()) - int((group / used).read_text()) + files
  except (OSError, ValueError):  # There is no such group here; 'max' is no limit.
    return
