"""Limits on the claims of a log file and on the resources of its reader.

A log may be written by somebody else, damaged, or malicious. Honest logs stay far below these
limits; docs/write-the-log.md states them.
"""

import sys

try:
  import resource
except ImportError:  # Such a system limits no process.
  resource = None  # type: ignore[assignment]

FIELD_BYTES = 1 << 10
"""Most bytes of a device id in UTF-8."""

LINE_BYTES = 1 << 16
"""Most bytes of a line of CSV."""

COLUMNS = 1 << 10
"""Most columns of a file."""

METADATA_BYTES = 1 << 20
"""Most bytes of all keys and values in the metadata of a file."""

ROUNDS = 10_000_000
"""Most rounds of a log."""

FREE_ROWS = 1 << 20
ROWS_PER_BYTE = 300
"""A Parquet file may claim FREE_ROWS and ROWS_PER_BYTE more for each byte."""

MEMORY = 16 << 30
"""Bytes of address space of a command that reads logs."""

PART_CPU_SECONDS = 60
"""Computing time of such a command for a part of at most about a million rows."""

COUNT_CPU_SECONDS = 10**6
"""Computing time of such a command for all else, from a file's end to the next file."""


def max_rows(file_bytes: int) -> int:
  """Returns how many rows a Parquet file of this size may claim to have."""
  return FREE_ROWS + ROWS_PER_BYTE * file_bytes


def apply() -> None:
  """Sets the limits of this process, which is a command that reads logs: no core files either."""
  if resource is None:
    return
  for kind, limit in (
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_AS, MEMORY),
    (resource.RLIMIT_CPU, COUNT_CPU_SECONDS),
  ):
    _lower(kind, limit)


def grant_time(seconds: int = PART_CPU_SECONDS) -> None:
  """Allows so much computing time from now on, in a process whose computing time is limited."""
  if resource is None:
    return
  if resource.getrlimit(resource.RLIMIT_CPU)[0] != resource.RLIM_INFINITY:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)


def _lower(kind: int, limit: int) -> None:
  """Sets a limit, at most the hard limit, which cannot be raised."""
  _, hard = resource.getrlimit(kind)
  limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
  try:
    resource.setrlimit(kind, (limit, hard))
  except (ValueError, OSError):  # macOS limits no address space.
    if sys.platform == 'linux':
      raise
